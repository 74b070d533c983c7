"""A generative adversarial network: draws points in the plane, or small pictures, and shows its samples."""

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
from .tools.samples import report, shape_of, unlabeled
from .tools.shown import FinalReport


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
    """A generator and a discriminator play against each other, in turn; at the end samples, beside real examples.

    Args:
        data: points in the plane (moons, rings, spirals, ...) or images (digits, mnist, ...) by name, or your own (./mine.py);
            mnist, fashion_mnist and cifar10 need a data folder ($SONDE_DATA) or internet access
        latent: numbers of noise; by default 4 for points and 32 for pictures
        width: of the hidden layers, or channels at the full size; by default 64 or 32
        r1: factor of the penalty on the discriminator's slope; by default 0 for points and 5 for pictures, which else collapse to one
        smoothing: real examples are to be called real with a probability of 1 less this
        discriminator_steps: steps of the discriminator for each step of the generator
        batch_size: examples per update
        lr: learning rate of both networks, with cosine decay to 0
        steps: updates of either network; with discriminator_steps 2 every third is the generator's
    """
    parts = unlabeled(data, seed)
    shape = shape_of(parts)
    flat = len(shape) == 1
    points = partial(gan.points, shape[0], latent or 4, width or 64, 3)
    return Recipe(
        model=points if flat else partial(gan.images, shape, latent or 32, width or 32),
        data=parts,
        objective=Adversarial(smoothing, r1 if r1 is not None else 0.0 if flat else 5.0, discriminator_steps),
        optimizer=optimizer("adam", lr=lr, betas=(0.5, 0.9)),
        schedule=cosine(),
        initialize=initialize("he_normal"),
        clip_norm=1.0 if flat else 0.0,
        batch_size=batch_size,
        steps=steps,
        evaluate_every=max(steps // 10, 1),
        callbacks=(FinalReport(partial(report, parts)),),
    )
