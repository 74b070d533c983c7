"""A user's own recipe in a file, small enough to train in a blink, and a clean place to work in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from sonde.cli.main import main

MINE = '''"""A line through noisy points."""

from pathlib import Path
from typing import Annotated, Literal

import torch
from torch import nn

from sonde import Batch, Data, Range, Recipe, Terms


class Points:
    def __init__(self, first, last):
        self.x = torch.linspace(-1, 1, 41)[first:last].reshape(-1, 1)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, indices):
        x = self.x[indices]
        return Batch(x=x, y=2 * x + 0.5, ids=indices)

    def fingerprint(self):
        return "line"


class Squares:
    def __call__(self, model, batch):
        return Terms(nll=((model(batch.x) - batch.y).square().sum(), len(batch)))


def read(path):
    import csv

    with open(path) as file:
        return Batch(x=torch.tensor([[float(cell) for cell in row] for row in csv.reader(file)]))


def recipe(
    width: Annotated[int, Range(1, 64)] = 5,
    lr: Annotated[float, Range(above=0)] = 0.05,
    widths: tuple[int, ...] = (3, 4),
    bias: bool = True,
    way: Literal["up", "down"] = "up",
    text: Path | None = None,
    seed: int = 0,
) -> Recipe:
    """A line through points.

    Args:
        width: numbers between the two layers
        lr: length of a step
    """
    return Recipe(
        model=lambda: nn.Sequential(nn.Linear(1, width, bias=bias), nn.Linear(width, 1)),
        data=lambda: Data(Points(0, 29), Points(29, 35), Points(35, 41), name="line", task="values", reader=read),
        objective=Squares(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=lr),
        steps=7,
        batch_size=11,
    )
'''


class Answer(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def mine(tmp_path: Path) -> str:
    """Path of a recipe file; its folder is not the working directory."""
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "mine.py").write_text(MINE)
    return str(folder / "mine.py")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    place = tmp_path / "here"
    place.mkdir()
    monkeypatch.chdir(place)
    return place


@pytest.fixture
def sonde(here: Path, capsys: pytest.CaptureFixture) -> Callable[..., Answer]:
    """Run a command line in this process, in the empty working directory."""

    def run(*words: str) -> Answer:
        code = main(words)
        return Answer(code, *capsys.readouterr())

    return run
