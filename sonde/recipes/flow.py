"""A normalizing flow: the exact log-density of points in the plane, or of small images, and samples."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from ..core.options import Range
from ..core.recipe import Recipe
from ..models.flow import Flow
from ..objectives.density import Density
from ..optim.build import optimizer
from ..optim.schedules import warmup_cosine
from .tools.samples import load_unlabeled, pixel_levels, sample_recipe, shape_of


def recipe(
    data: str = "moons",
    couplings: Annotated[int, Range(1, 100)] | None = None,
    width: Annotated[int, Range(1, 8192)] | None = None,
    batch_size: Annotated[int, Range(least=1)] = 128,
    lr: Annotated[float, Range(above=0)] | None = None,
    steps: Annotated[int, Range(least=1)] = 2000,
    seed: int = 0,
) -> Recipe:
    """Learn a density by maximum likelihood with a normalizing flow; at the end it shows samples next to real ones.

    For images of integer levels it is a log-probability, in nats per image (loss) and in bits per pixel.

    Args:
        data: points in the plane (moons, rings, spirals, ...) or images (digits, mnist, ...) by name, or your own (./mine.py);
            mnist, fashion_mnist and cifar10 need a data folder ($SONDE_DATA) or internet access
        couplings: coupling layers; by default 8 for points, and for images enough to separate any two pixels (12 for the digits)
        width: units of the hidden layers; by default 64 for points and 256 for images
        batch_size: examples per update
        lr: peak learning rate, default 5e-3 for points and 1e-3 for images: linear warm-up, then cosine decay to 0
        steps: updates
    """
    parts = load_unlabeled(data, seed)
    shape = shape_of(parts)
    flat = len(shape) == 1
    return sample_recipe(
        parts,
        steps,
        model=partial(Flow, shape, couplings or (8 if flat else None), width or (64 if flat else 256), levels=pixel_levels(parts)),
        objective=Density(),
        optimizer=optimizer("adam", lr=lr or (5e-3 if flat else 1e-3)),
        schedule=warmup_cosine(),
        clip_norm=1.0 if flat else 100.0,
        batch_size=batch_size,
    )
