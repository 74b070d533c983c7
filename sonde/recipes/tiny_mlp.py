"""A tiny MLP (2-64-64-1, batch 32) on a smooth surface: the benchmark for the cost of a training step."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from ..core.options import Range
from ..core.recipe import Recipe
from ..data.catalog import load
from ..models.mlp import MLP
from ..objectives.gaussian import Gaussian
from ..optim.build import optimizer


def recipe(
    width: Annotated[int, Range(1, 65536)] = 64,
    batch_size: Annotated[int, Range(least=1)] = 32,
    lr: Annotated[float, Range(above=0)] = 1e-3,
    steps: Annotated[int, Range(least=1)] = 2000,
    seed: int = 0,
) -> Recipe:
    """Two inputs, two hidden layers, one output, fitted to a quadratic bowl with noise under a Gaussian likelihood.

    Args:
        width: units of both hidden layers
        batch_size: examples per update
        lr: learning rate
        steps: updates
    """
    return Recipe(
        model=partial(MLP, widths=(2, width, width, 1)),
        data=partial(load, "bowl", seed, n=4096, noise=0.1),
        objective=Gaussian(),
        optimizer=optimizer("adam", lr=lr),
        batch_size=batch_size,
        steps=steps,
    )
