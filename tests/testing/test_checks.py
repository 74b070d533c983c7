"""The checks of `sonde.testing` refuse what violates its contract, and say which: mutants of a right one for each kind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sonde.testing import check_lens, check_mixer, check_model, check_objective, check_recipe

MIXER = '''"""A running mean that fades."""
from typing import final

import torch
from torch import Tensor, nn

from sonde.nn.mixers import Mixer


class Wrong(torch.autograd.Function):
    """x, with a gradient that is twice too large."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad


@final
class Fade(Mixer):
    """s = s / 2 + x.

    Args:
        width: numbers per token
    """

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.width, self.out = width, nn.Linear(width, width)

    def forms(self) -> tuple[str, ...]:
        return ("step",)

    def auto(self, length: int) -> tuple[str, str]:
        return "step", "the only one"

    def mix(self, x: Tensor, state, lengths):
        s = x.new_zeros(len(x), self.width, dtype=torch.promote_types(x.dtype, torch.float32)) if state is None else state["s"]
        outs = []
        for t, now in enumerate(x.unbind(1)):
            new = s / 2 + now
            if lengths is not None:
                new = torch.where((t < lengths).unsqueeze(1), new, s)
            s = new
            outs.append(self.out(s.to(x.dtype)))
        return torch.stack(outs, 1), {"s": s}


def tiny() -> Fade:
    return Fade()
'''
LOOP = "        return torch.stack(outs, 1), "
MUTANTS = {
    "the future leaks": (
        LOOP,
        "        outs = [y + 1e-6 * x.mean(1) for y in outs]\n" + LOOP,
        "(No output depends on a later input|One pass equals)",
    ),
    "the state is not carried": ('if state is None else state["s"]', 'if True else state["s"]', "token by token|gradients equal finite"),
    "the state is carried wrong": ('else state["s"]', 'else state["s"].detach()', "token by token"),
    "padding changes outputs": ("            if lengths is not None:", "            if False:", "alone|A sequence without tokens"),
    "the gradient is wrong": ("            new = s / 2 + now", "            new = s / 2 + Wrong.apply(now)", "finite differences"),
    "it draws at random": (
        "            new = s / 2 + now",
        "            new = s / 2 + now + 1e-3 * torch.rand_like(now)",
        "equals|differs",
    ),
    "it overflows": ("            new = s / 2 + now", "            new = 2 * s + now", "overflows|finite|does not depend"),
    "half precision is refused": ("self.out(s.to(x.dtype))", "self.out(s)", "bfloat16|autocast"),
    "a form is another mixer": ('return ("step",)', 'return ("step", "scan")', None),
    "not named like the file": ("Fade", "Other", "named like"),
    "not final": ("@final\nclass", "class", "@final"),
    "no docstring": ('    """s = s / 2 + x.\n\n    Args:\n        width: numbers per token\n    """\n', "", "docstring"),
    "a limit that is no option": ("    def forms", '    length_option = "most"\n\n    def forms', "length_option 'most'"),
    "a growing tensor that is not there": ("    def forms", '    grows = ("k",)\n\n    def forms', "grows names k"),
    "no tiny": ("def tiny", "def small", "defines no function 'tiny'"),
}


def planted(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_the_right_mixer_passes(tmp_path: Path) -> None:
    check_mixer(planted(tmp_path, "fade.py", MIXER))


@pytest.mark.parametrize("mutant", [name for name, (_, _, message) in MUTANTS.items() if message])
def test_a_mutated_mixer_is_refused(tmp_path: Path, mutant: str) -> None:
    old, new, message = MUTANTS[mutant]
    assert old in MIXER
    with pytest.raises(AssertionError, match=f"(fade violates its contract: .*({message}))"):
        check_mixer(planted(tmp_path, "fade.py", MIXER.replace(old, new)))


def test_a_form_that_differs_is_refused(tmp_path: Path) -> None:
    """The second form rounds its inputs."""
    text = MIXER.replace('return ("step",)', 'return ("step", "scan")').replace(
        "        outs = []\n", '        outs = []\n        x = x.half().to(x.dtype) if self.form == "scan" else x\n'
    )
    with pytest.raises(AssertionError, match="All its forms give the same outputs.*form 'scan' at 1 tokens: 'y' differs by"):
        check_mixer(planted(tmp_path, "fade.py", text))


def test_a_state_that_is_not_saved_is_refused(tmp_path: Path) -> None:
    text = MIXER.replace(
        "self.out = width, nn.Linear(width, width)", "self.out = width, nn.Linear(width, width)\n        self.shift = torch.rand(width)"
    )
    with pytest.raises(AssertionError, match="Saved and loaded|fade violates its contract"):
        check_mixer(
            planted(tmp_path, "fade.py", text.replace("new = s / 2 + now", "new = s / 2 + now + self.shift.to(now.dtype) * id(self) % 7"))
        )


OBJECTIVE = '''"""Squared error."""
from typing import final

