"""Generative models: points or images without labels, and samples shown at the end beside real ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ...core.batch import Data
from ...core.reading import Scatter
from ...core.recipe import Recipe
from ...core.seeds import generator
from ...data.catalog import load_kind
from ...data.tensors import TensorSource
from ...objectives.information.discrepancy import discrepancy
from .final_report import FinalReport
from .sheets import IMAGES_PER_ROW, save_figure, save_image_rows

MAX_COMPARED = 1000
"""points or images that are compared"""
KERNEL_WIDTH = 0.25
"""of the Gaussian kernel that compares points, in standard deviations of the data"""


def load_unlabeled(name: str, seed: int) -> Data:
    """Points with mean 0 and deviation 1 in each coordinate, or images with values in 0..1."""
    data = load_kind(("points", "images"), name, seed, n=10_000, standardize=False)
    x = data.train[:].x
    if x.dim() > 2:
        return replace(data, task="examples", classes=())  # labels are no target
    parts: dict[str, Any] = {part: TensorSource((source[:].x - x.mean(0)) / x.std(0)) for part, source in data.splits.items()}
    return Data(**parts, name=name)


def shape_of(data: Data) -> tuple[int, ...]:
    """The shape of one example."""
    return tuple(data.train[:1].x.shape[1:])


def pixel_levels(data: Data) -> int:
    """How many values a pixel can have where pixels were whole numbers before they were scaled to 0..1; else 0."""
    to_float = getattr(data.train, "to_float", None)
    return 0 if to_float is None or to_float.scale == 1 else round(1 / to_float.scale) + 1


def sample_recipe(data: Data, steps: int, **fields: Any) -> Recipe:
    """A recipe that is evaluated ten times and ends with samples.

    Args:
        fields: other fields of the recipe
    """
    callbacks = (FinalReport(partial(report, data)),)
    return Recipe(data=data, steps=steps, evaluate_every=max(steps // 10, 1), callbacks=callbacks, **fields)


def report(data: Data, model: Any, folder: Path) -> Mapping[str, str]:
    """Draw samples, and measure how far they are from test examples, and how far training examples are."""
    assert data.test is not None
    model.eval()
    test, real = data.test[:MAX_COMPARED].x, data.train[:MAX_COMPARED].x
    drawn = model.sample(len(real), generator(0, "report")).cpu()
    if test.ndim == 2:
        width = KERNEL_WIDTH
        both = torch.cat([real, drawn])
        groups = ["data"] * len(real) + ["drawn"] * len(drawn)
        note = f"{len(drawn):,} points of each."
        points = {"x1": both[:, 0], "x2": both[:, 1]}
        save_figure(folder, "samples", Scatter("Samples", points, ["x1", "x2"], note, groups=groups))
    else:
        width = 0.5 * float(torch.cdist(real.flatten(1), test.flatten(1)).median())
        rows = {"samples": drawn[: 6 * IMAGES_PER_ROW], "test images": test[: 2 * IMAGES_PER_ROW]}
        save_image_rows(folder, "samples", "Samples and real images", rows.items(), "Nothing is chosen by hand.")
    far, near = discrepancy(drawn, test, width), discrepancy(real, test, width)
    return {"samples": f"discrepancy {far:.4f} from the test part; training examples have {near:.4f}"}
