"""Progression of diabetes after a year from ten measurements of 442 patients: regression with early stopping."""

from __future__ import annotations

from typing import Annotated

from ..core.options import Range
from ..core.recipe import Recipe
from ..data.catalog import load
from .tools.parts import table_predictor


def recipe(
    hidden: Annotated[tuple[int, ...], Range(1, 65536)] = (32,),
    dropout: Annotated[float, Range(least=0, below=1)] = 0.2,
    lr: Annotated[float, Range(above=0)] = 2e-3,
    weight_decay: Annotated[float, Range(least=0)] = 0.1,
    epochs: Annotated[float, Range(above=0)] = 100,
    patience: Annotated[int, Range(least=0)] = 15,
) -> Recipe:
    """Regression on scikit-learn's diabetes table; predictions are in the units of the table.

    Args:
        hidden: widths of the hidden layers
        dropout: dropout probability of hidden values
        lr: learning rate
        weight_decay: weight decay coefficient
        epochs: passes over the training data at most
        patience: evaluations without a better validation loss before it stops; 0 never stops early
    """
    return table_predictor(load("diabetes"), hidden, dropout, lr, weight_decay, batch_size=32, epochs=epochs, patience=patience)
