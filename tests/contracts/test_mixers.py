"""What every mixer promises, whichever files are in the registry, and for the file of the tutorial, which is in no registry.

The definition is the slowest way: one token after the other through the state.  Everything else must equal it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor

from sonde import kernels
from sonde.core import registry
from sonde.core.errors import BadInput
from sonde.core.tensors import decode, encode
from sonde.nn.mixers import Mixer, Recurrent, mixer
from sonde.nn.recurrence import FORMS, State, watching
from sonde.nn.spans import Spans

NAMES = registry.names("nn.mixers")
TUTORIAL = "the tutorial's own"
LENGTHS = [1, 2, 63, 64, 65, 100, pytest.param(257, marks=pytest.mark.slow)]
B = 2


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
    """Makes the tiny mixer, with no parameter left at a special value such as zero."""

    def make(dtype: torch.dtype = torch.float64) -> Mixer:
        torch.manual_seed(1)
        mix = module.tiny()
        with torch.no_grad():
            for parameter in mix.parameters():
                parameter += 0.1 * torch.randn_like(parameter)
        return mix.to(dtype)

    return make


def able(mix: Mixer) -> list[str]:
    """Forms that can run here, the definition first."""
    forms = [form for form in mix.forms() if form != "fused" or kernels.available()]
    return sorted(forms, key=lambda form: form != "step")


def draw(*shape: int, seed: int = 3) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def smooth(x: Tensor) -> bool:
    return x.is_floating_point() or x.is_complex()


def fed(mix: Mixer, x: Tensor, state: State | None, pieces: Sequence[int], forms: Sequence[str]) -> tuple[Tensor, State]:
    """x in pieces, the forms taking turns."""
    outs = []
    for part, form in zip(x.split(list(pieces), 1), cycle(forms)):
        y, state = mix.use(form)(part, state)
        outs.append(y)
    assert state is not None
    return torch.cat(outs, 1), state


def warm(mix: Mixer, n: int = B) -> State | None:
    """A state that has seen something; None where there is none to be had."""
    if not mix.causal:
        return None
    with torch.no_grad():
        return mix.use("auto")(draw(n, 3, mix.width, seed=5).to(next(mix.parameters())))[1]


def kept(mix: Mixer, state: State) -> dict[str, Tensor]:
    """What a state holds: its numbers, or, where it may have spare room, what the mixer makes of it next."""
    if isinstance(mix, Recurrent) or not state:
        return {f"state {name}": s for name, s in state.items()}
    return {"state": mix(draw(len(next(iter(state.values()))), 3, mix.width, seed=6).to(next(mix.parameters())), state)[0]}


def results(mix: Mixer, x: Tensor, state: State | None, run: Callable[..., tuple[Tensor, State]]) -> dict[str, Tensor]:
    """Output, final state, and gradients of the input, every parameter and the initial state by a fixed mix of both."""
    x = x.clone().requires_grad_()
    state = None if state is None else {name: s.clone().requires_grad_(smooth(s)) for name, s in state.items()}
    y, end = run(x, state)
    ends = kept(mix, end)
    loss = torch.zeros((), dtype=torch.float64)
    for out in [y, *(s for s in ends.values() if smooth(s) and s.requires_grad)]:
        out = torch.view_as_real(out) if out.is_complex() else out
        loss = loss + (out * draw(*out.shape, seed=out.dim()).to(out)).sum()
    leaves = {"x": x, **dict(mix.named_parameters()), **{f"first {name}": s for name, s in (state or {}).items() if smooth(s)}}
    grads = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    of = {f"d {name}": torch.zeros_like(leaf) if g is None else g for (name, leaf), g in zip(leaves.items(), grads)}
    return {name: tensor.detach() for name, tensor in {"y": y, **ends, **of}.items()}


def agree(actual: dict[str, Tensor], wanted: dict[str, Tensor], tolerance: float, label: object) -> None:
    assert actual.keys() == wanted.keys(), label
    for name, right in wanted.items():
        assert actual[name].shape == right.shape, (label, name, actual[name].shape, right.shape)
        if not right.numel():
            continue
        if not smooth(right):
            assert torch.equal(actual[name], right), (label, name)
            continue
        wide = torch.complex128 if right.is_complex() else torch.float64
        error = float((actual[name].detach().to(wide) - right.to(wide)).abs().max()) / max(float(right.abs().max()), 1e-2)
        assert error < tolerance, (label, name, error)


def at_once(mix: Mixer, form: str) -> Callable[..., tuple[Tensor, State]]:
    return lambda x, state: mix.use(form)(x, state)


# The registry ----------------------------------------------------------------------------------------------------------


def test_registry_is_not_empty() -> None:
    assert "gla" in NAMES


def test_one_final_class_named_like_the_file(module: ModuleType) -> None:
    mix, own = module.tiny(), [kind for kind in vars(module).values() if inspect.isclass(kind) and kind.__module__ == module.__name__]
    kinds = [kind for kind in own if issubclass(kind, Mixer) and getattr(kind, "__final__", False)]
    assert type(mix) in kinds and type(mix).__doc__ and module.__doc__
    assert type(mix).__name__.lower() == Path(str(module.__file__)).stem.replace("_", "")
    assert mix.forms() and isinstance(mix.causal, bool)


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


# Forms --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("L", LENGTHS)
def test_forms_are_equal(fresh: Callable[..., Mixer], L: int) -> None:
    """In outputs, final state and all gradients, from a state that has seen something."""
    mix, narrow = fresh(), fresh(torch.float32)
    x, state = draw(B, L, mix.width), warm(mix)
    first, *others = able(mix)
    wanted = results(mix, x, state, at_once(mix, first))
    assert all(right.isfinite().all() for right in wanted.values())
    for form in others:
        agree(results(mix, x, state, at_once(mix, form)), wanted, 1e-9, form)
    # The wide mixer on the very numbers that float32 holds: the error is that of the arithmetic alone.
    mix.load_state_dict(narrow.state_dict())
    x, state = x.float(), warm(narrow)
    wanted = results(mix, x.double(), None if state is None else widened(state), at_once(mix, others[0] if others else first))
    for form in [first, *others] if L < 100 else others:
        agree(results(narrow, x, state, at_once(narrow, form)), wanted, 1e-4, (form, "float32"))


def widened(state: State) -> State:
    return {name: s.to(torch.complex128 if s.is_complex() else torch.float64) if smooth(s) else s for name, s in state.items()}


def causal(mix: Mixer) -> Mixer:
    if not mix.causal:
        pytest.skip("it looks at the whole sequence, as it says")
    return mix


def test_one_pass_equals_token_by_token(fresh: Callable[..., Mixer]) -> None:
    mix = causal(fresh())
    x, first = draw(B, 33, mix.width), able(mix)[0]
    for state in (None, warm(mix)):
        wanted = results(mix, x, state, lambda x, state: fed(mix, x, state, [1] * 33, [first]))
        agree(results(mix, x, state, at_once(mix, first)), wanted, 1e-9, first)


@pytest.mark.parametrize("pieces", [(1, 37, 62), (64, 36), (99, 1), (30, 2, 1, 67)], ids=str)
def test_pieces_equal_one_pass(fresh: Callable[..., Mixer], pieces: tuple[int, ...]) -> None:
    """Whatever form each piece takes."""
    mix = causal(fresh())
    x, forms = draw(B, 100, mix.width), able(mix)
    with torch.no_grad():
        y, state = mix.use(forms[0])(x)
        for i in range(len(forms)):
            turns = forms[i:] + forms[:i]
            out, end = fed(mix, x, None, pieces, turns)
            agree({"y": out, **kept(mix, end)}, {"y": y, **kept(mix, state)}, 1e-9, turns)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_the_future_does_not_leak(fresh: Callable[..., Mixer], dtype: torch.dtype) -> None:
    mix = causal(fresh(dtype))
    x = draw(1, 70, mix.width).to(dtype)
    with torch.no_grad():
        for form in able(mix):
            y, _ = mix.use(form)(x)
            for t in (1, 16, 33, 64, 69):
                other, _ = mix(torch.cat([x[:, :t], 3 * draw(1, 70 - t, mix.width, seed=8).to(dtype)], 1))
                few = torch.finfo(dtype).eps * (100 if form != "convolution" else 1e4)  # an FFT rounds
                agree({"y": other[:, :t]}, {"y": y[:, :t]}, few, (form, t))
                assert not torch.equal(other[:, t], y[:, t]), (form, t)


# Sequences of their own length --------------------------------------------------------------------------------------

SIZES = [5, 0, 33, 1, 18]


def laid_out() -> Iterator[tuple[str, Spans, tuple[int, int], list[tuple[int, int]]]]:
    """Ways to lay sequences of SIZES into a batch: name, spans, (rows, time), and (row, start) of each."""
    L, n = max(SIZES), torch.tensor(SIZES)
    yield "right", Spans.of_lengths(n), (len(n), L), [(row, 0) for row in range(len(n))]
    yield "left", Spans.of_mask(torch.arange(L) >= L - n.unsqueeze(1)), (len(n), L), [(row, L - size) for row, size in enumerate(SIZES)]
    bounds = [0, *n.cumsum(0).tolist()]
    yield "packed", Spans.packed(torch.tensor(bounds)), (1, bounds[-1]), [(0, start) for start in bounds[:-1]]


def test_padded_and_packed_equal_one_by_one(fresh: Callable[..., Mixer]) -> None:
    """Outputs, states that go on, and gradients; what lies between the sequences changes nothing, and gets no gradient."""
    mix = fresh()
    alone = [draw(1, size, mix.width, seed=20 + i) for i, size in enumerate(SIZES)]
    more = [draw(1, size, mix.width, seed=40 + i) for i, size in enumerate(SIZES)]
    wanted = [one_by_one(mix.use(able(mix)[0]), first, second) for first, second in zip(alone, more)]
    for form in able(mix):
        mix.use(form)
        for name, spans, shape, places in laid_out():
            x, state = laid(alone, shape, places).requires_grad_(), None
            y, state = mix(x, spans=spans)
            ys = [y]
            if mix.causal:
                ys.append(mix(laid(more, shape, places), state, spans=spans)[0])
            (dx,) = torch.autograd.grad(sum((out * out).sum() for out in ys), x)
            for i, (size, (row, start)) in enumerate(zip(SIZES, places)):
                cut = (slice(row, row + 1), slice(start, start + size))
                actual = {"y": y[cut], "dx": dx[cut]} | ({"more": ys[1][cut]} if mix.causal else {})
                agree(actual, wanted[i], 1e-9, (form, name, i))
                dx[cut] = 0
            assert float(dx.abs().max()) < 1e-12, (form, name)  # an FFT rounds


def laid(parts: list[Tensor], shape: tuple[int, int], places: list[tuple[int, int]]) -> Tensor:
    """The sequences at their places, with numbers everywhere else that would spoil all they touch."""
    whole = torch.full((*shape, parts[0].shape[-1]), torch.nan, dtype=torch.float64)
    for part, (row, start) in zip(parts, places):
        whole[row, start : start + part.shape[1]] = part[0]
    return whole


def one_by_one(mix: Mixer, x: Tensor, more: Tensor) -> dict[str, Tensor]:
    if not x.shape[1]:
        return {"y": x, "dx": x} | ({"more": more} if mix.causal else {})
    x = x.clone().requires_grad_()
    y, state = mix(x)
    outs = {"y": y} | ({"more": mix(more, state)[0]} if mix.causal else {})
    (dx,) = torch.autograd.grad(sum((out * out).sum() for out in outs.values()), x)
    return {name: out.detach() for name, out in outs.items()} | {"dx": dx}


def test_an_empty_sequence_keeps_its_state(fresh: Callable[..., Mixer]) -> None:
    mix = causal(fresh())
    state, x = warm(mix, 3), draw(3, 7, mix.width)
    assert state is not None
    with torch.no_grad():
        y, end = mix(x, state, spans=Spans.of_lengths(torch.tensor([7, 0, 4])))
        alone, _ = mix(x[1:2], {name: s[1:2] for name, s in end.items()})
        wanted, _ = mix(x[1:2], {name: s[1:2] for name, s in state.items()})
    agree({"y": alone}, {"y": wanted}, 1e-9, "a sequence that waited")
    assert not y[1].any() and not y[2, 4:].any()


# Numbers ------------------------------------------------------------------------------------------------------------


def test_gradient_is_right_in_float64(fresh: Callable[..., Mixer]) -> None:
    """Of one long vector of input, state and parameters, so that one random direction tests them all."""
    mix = fresh()
    state, params = warm(mix), dict(mix.named_parameters())
    initial = {name: s for name, s in (state or {}).items() if smooth(s)}
    x = draw(B, 4, mix.width)
    parts = [flat(value.detach()) for value in (x, *initial.values(), *params.values())]

    def run(vector: Tensor) -> Tensor:
        rest = iter(vector.split([len(part) for part in parts]))
        inputs = next(rest).view_as(x)
        first = {name: shaped(next(rest), s) for name, s in initial.items()}
        now = {name: next(rest).view_as(p) for name, p in params.items()}
        y, end = torch.func.functional_call(mix, now, (inputs, None if state is None else {**state, **first}))
        return torch.cat([flat(out) for out in (y, *end.values()) if smooth(out)])

    for form in able(mix):
        mix.use(form)
        assert torch.autograd.gradcheck(run, torch.cat(parts).requires_grad_(), fast_mode=True), form


def flat(x: Tensor) -> Tensor:
    return (torch.view_as_real(x.resolve_conj()) if x.is_complex() else x).flatten()


def shaped(vector: Tensor, like: Tensor) -> Tensor:
    return torch.view_as_complex(vector.view(*like.shape, 2)) if like.is_complex() else vector.view_as(like)


def test_half_precision_is_summed_in_float32(fresh: Callable[..., Mixer]) -> None:
    """bfloat16 in and out, the state in float32, and the error that of the inputs: it does not grow with the length."""
    narrow, wide = fresh(torch.bfloat16), fresh(torch.float32)
    wide.load_state_dict({name: value.to(wide.state_dict()[name].dtype) for name, value in narrow.state_dict().items()})
    x = draw(1, 200, wide.width).bfloat16()
    with torch.no_grad():
        wanted, _ = wide(x.float())
        for form in [form for form in able(narrow) if form != "step"] or able(narrow):
            y, state = narrow.use(form)(x)
            assert y.dtype == torch.bfloat16 and y.isfinite().all(), form
            if isinstance(narrow, Recurrent):
                assert all(s.dtype in (torch.float32, torch.complex64) for name, s in state.items() if name.startswith("S")), form
            assert float((y.float() - wanted)[:, 100:].norm() / wanted[:, 100:].norm()) < 0.05, form


def test_autocast(fresh: Callable[..., Mixer]) -> None:
    mix = fresh(torch.float32)
    x = draw(1, 65, mix.width).float()
    wanted, _ = mix(x)
    with torch.autocast("cpu", torch.bfloat16):
        y, _ = mix(x)
    y.float().square().sum().backward()
    assert float(((y.float() - wanted).norm() / wanted.norm()).detach()) < 0.05
    assert all(p.grad is None or p.grad.isfinite().all() for p in mix.parameters())


def test_a_state_goes_in_and_out_of_autocast(fresh: Callable[..., Mixer]) -> None:
    mix = causal(fresh(torch.float32))
    x = draw(B, 9, mix.width).float()
    with torch.no_grad():
        wanted, _ = mix(x)
        for inside in ((True, False), (False, True)):
            state, ys = None, []
            for part, on in zip(x.split([5, 4], 1), inside):
                with torch.autocast("cpu", torch.bfloat16, enabled=on):
                    y, state = mix(part, state)
                ys.append(y.float())
            assert float((torch.cat(ys, 1) - wanted).norm() / wanted.norm()) < 0.05, inside


@pytest.mark.parametrize("name", ["gla", "gated_deltanet", "mamba"])
def test_compiled_it_is_one_graph_and_equal(name: str) -> None:
    torch.manual_seed(1)
    mix, x = registry.load("nn.mixers", name).tiny(), draw(B, 7, registry.load("nn.mixers", name).tiny().width).float()
    compiled = torch.compile(mix, fullgraph=True, backend="aot_eager")
    agree(results(mix, x, None, compiled), results(mix, x, None, mix), 1e-5, name)


def test_long_and_loud(fresh: Callable[..., Mixer]) -> None:
    """Inputs thirty times too large drive every gate to its ends; nothing overflows over 4096 steps."""
    mix = fresh(torch.float32).use("auto")
    with torch.no_grad():
        y, state = mix(30 * draw(1, 4096, mix.width).float())
    assert y.isfinite().all() and all(s.isfinite().all() for s in state.values())


def test_loud_gradients(fresh: Callable[..., Mixer]) -> None:
    mix = fresh(torch.float32).use("auto")
    x = (30 * draw(1, 130, mix.width)).float().requires_grad_()
    mix(x)[0].sum().backward()
    assert all(leaf.grad is None or leaf.grad.isfinite().all() for leaf in (x, *mix.parameters()))


def test_saved_and_loaded_gives_the_same_bits(fresh: Callable[..., Mixer]) -> None:
    mix = fresh(torch.float32)
    again = fresh(torch.float32)
    with torch.no_grad():
        for value in again.state_dict().values():
            if smooth(value):
                value.zero_()
    again.load_state_dict(decode(b"".join(encode(mix.state_dict()))))
    x = draw(B, 20, mix.width).float()
    with torch.no_grad():
        y, state = mix(x)
        other, end = again(x)
        assert torch.equal(y, other)
        if mix.causal:
            loaded = decode(b"".join(encode(state)))
            assert loaded.keys() == end.keys() and all(torch.equal(loaded[name], end[name]) for name in end)
            assert torch.equal(mix(x, state)[0], again(x, loaded)[0])


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
        with pytest.raises(BadInput, match=r"batch of 2, x for 3 \(axis 0 \(batch\)\)"):
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
    mix, kept = fresh(), ", ".join(f"'{name}'" for name in state)
    for foreign in ({}, {"bogus": x}, {**state, "bogus": x}, dict(list(state.items())[1:])):
        holds = ", ".join(f"'{name}'" for name in foreign) or "nothing"
        with pytest.raises(BadInput, match=f"state holds {holds}; {type(mix).__name__} keeps {kept} "):
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


# The bare recurrence ------------------------------------------------------------------------------------------------


def test_the_rule_is_what_runs(module: ModuleType, fresh: Callable[..., Mixer]) -> None:
    """A recurrent layer takes its steps through the engine, in the form asked for."""
    mix = fresh()
    if not isinstance(mix, Recurrent):
        pytest.skip("it is no linear recurrence")
    assert inspect.isgeneratorfunction(module.rule)
    for form in able(mix):
        mix.use(form)
        with watching() as watch, torch.no_grad():
            mix(draw(B, 4, mix.width))
        assert watch.seen and all(taken == form and steps.v.shape[2] == 4 for steps, taken in watch.seen)
