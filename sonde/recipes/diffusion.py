"""A diffusion model: learns to remove noise from points in the plane, or small images, and samples new ones."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

from ..core.options import Range
from ..core.recipe import Recipe
from ..models import diffusion
from ..objectives.denoised import Denoised
from ..optim.build import optimizer
from ..optim.schedules import warmup_cosine
from .tools.samples import load_unlabeled, sample_recipe, shape_of


def recipe(
    data: str = "moons",
    times: Annotated[int, Range(1, 10_000)] | None = None,
    schedule: Literal["cosine", "linear"] = "cosine",
    width: Annotated[int, Range(1, 1024)] | None = None,
    batch_size: Annotated[int, Range(least=1)] = 256,
    lr: Annotated[float, Range(above=0)] | None = None,
    steps: Annotated[int, Range(least=1)] = 3000,
    seed: int = 0,
) -> Recipe:
    """Learn to predict the noise in noisy examples; at the end it shows samples next to real ones.

    Args:
        data: points in the plane (moons, rings, spirals, ...) or images (digits, mnist, ...) by name, or your own (./mine.py);
            mnist, fashion_mnist and cifar10 need a data folder ($SONDE_DATA) or internet access
        times: diffusion steps; by default 40 for points and 100 for images
        schedule: noise schedule
        width: units of the hidden layers for points (default 64), channels at full resolution for images (default 32)
        batch_size: examples per update
        lr: peak learning rate, default 1e-2 for points and 2e-3 for images: linear warm-up, then cosine decay to 0
        steps: updates
    """
    parts = load_unlabeled(data, seed)
    shape = shape_of(parts)
    flat = len(shape) == 1
    points = partial(diffusion.points, shape[0], width or 64, 3, times or 40, schedule)
    return sample_recipe(
        parts,
        steps,
        model=points if flat else partial(diffusion.images, shape, width or 32, times or 100, schedule),
        objective=Denoised(),
        optimizer=optimizer("adam", lr=lr or (1e-2 if flat else 2e-3)),
        schedule=warmup_cosine(),
        clip_norm=1.0,
        batch_size=batch_size,
    )