import torch
from torch import nn

from sonde.core.batch import Batch
from sonde.core.terms import Terms


@final
class Square:
    """y is any real number."""

    tasks = ("real",)

    def __call__(self, model, batch):
        return Terms(nll=((model(batch.x) - batch.y).square().sum() / 2, batch.y.numel()))

    def predict(self, output):
        return output


def tiny():
    """A small working instance with input."""
    x = torch.linspace(-1, 1, 21).reshape(7, 3)
    return Square(), nn.Linear(3, 1), Batch(x=x, y=x[:, :1])
'''
OBJECTIVE_MUTANTS = {
    "a mean": ("batch.y.numel()))", "batch.y.numel()) if len(batch) > 5 else ((model(batch.x) - batch.y).square().mean(), 1))", "add up"),
    "no gradient": ("model(batch.x) - ", "model(batch.x).detach() - ", "finite differences"),
    "rows": ("return output", "return output[1:]", "predict returns 6 rows for 7"),
    "draws": ("return Terms(", "torch.rand(1)\n        return Terms(", "global generator"),
    "task": ('("real",)', '("reel",)', "tasks names 'reel'.*did you mean 'real'"),
    "nothing": ("return Terms(nll=", "return dict(nll=", "it returns dict, not non-empty Terms"),
    "name": ("Square", "Cube", "named like"),
    "small batch": ("21).reshape(7", "9).reshape(3", "six or more"),
}


def test_the_right_objective_passes(tmp_path: Path) -> None:
    check_objective(planted(tmp_path, "square.py", OBJECTIVE))


@pytest.mark.parametrize("mutant", OBJECTIVE_MUTANTS)
def test_a_mutated_objective_is_refused(tmp_path: Path, mutant: str) -> None:
    old, new, message = OBJECTIVE_MUTANTS[mutant]
    assert old in OBJECTIVE
    with pytest.raises(AssertionError, match=f"square violates its contract: .*{message}"):
        check_objective(planted(tmp_path, "square.py", OBJECTIVE.replace(old, new)))


LENS = '''"""The mean of each input."""
from sonde.core.reading import Bars, Subject
from sonde.lenses.tools.readonly import guard, no_model


def why_not(subject):
    return no_model(subject)


@guard
def read(subject: Subject, most: int = 3) -> Bars:
    """Means.

    Args:
        most: how many
    """
    return Bars("Means", {"mean": subject.batch.x.float().flatten(1).mean(0)[:most]}, axes=["input"], note="Measured.")


def tiny():
    from sonde.lenses.tools.tiny import images

    return images()
'''
LENS_MUTANTS = {
    "draws": ("    return Bars(", "    import torch\n    torch.rand(1)\n    return Bars(", "changes random states"),
    "mode": ("    return Bars(", "    subject.model.eval()\n    return Bars(", "changes training modes"),
    "batch": ("    return Bars(", "    subject.batch.x.zero_()\n    return Bars(", "changes the batch"),
    "no check": ("@guard\n", "", "one-line error"),
    "help": ("        most: how many\n", "", "'most' has no line"),
    "taken": ("most", "first", "'first' is an argument of `Run.look`"),
    "subject": ("subject: Subject, most", "thing: Subject, most", "first argument of read is not 'subject'"),
    "tiny draws": ("    return images()", "    import random\n    random.random()\n    return images()", "global random state"),
    "kind": ("    return Bars(", "    return 7\n    return Bars(", "read returns int, not Reading"),
    "report": ("\n\ndef why_not", "\nREPORT = {'section': 3}\n\n\ndef why_not", "REPORT must be like"),
}


def test_the_right_lens_passes(tmp_path: Path) -> None:
    check_lens(planted(tmp_path, "means.py", LENS))


@pytest.mark.parametrize("mutant", LENS_MUTANTS)
def test_a_mutated_lens_is_refused(tmp_path: Path, mutant: str) -> None:
    old, new, message = LENS_MUTANTS[mutant]
    assert old in LENS
    with pytest.raises(AssertionError, match=f"means violates its contract: .*({message})"):
        check_lens(planted(tmp_path, "means.py", LENS.replace(old, new)))


MODEL = '''"""One layer."""
from typing import final

