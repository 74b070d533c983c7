"""A small vision transformer on 1,797 real handwritten digits, bundled; or on MNIST, Fashion-MNIST or CIFAR-10; beside a linear model."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from ..core.batch import Data
from ..core.options import Range
from ..core.recipe import Recipe
from ..data import augment
from ..data.catalog import load
from ..models.vit import ViT
from .tools.linear import linear
from .tools.parts import apply_with_chance, image_classifier
from .tools.shown import FinalReport

IMAGES = {"digits": (1, 8, 2), "mnist": (1, 28, 4), "fashion_mnist": (1, 28, 4), "cifar10": (3, 32, 4)}
"""channels, side, and a good side of a patch"""


def recipe(  # noqa: PLR0913  options of a run, each by name
    data: Literal["digits", "mnist", "fashion_mnist", "cifar10"] = "digits",
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
    """A vision transformer: patches of an image as tokens, all compared with all; beside its accuracy stands that of a linear model.

    Args:
        data: which images; all but the bundled digits are looked for in the data folder
        patch: side of a patch in pixels, by default 2 for the digits and 4 for the others
        width: model dimension
        depth: blocks
        heads: of the attention in each block
        pool: what the answer is made of: a token of its own, or the mean of all patches
        positions: how patches are told their places
        dropout: dropout probability
        shifted: share of the training images that are moved by up to a tenth of their side
        batch_size: examples per update
        lr: peak learning rate: linear warm-up, then cosine decay to 0
        epochs: passes over the training data
    """
    channels, side, usual = IMAGES[data]
    parts = load(data, seed=seed)
    build = partial(ViT, (side, side), patch or usual, width, depth, heads, 10, channels, 2.0, pool, positions, dropout)
    return image_classifier(
        build,
        parts,
        lr,
        channels_last=False,
        augment=apply_with_chance(augment.shift(max(side // 10, 1)), shifted) if shifted else None,
        clip_norm=1.0,
        batch_size=batch_size,
        epochs=epochs,
        callbacks=(FinalReport(partial(report, parts)),),
    )


def report(data: Data, model: Any, folder: Path) -> Mapping[str, str]:
    """The accuracy of the simple thing."""
    return {"linear model": str(linear(data))}
