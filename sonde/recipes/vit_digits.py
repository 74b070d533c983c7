"""A small vision transformer on 1,797 real handwritten digits, bundled, or on other images; beside a linear model."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from ..core.batch import Data
from ..core.options import Range
from ..core.recipe import Recipe
from ..data import augment
from ..data.catalog import load_kind
from ..models.vit import ViT
from .tools.final_report import FinalReport
from .tools.linear import linear_baseline
from .tools.parts import apply_with_chance, image_classifier


def recipe(  # noqa: PLR0913  options of a run, each by name
    data: str = "digits",
    patch: Annotated[int, Range(1, 32)] | None = None,
    width: Annotated[int, Range(1, 4096)] = 64,
    depth: Annotated[int, Range(1, 96)] = 3,
    heads: Annotated[int, Range(1, 64)] = 4,
    pool: Literal["token", "mean"] = "token",
    positions: Literal["learned", "sinusoidal"] = "learned",
    dropout: Annotated[float, Range(least=0, below=1)] = 0.1,
    shifted: Annotated[float, Range(0, 1)] = 0.25,
    batch_size: Annotated[int, Range(least=1)] = 64,
    lr: Annotated[float, Range(above=0)] = 3e-3,
    epochs: Annotated[float, Range(above=0)] = 60,
    seed: int = 0,
) -> Recipe:
    """A vision transformer: patches of an image as tokens, with self-attention; the accuracy of a linear model is reported beside its own.

    Args:
        data: images by name, or your own (./mine.py, or a folder with a folder of images per class);
            digits come with scikit-learn; mnist, fashion_mnist and cifar10 need a data folder ($SONDE_DATA) or internet access
        patch: side of a patch in pixels, by default the largest of 4, 2 and 1 that makes at least 4 patches along each side
        width: model dimension
        depth: blocks
        heads: attention heads per block
        pool: the classifier reads a token of its own, or the mean of all patches
        positions: how the position of a patch is encoded
        dropout: dropout probability
        shifted: fraction of the training images that are shifted, by up to a tenth of their side
        batch_size: examples per update
        lr: peak learning rate: linear warm-up, then cosine decay to 0
        epochs: passes over the training data
    """
    parts = load_kind("images", data, seed)
    channels, *size = parts.train[:1].x.shape[1:]
    side = patch or next(side for side in (4, 2, 1) if side == 1 or all(n % side == 0 and n >= 4 * side for n in size))
    build = partial(ViT, tuple(size), side, width, depth, heads, len(parts.classes), channels, 2.0, pool, positions, dropout)
    return image_classifier(
        build,
        parts,
        lr,
        channels_last=False,
        augment=apply_with_chance(augment.shift(max(min(size) // 10, 1)), shifted) if shifted else None,
        clip_norm=1.0,
        batch_size=batch_size,
        epochs=epochs,
        callbacks=(FinalReport(partial(report, parts)),),
    )


def report(data: Data, model: Any, folder: Path) -> Mapping[str, str]:
    """The test accuracy of logistic regression."""
    return {"linear model": str(linear_baseline(data))}
