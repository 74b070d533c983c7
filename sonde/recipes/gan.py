"""A generative adversarial network of points in the plane, or small images, and its samples."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from ..core.options import Range
from ..core.recipe import Recipe
from ..models import gan
from ..objectives.adversarial import Adversarial
from ..optim.build import optimizer
from ..optim.initialize import initialize
from ..optim.schedules import cosine
from .tools.samples import load_unlabeled, sample_recipe, shape_of


def recipe(
    data: str = "moons",
    latent: Annotated[int, Range(1, 1024)] | None = None,
    width: Annotated[int, Range(1, 1024)] | None = None,
    r1: Annotated[float, Range(least=0)] | None = None,
    smoothing: Annotated[float, Range(least=0, below=0.5)] = 0.0,
    discriminator_steps: Annotated[int, Range(least=1)] = 1,
    batch_size: Annotated[int, Range(least=1)] = 128,
    lr: Annotated[float, Range(above=0)] = 1e-3,
    steps: Annotated[int, Range(least=1)] = 6000,
    seed: int = 0,
) -> Recipe:
    """Train a generator and a discriminator against each other, in turn; at the end it shows samples next to real ones.

    Args:
        data: points in the plane (moons, rings, spirals, ...) or images (digits, mnist, ...) by name, or your own (./mine.py);
            mnist, fashion_mnist and cifar10 need a data folder ($SONDE_DATA) or internet access
        latent: dimension of the noise; by default 4 for points and 32 for images
        width: units of the hidden layers for points (default 64), channels at full resolution for images (default 32)
        r1: weight of the gradient penalty on the discriminator; by default 0 for points and 5 for images, which collapse without it
        smoothing: label smoothing: the target of real examples is 1 - smoothing
        discriminator_steps: steps of the discriminator for each step of the generator
        batch_size: examples per update
        lr: learning rate of both networks, with cosine decay to 0
        steps: updates of both networks together; with --discriminator-steps 2 every third one updates the generator
    """
    parts = load_unlabeled(data, seed)
    shape = shape_of(parts)
    flat = len(shape) == 1
    points = partial(gan.points, shape[0], latent or 4, width or 64, 3)
    return sample_recipe(
        parts,
        steps,
        model=points if flat else partial(gan.images, shape, latent or 32, width or 32),
        objective=Adversarial(smoothing, r1 if r1 is not None else 0.0 if flat else 5.0, discriminator_steps),
        optimizer=optimizer("adam", lr=lr, betas=(0.5, 0.9)),
        schedule=cosine(),
        initialize=initialize("he_normal"),
        clip_norm=1.0 if flat else 0.0,
        batch_size=batch_size,
    )
