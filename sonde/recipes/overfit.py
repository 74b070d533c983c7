"""Thirty noisy points of a sine wave and a net large enough to memorize them; every regularizer is an option."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Annotated, Literal

from ..core.batch import Data
from ..core.errors import BadInput
from ..core.options import Range
from ..core.recipe import Recipe
from ..data import augment
from ..data.catalog import load
from ..data.tensors import TensorSource
from ..models.mlp import MLP
from ..objectives.gaussian import Gaussian
from ..optim.build import Optimizer, optimizer

RULES: dict[str, tuple[str, float, dict]] = {
    "none": ("adam", 0.0, {}),
    "l2": ("adam", 0.001, {}),
    "decoupled": ("adamw", 0.5, {}),
    "l1": ("proximal", 0.02, {"adaptive": True}),
}
"""penalty -> optimizer, default strength, options"""


def recipe(
    points: Annotated[int, Range(15, 100_000)] = 30,
    noise: Annotated[float, Range(above=0, most=2)] = 0.3,
    width: Annotated[int, Range(1, 4096)] = 128,
    penalty: Literal["none", "l2", "decoupled", "l1"] = "none",
    strength: Annotated[float, Range(above=0)] | None = None,
    dropout: Annotated[float, Range(least=0, below=1)] = 0.0,
    jitter: Annotated[float, Range(least=0, most=1)] = 0.0,
    patience: Annotated[int, Range(least=0)] = 0,
    lr: Annotated[float, Range(above=0)] = 5e-3,
    steps: Annotated[int, Range(least=1)] = 1500,
    seed: int = 0,
) -> Recipe:
    """Regression on few points: without regularization the training error goes to 0 and the validation error rises.

    Args:
        points: training points; validation and test have 1.5 times as many each
        noise: standard deviation of the noise on y
        width: units of both hidden layers
        penalty: on the weights: squares in the loss (l2), decoupled weight decay (decoupled), or absolute values with exact zeros (l1)
        strength: weight of the penalty; by default 0.001 for l2, 0.5 for decoupled and 0.02 for l1
        dropout: dropout probability of hidden values
        jitter: augmentation: standard deviation of the noise on x, drawn anew for each batch
        patience: evaluations without a better validation loss before it stops and restores the best weights; 0 never stops
        lr: learning rate
        steps: updates at most
    """
    return Recipe(
        model=partial(MLP, widths=(1, width, width, 1), activation="tanh", dropout=dropout),
        data=partial(_few_points, points, noise, seed),
        objective=Gaussian(),
        optimizer=_rule(penalty, strength, lr),
        augment=augment.noise(jitter) if jitter else None,
        patience=patience,
        batch_size=points,
        steps=steps,
        evaluate_every=max(steps // 60, 1),
    )


def _rule(penalty: str, strength: float | None, lr: float) -> Optimizer:
    name, usual, options = RULES[penalty]
    if penalty == "none" and strength is not None:
        raise BadInput("strength has no effect without a penalty", where="recipe 'overfit'", fix="add --penalty l2, decoupled or l1")
    return optimizer(name, lr=lr, weight_decay=usual if strength is None else strength, **options)


def _few_points(points: int, noise: float, seed: int) -> Data:
    """Few points to train on and many to evaluate on: only the training part is cut."""
    whole = load("sine", seed, n=10 * points, noise=noise)
    first = whole.train[:points]
    return replace(whole, train=TensorSource(first.x, first.y))
