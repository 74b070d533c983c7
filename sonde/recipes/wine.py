"""Classify the grower of a wine from 13 chemical measurements: 178 rows, three classes."""

from __future__ import annotations

from typing import Annotated

from ..core.options import Range
from ..core.recipe import Recipe
from ..data.catalog import load
from .tools.parts import table_predictor


def recipe(
    hidden: Annotated[tuple[int, ...], Range(1, 65536)] = (32,),
    dropout: Annotated[float, Range(least=0, below=1)] = 0.2,
    lr: Annotated[float, Range(above=0)] = 5e-3,
    weight_decay: Annotated[float, Range(least=0)] = 0.05,
    epochs: Annotated[float, Range(above=0)] = 40,
) -> Recipe:
    """Classification of scikit-learn's wine table.

    Args:
        hidden: widths of the hidden layers
        dropout: dropout probability of hidden values
        lr: learning rate
        weight_decay: weight decay coefficient
        epochs: passes over the training data
    """
    return table_predictor(load("wine"), hidden, dropout, lr, weight_decay, batch_size=16, epochs=epochs)
