"""What every mixer promises, whichever files are in the registry, and for the file of the tutorial, which is in no registry.

The promises are those of `sonde.testing`, which a user can check for a mixer of their own; here stand the wrong inputs too.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

from sonde.core import registry
from sonde.core.errors import BadInput
from sonde.nn.mixers import Mixer, mixer
from sonde.nn.recurrence import FORMS
from sonde.nn.spans import Spans
from sonde.testing import mixers as checks
from sonde.testing._contract import agree, draw
from sonde.testing.mixers import B, results, warm

NAMES = registry.names("nn.mixers")
TUTORIAL = "the tutorial's own"


@pytest.fixture(params=[*NAMES, TUTORIAL], scope="module")
def module(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    if request.param != TUTORIAL:
        return registry.load("nn.mixers", request.param)
    mine = tmp_path_factory.mktemp("mine") / "fade.py"
    mine.write_text(shown()[0])
    return registry.load_file(mine)


def shown() -> list[str]:
    """The code of the tutorial: a file, and what to do with it."""
    page = Path(__file__).parents[2] / "docs/how-to/add-a-mixer.md"
    return re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.S | re.M)


@pytest.fixture
def fresh(module: ModuleType) -> Callable[..., Mixer]:
    return checks.fresh(module)


def causal(mix: Mixer) -> Mixer:
    if not mix.causal:
        pytest.skip("it looks at the whole sequence, as it says")
    return mix


# The registry ----------------------------------------------------------------------------------------------------------


def test_registry_is_not_empty() -> None:
    assert "gla" in NAMES


@pytest.mark.parametrize("check", [checks.declares_what_it_is, checks.the_rule_is_what_runs], ids=lambda check: check.__name__)
def test_its_file_keeps_the_contract(module: ModuleType, check: Callable[[ModuleType], None]) -> None:
    check(module)


@pytest.mark.parametrize("check", checks.CHECKS, ids=lambda check: check.__name__)
def test_keeps_the_contract(fresh: Callable[..., Mixer], check: Callable[..., None]) -> None:
    check(fresh)


@pytest.mark.slow
def test_forms_are_equal_over_several_blocks(fresh: Callable[..., Mixer]) -> None:
    checks.forms_are_equal(fresh, lengths=(257,))


@pytest.mark.parametrize("name", NAMES)
def test_made_by_name(name: str) -> None:
    mix = mixer(name, 64)
    y, _ = mix(draw(2, 3, 64).float())
    assert y.shape == (2, 3, 64) and y.isfinite().all()


def test_what_the_tutorial_does_works(capsys: pytest.CaptureFixture) -> None:
    names: dict[str, object] = {"__name__": "fade"}
    for block in shown():
        exec(compile(block, "add-a-mixer.md", "exec"), names)
    assert "separable: head + value decay ran as " in capsys.readouterr().out


@pytest.mark.parametrize("name", ["gla", "gated_deltanet", "mamba"])
def test_compiled_it_is_one_graph_and_equal(name: str) -> None:
    torch.manual_seed(1)
    mix, x = registry.load("nn.mixers", name).tiny(), draw(B, 7, registry.load("nn.mixers", name).tiny().width).float()
    compiled = torch.compile(mix, fullgraph=True, backend="aot_eager")
    agree(results(mix, x, None, compiled), results(mix, x, None, mix), 1e-5, name)


# Mistakes -----------------------------------------------------------------------------------------------------------


def test_unknown_and_missing_forms_are_named(fresh: Callable[..., Mixer]) -> None:
    mix = fresh()
    with pytest.raises(BadInput, match="no form 'nonsense'"):
        mix.use("nonsense")
    for form in FORMS.keys() - set(mix.forms()):
        with pytest.raises(BadInput, match=f"{type(mix).__name__} has no form '{form}'; it has {mix.forms()[0]}"):
            mix.use(form)
    assert mix.form == "auto" and mix.use("auto") is mix


def test_wrong_sizes_are_refused_by_axis(fresh: Callable[..., Mixer]) -> None:
    mix = fresh()
    with pytest.raises(BadInput, match=rf"axis 2 \(width\)\); make the last axis {mix.width}"):
        mix(draw(B, 4, mix.width + 1))
    with pytest.raises(BadInput, match="axes"):
        mix(draw(4, mix.width))
    if mix.causal:
        state = warm(mix)
        with pytest.raises(BadInput, match=r"has batch size 2, x has 3 \(axis 0 \(batch\)\)"):
            mix(draw(3, 4, mix.width), state)
        with pytest.raises(BadInput, match=r"for 2 sequences, not 3 \(axis 0 \(batch\)\)"):
            mix(draw(3, 4, mix.width), state, spans=Spans.of_lengths(torch.tensor([4, 2, 1])))


def test_an_input_it_cannot_read_is_named(fresh: Callable[..., Mixer]) -> None:
    mix = fresh()
    for spans in (None, Spans.of_lengths(torch.zeros(B, dtype=torch.long))):
        with pytest.raises(BadInput, match=r"x has no tokens \(axis 1 \(time\)\)"):
            mix(draw(B, 0, mix.width), spans=spans)
    for dtype in (torch.float32, torch.bfloat16, torch.long, torch.complex128):
        message = f"x is {str(dtype)[6:]}, the weights are float64 .*; give x.to"
        with pytest.raises(BadInput, match=message):
            mix(draw(B, 4, mix.width).to(dtype))
    for dtype in (torch.float64, torch.long):  # autocast changes neither
        with pytest.raises(BadInput, match=f"x is {str(dtype)[6:]}, the weights are float32"), torch.autocast("cpu", torch.bfloat16):
            fresh(torch.float32)(draw(B, 4, mix.width).to(dtype))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("width", [0, -4])
def test_a_width_must_be_positive(name: str, width: int) -> None:
    with pytest.raises(BadInput, match=f"option 'width' of mixer '{name}' must be >= 1, not {width}"):
        mixer(name, width)


def test_a_foreign_state_is_refused(fresh: Callable[..., Mixer]) -> None:
    """Whether or not the mixer has made a state of its own before; and one too many or too few is foreign."""
    state, x = warm(causal(fresh())), draw(B, 2, fresh().width)
    assert state is not None
    mix, state_content = fresh(), ", ".join(f"'{name}'" for name in state)
    for foreign in ({}, {"bogus": x}, {**state, "bogus": x}, dict(list(state.items())[1:])):
        holds = ", ".join(f"'{name}'" for name in foreign) or "nothing"
        with pytest.raises(BadInput, match=f"state holds {holds}; {type(mix).__name__} keeps {state_content} "):
            mix(x, foreign)
    with torch.no_grad():
        assert torch.equal(mix(x, state)[0], fresh()(x, warm(fresh()))[0])


def test_a_state_of_other_sizes_is_refused_by_axis(fresh: Callable[..., Mixer]) -> None:
    mix = causal(fresh())
    state, x = warm(mix), draw(B, 2, mix.width)
    assert state is not None
    for name, s in state.items():
        with pytest.raises(BadInput, match=f"state '{name}' has {s.dim() + 1} axes; {type(mix).__name__} keeps {s.dim()} "):
            mix(x, {**state, name: s.unsqueeze(-1)})
        for axis in [axis for axis in range(1, s.dim()) if not (name in mix.grows and axis == 2)]:
            n = s.shape[axis]
            with pytest.raises(BadInput, match=f"state '{name}' has {n + 1} along axis {axis}; {type(mix).__name__} keeps {n} "):
                mix(x, {**state, name: torch.cat([s, s.narrow(axis, 0, 1)], axis)})


@pytest.mark.parametrize(
    ("name", "options", "other", "message"),
    [
        ("mamba2", {"taps": 4}, {"taps": 3}, "'tail' has 3 along axis 1; Mamba2 keeps 2"),
        ("attention", {"heads": 4}, {"heads": 2}, "'k' has 4 along axis 1; Attention keeps 2"),
        ("performer", {"features": 8}, {"features": 6}, "'S0' has 8 along axis 2; Performer keeps 6"),
        ("abc", {"slots": 3}, {"slots": 5}, "'S0' has 3 along axis 3; ABC keeps 5"),
        ("window", {"window": 16}, {"window": 64}, "'tail' has 16 along axis 2; Window keeps 64"),
        ("s4", {"states": 8}, {"states": 4, "kind": "real"}, "'S0' is complex; S4 keeps a real one"),
        ("s4", {"states": 4, "kind": "real"}, {"states": 8}, "'S0' is real; S4 keeps a complex one"),
    ],
)
def test_a_state_made_with_other_options_is_refused(name: str, options: dict, other: dict, message: str) -> None:
    x = draw(B, 3, 16).float()
    _, state = mixer(name, 16, **options)(x)
    with pytest.raises(BadInput, match=message):
        mixer(name, 16, **other)(x, state)
