"""Exclusive or: the smallest problem that a perceptron cannot solve and one hidden layer can."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from ..core.options import Range
from ..core.recipe import Recipe
from ..data.catalog import load
from ..models.mlp import MLP
from ..objectives.categorical import Categorical
from ..optim.build import optimizer


def recipe(
    hidden: Annotated[tuple[int, ...], Range(1, 65536)] = (8,),
    activation: str = "tanh",
    noise: Annotated[float, Range(0, 2)] = 0.2,
    lr: Annotated[float, Range(above=0)] = 0.02,
    steps: Annotated[int, Range(least=1)] = 400,
    seed: int = 0,
) -> Recipe:
    """Four clusters at the corners of a square; opposite corners share a class.

    Args:
        hidden: widths of the hidden layers; --hidden= (no value) is a perceptron, which cannot learn XOR
        activation: activation function of the hidden layers
        noise: standard deviation of each cluster
        lr: learning rate
        steps: updates
    """
    return Recipe(
        model=partial(MLP, widths=(2, *hidden, 2), activation=activation),
        data=partial(load, "xor", seed, noise=noise),
        objective=Categorical(classes=2),
        optimizer=optimizer("adam", lr=lr),
        steps=steps,
    )
