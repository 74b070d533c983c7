"""A sine wave with noise, fitted by a multi-layer perceptron under a Gaussian likelihood."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from ..core.options import Range
from ..core.recipe import Recipe
from ..data.catalog import load
from ..models.mlp import MLP
from ..objectives.gaussian import Gaussian
from ..optim.build import optimizer
from ..optim.schedules import cosine


def recipe(
    hidden: Annotated[tuple[int, ...], Range(1, 65536)] = (64, 64),
    activation: str = "tanh",
    learned_variance: bool = False,
    noise: Annotated[float, Range(above=0, most=2)] = 0.1,
    periods: Annotated[float, Range(above=0, most=20)] = 2.0,
    lr: Annotated[float, Range(above=0)] = 5e-3,
    steps: Annotated[int, Range(least=1)] = 2000,
    seed: int = 0,
) -> Recipe:
    """Regression on one input: y = sin(pi * periods * x) + noise.

    Args:
        hidden: widths of the hidden layers
        activation: activation function of the hidden layers
        learned_variance: predict the variance too, as a second output
        noise: standard deviation of the noise on y
        periods: full waves in the interval
        lr: initial learning rate, with cosine decay to 0
        steps: updates
    """
    return Recipe(
        model=partial(MLP, widths=(1, *hidden, 2 if learned_variance else 1), activation=activation),
        data=partial(load, "sine", seed, noise=noise, periods=periods),
        objective=Gaussian(variance="learned" if learned_variance else noise**2),
        optimizer=optimizer("adam", lr=lr),
        schedule=cosine(),
        steps=steps,
    )