import torch
from torch import nn

from sonde.core.batch import Batch


@final
class Layer(nn.Module):
    """One layer."""

    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.map = nn.Linear(width, 2)

    def forward(self, x):
        return self.map(x)


def tiny():
    return Layer(), Batch(x=torch.linspace(-1, 1, 12).view(4, 3))
'''
MODEL_MUTANTS = {
    "neighbors": ("self.map(x)", "self.map(x - x.mean(0))", "alone and in a batch"),
    "detached": ("self.map(x)", "self.map(x).detach()", "no output depends on a weight"),
    "random": ("self.map(x)", "self.map(x) + torch.rand(2)", "differs from call to call"),
    "infinite": ("self.map(x)", "self.map(x) / 0", "not finite"),
    "not saved": ("self.map = nn.Linear(width, 2)", "self.map = nn.Linear(width, 2)\n        self.shift = torch.rand(2)", None),
    "in place": ("self.map(x)", "self.map(x.mul_(1.5))", "differs from call|changes the batch"),
}


def test_the_right_model_passes(tmp_path: Path) -> None:
    check_model(planted(tmp_path, "layer.py", MODEL))
    neighbors = MODEL.replace("self.map(x)", "self.map(x - x.mean(0))")
    check_model(
        planted(
            tmp_path, "layer.py", neighbors.replace('    """One layer."""\n', '    """One layer."""\n\n    batch_independent = False\n')
        )
    )


@pytest.mark.parametrize("mutant", [name for name, (_, _, message) in MODEL_MUTANTS.items() if message])
def test_a_mutated_model_is_refused(tmp_path: Path, mutant: str) -> None:
    old, new, message = MODEL_MUTANTS[mutant]
    with pytest.raises(AssertionError, match=f"layer violates its contract: .*({message})"):
        check_model(planted(tmp_path, "layer.py", MODEL.replace(old, new)))


def test_a_model_that_is_not_saved_whole_is_refused(tmp_path: Path) -> None:
    old, new, _ = MODEL_MUTANTS["not saved"]
    with pytest.raises(AssertionError, match="loaded into another instance"):
        check_model(planted(tmp_path, "layer.py", MODEL.replace(old, new).replace("self.map(x)", "self.map(x) + self.shift")))


RECIPE = '''"""Two rings."""
from sonde import Recipe
from sonde.data.catalog import load
from sonde.models.mlp import MLP
from sonde.objectives.categorical import Categorical
from sonde.optim.build import optimizer


def recipe(width: int = 8, seed: int = 0) -> Recipe:
    """Two rings.

    Args:
        width: units
    """
    return Recipe(model=lambda: MLP((2, width, 2)), data=lambda: load("rings", seed=seed, n=60), objective=Categorical(2),
                  optimizer=optimizer("adamw", lr=1e-2), epochs=1)
'''


def test_a_recipe_is_checked(tmp_path: Path) -> None:
    check_recipe(planted(tmp_path, "rings.py", RECIPE))
    with pytest.raises(AssertionError, match="rings violates its contract: .*option 'width' has no help line"):
        check_recipe(planted(tmp_path, "rings.py", RECIPE.replace("    width: units\n", "")))
    with pytest.raises(AssertionError, match="are reproducible: .*gave different metrics"):
        drifting = RECIPE.replace('"""Two rings."""\nfrom', '"""Two rings."""\nimport itertools\nfrom', 1).replace(
            "def recipe", "COUNT = itertools.count(1)\n\n\ndef recipe"
        )
        check_recipe(planted(tmp_path, "rings.py", drifting.replace("lr=1e-2", "lr=1e-2 * next(COUNT)")))


def test_the_checks_need_no_pytest() -> None:
    code = "import sys, sonde.testing; sys.exit('pytest' in sys.modules or 'hypothesis' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], timeout=120).returncode == 0
