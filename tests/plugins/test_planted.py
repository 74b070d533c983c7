"""A new plug-in is one new file: planted into a copy of the package, each kind is found and used with no other file edited."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.plugins.test_own_files import DATA, FADE, HUBER, LENS

PACKAGE = Path(__file__).parents[2] / "sonde"
MODEL = '''"""One layer between input and answers."""
from typing import final

import torch
from torch import nn

from ..core.batch import Batch


@final
class Layer(nn.Module):
    """One layer.

    Args:
        width: inputs
    """

    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.map = nn.Linear(width, 1)

    def forward(self, x):
        return self.map(x)


def tiny():
    return Layer(), Batch(x=torch.linspace(-1, 1, 12).view(4, 3))
'''
RULE = '''"""Plain descent, by another name."""
from typing import final

import torch
from torch import nn

from ._rule import OptimizerRule


@final
class Slide(OptimizerRule):
    """theta = theta - lr g; also optimizer("sgd", slide=True)."""

    linear_in_lr = True
    also = ("rmsprop", "slide", True)

    def __init__(self, params, lr: float = 1e-2, weight_decay: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    def update(self, params, grads, group):
        torch._foreach_add_(params, grads, alpha=-group["lr"])


def tiny():
    params = [nn.Parameter(torch.linspace(-1, 1, 6).reshape(2, 3)), nn.Parameter(torch.ones(5))]
    return Slide(params), params
'''
RECIPE = '''"""Squares by one layer."""
from ..core.recipe import Recipe
from ..data.catalog import load
from ..models.layer import Layer
from ..objectives.far import Far
from ..optim.build import optimizer


def recipe(lr: float = 0.1, seed: int = 0) -> Recipe:
    """Values by one layer.

    lr: step size
    """
    rule = optimizer("slide", lr=lr)
    return Recipe(model=lambda: Layer(1), data=lambda: load("sine", seed=seed), objective=Far(), optimizer=rule, steps=2)
'''
LENS_TINY = """

REPORT = {"position": 45}


def tiny():
    from sonde.lenses.tools.tiny import images

    return images()
"""
USE = """
import torch
import sonde
from sonde.cli.main import main
from sonde.core import registry
from sonde.models.heads import likelihoods_of, mismatch
from sonde.optim.build import names, optimizer
from sonde.data.catalog import load

from sonde.testing import check_lens, check_model, check_objective

for kind, name in (("mixers", "fade"), ("objectives", "far"), ("lenses", "means"), ("models", "layer"), ("optimizers", "slide"),
                   ("data", "squares"), ("recipes", "planted")):
    assert main(["list", kind]) == 0
    from sonde.cli import _catalog
    assert _catalog.entries(kind)[name], (kind, name)
for check, name in ((check_objective, "far"), (check_lens, "means"), (check_model, "layer")):
    check(name)
assert "far" in likelihoods_of("real") and mismatch("real", "identity", "far") == ""
rule = optimizer("slide", lr=0.1)
assert "slide" in names() and rule.linear_in_lr and rule.elementwise and optimizer("rmsprop", lr=0.1, slide=True).name == "slide"
mix = registry.load("nn.mixers", "fade").tiny()
assert not optimizer("adamw", lr=0.1, weight_decay=0.1).decays("table", mix.table, mix)
assert load("squares").name == "squares"
assert main(["explain", "fade"]) == main(["explain", "layer"]) == main(["explain", "planted"]) == 0
assert main(["bench", "mixers", "fade", "--lengths", "4", "--width", "8"]) == 0
assert main(["train", "planted", "--run", "run", "--quiet"]) == 0
assert main(["look", "run", "means"]) == 0 and "<h2>Means</h2>" in open("run/report.html", encoding="utf-8").read()
assert main(["train", "copying", "--mixer", "fade", "--width", "8", "--depth", "1", "--steps", "2", "--run", "copy", "--quiet"]) == 0

"""


def test_each_kind_is_one_new_file(tmp_path: Path) -> None:
    copy = tmp_path / "sonde"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    far = HUBER.replace('    tasks = ("real",)\n', '    tasks = ("real",)\n    repeatable = True\n')
    files = {
        "nn/mixers/fade.py": FADE,
        "objectives/far.py": far,
        "lenses/means.py": LENS
        + "\n\nREPORT = {'position': 45}\n\n\ndef tiny():\n    from sonde.lenses.tools.tiny import images\n\n    return images()\n",
        "models/layer.py": MODEL,
        "optim/rules/slide.py": RULE,
        "data/squares.py": DATA,
        "recipes/planted.py": RECIPE,
    }
    for name, text in files.items():
        assert not (copy / name).exists()
        (copy / name).write_text(text)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", USE], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
