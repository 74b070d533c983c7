"""What recipes of generative models share: points or pictures without labels, and samples shown at the end beside real ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch

from ...core.batch import Data
from ...core.reading import Scatter
from ...core.seeds import generator
from ...data.catalog import load
from ...data.tensors import TensorSource
from ...objectives.information.discrepancy import discrepancy
from .sheets import ACROSS, leave, sheet

SampleName = Literal["moons", "rings", "spirals", "digits", "mnist", "fashion_mnist"]
PLANES = ("moons", "rings", "spirals")
MOST = 1000
"""points or pictures that are compared"""
BELL = 0.25
"""width of the bells that points are compared through, in deviations of the data"""


def unlabeled(name: SampleName, seed: int) -> Data:
    """Points with mean 0 and deviation 1 in each coordinate, or pictures with values in 0..1."""
    if name not in PLANES:
        return replace(load(name, seed=seed, standardize=False), task="examples", classes=())  # labels are no target
    data = load(name, seed=seed, n=10_000)
    x = data.train[:].x
    parts: dict[str, Any] = {part: TensorSource((source[:].x - x.mean(0)) / x.std(0)) for part, source in data.splits.items()}
    return Data(**parts, name=name)


def shape_of(data: Data) -> tuple[int, ...]:
    """Of one example."""
    return tuple(data.train[:1].x.shape[1:])


def levels_of(name: SampleName) -> int:
    """Levels of a pixel; 0 for points."""
    return 0 if name in PLANES else 17 if name == "digits" else 256


def report(data: Data, model: Any, folder: Path) -> Mapping[str, str]:
    """Samples as a picture, and how far they are from test examples beside how far training examples are."""
    assert data.test is not None
    model.eval()
    held, real = data.test[:MOST].x, data.train[:MOST].x
    drawn = model.sample(len(real), generator(0, "report")).cpu()
    if held.ndim == 2:
        bell = BELL
        both = torch.cat([real, drawn])
        groups = ["data"] * len(real) + ["drawn"] * len(drawn)
        note = f"{len(drawn):,} points of each."
        points = {"x1": both[:, 0], "x2": both[:, 1]}
        leave(folder, "samples", Scatter("Samples", points, ["x1", "x2"], note, groups=groups))
    else:
        bell = 0.5 * float(torch.cdist(real.flatten(1), held.flatten(1)).median())
        rows = {"samples": drawn[: 6 * ACROSS], "test pictures": held[: 2 * ACROSS]}
        sheet(folder, "samples", "Samples beside real pictures", rows.items(), "Nothing is chosen by hand.")
    far, near = discrepancy(drawn, held, bell), discrepancy(real, held, bell)
    return {"samples": f"discrepancy {far:.4f} from the test part; training examples have {near:.4f}"}
