"""Semantic segmentation of shapes by a U-Net; ends with the overlap of prediction and truth (IoU)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor

from ..core.batch import Data
from ..core.options import Range
from ..core.recipe import Recipe
from ..data.catalog import load
from ..models.unet import UNet
from ..objectives.categorical import Categorical
from ..optim.build import optimizer
from ..optim.schedules import warmup_cosine
from .tools.final_report import FinalReport
from .tools.sheets import IMAGES_PER_ROW, save_image_rows

AT_ONCE = 64
"""images per evaluation batch"""
COLORS = torch.tensor([[0.15, 0.15, 0.15], [0.95, 0.8, 0.3], [0.25, 0.75, 0.8], [0.9, 0.5, 0.8]])
"""of the background and the three classes; different from those of the images, where color is independent of class"""


def recipe(
    size: Annotated[int, Range(8, 1024)] = 32,
    many: Annotated[int, Range(1, 16)] = 2,
    color: bool = True,
    images: Annotated[int, Range(100, 1_000_000)] = 6000,
    noise: Annotated[float, Range(0, 10)] = 0.1,
    width: Annotated[int, Range(1, 1024)] = 12,
    depth: Annotated[int, Range(1, 8)] = 3,
    batch_size: Annotated[int, Range(least=1)] = 16,
    lr: Annotated[float, Range(above=0)] = 5e-3,
    steps: Annotated[int, Range(least=1)] = 1200,
    seed: int = 0,
) -> Recipe:
    """Segment discs, squares and crosses; at the end IoU on the test part, and a figure of predictions.

    Args:
        size: height and width of an image, a multiple of 2^depth
        many: shapes per image; later ones hide earlier ones
        color: shapes are red, green or blue; in gray it is not visible which of two overlapping shapes is in front
        images: examples in all, 15 % for validation and 15 % for the test
        noise: standard deviation of Gaussian noise on every pixel
        width: channels of the first level; each level below has twice as many
        depth: number of downsamplings by 2
        batch_size: images per update
        lr: peak learning rate: linear warm-up, then cosine decay to 0
        steps: updates
    """
    data = load("shapes", seed=seed, n=images, size=size, many=many, color=color, target="mask", noise=noise)
    return Recipe(
        model=partial(UNet, 3 if color else 1, len(data.classes), width, depth, padded=True, norm=True),
        data=data,
        objective=Categorical(len(data.classes)),
        optimizer=optimizer("adamw", lr=lr, weight_decay=0.01),
        schedule=warmup_cosine(),
        batch_size=batch_size,
        drop_last=True,  # batch norm needs more than a few examples
        steps=steps,
        evaluate_every=max(steps // 5, 1),
        evaluate_batch_size=AT_ONCE,
        channels_last=True,
        callbacks=(FinalReport(partial(report, data)),),
    )


def report(data: Data, model: Any, folder: Path) -> Mapping[str, str]:
    """IoU on the test part, and a figure of some predictions in the run's folder."""
    assert data.test is not None
    predicted, target, x = predict_test(model, data)
    overlap = iou(predicted, target, len(data.classes))
    scores = ", ".join(f"{name} {value:.3f}" for name, value in zip(data.classes, overlap.tolist()))
    panels = {"image": x, "truth": COLORS[target].movedim(-1, 1), "prediction": COLORS[predicted].movedim(-1, 1)}
    rows = [(name, part[start : start + IMAGES_PER_ROW]) for start in (0, IMAGES_PER_ROW) for name, part in panels.items()]
    save_image_rows(
        folder,
        "outlines",
        "Segmented shapes",
        rows,
        "The first images of the test part: predictions are yellow for a disc, turquoise for a square, pink for a cross.",
    )
    return {"IoU": f"{float(overlap.mean()):.4f} ({scores}; {len(data.test)} images of the test part)"}


@torch.no_grad()
def predict_test(model: Any, data: Data) -> tuple[Tensor, Tensor, Tensor]:
    """Predicted class of each pixel of the test part, true class, and images."""
    assert data.test is not None
    model.eval()
    batches = [data.test[torch.arange(i, min(i + AT_ONCE, len(data.test)))] for i in range(0, len(data.test), AT_ONCE)]
    predicted = torch.cat([model(batch.x).argmax(-1) for batch in batches])
    return predicted, torch.cat([batch.y for batch in batches]), torch.cat([batch.x for batch in batches])


def iou(predicted: Tensor, target: Tensor, classes: int) -> Tensor:
    """(classes,) intersection over union of the pixels predicted and labeled as each class."""
    pairs = torch.bincount((target * classes + predicted).flatten(), minlength=classes**2).view(classes, classes).double()
    both = pairs.diagonal()
    return both / (pairs.sum(0) + pairs.sum(1) - both)
