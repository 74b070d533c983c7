"""Arms of a spiral in the plane, classified by a multi-layer perceptron; seconds."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from ..core.options import Range
from ..core.recipe import Recipe
from ..data.catalog import load
from ..models.mlp import MLP
from ..objectives.categorical import Categorical
from ..optim.build import optimizer
from ..optim.schedules import cosine


def recipe(
    hidden: Annotated[tuple[int, ...], Range(1, 65536)] = (64, 64),
    activation: str = "relu",
    arms: Annotated[int, Range(2, 20)] = 2,
    turns: Annotated[float, Range(above=0, most=5)] = 1.5,
    n: Annotated[int, Range(50, 1_000_000)] = 2000,
    lr: Annotated[float, Range(above=0)] = 5e-3,
    steps: Annotated[int, Range(least=1)] = 1500,
    seed: int = 0,
) -> Recipe:
    """Arms of a spiral in the plane, which are not linearly separable.

    Args:
        hidden: widths of the hidden layers
        activation: activation function of the hidden layers
        arms: arms of the spiral, one class each
        turns: rotations of an arm
        n: examples in all
        lr: initial learning rate, with cosine decay to 0
        steps: updates
    """
    return Recipe(
        model=partial(MLP, widths=(2, *hidden, arms), activation=activation),
        data=partial(load, "spirals", seed, classes=arms, turns=turns, n=n),
        objective=Categorical(classes=arms),
        optimizer=optimizer("adam", lr=lr),
        schedule=cosine(),
        steps=steps,
    )
