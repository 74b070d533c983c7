"""A multi-layer perceptron on 1,797 real handwritten digits; bundled, seconds."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal

from ..core.options import Range
from ..core.recipe import Recipe
from ..models.mlp import MLP
from ..optim.schedules import cosine
from .tools.parts import image_classifier


def recipe(
    hidden: Annotated[tuple[int, ...], Range(1, 65536)] = (128, 64),
    activation: str = "relu",
    norm: Literal["batch", "layer"] | None = None,
    dropout: Annotated[float, Range(least=0, below=1)] = 0.2,
    batch_size: Annotated[int, Range(least=1)] = 32,
    lr: Annotated[float, Range(above=0)] = 1e-3,
    epochs: Annotated[float, Range(above=0)] = 30,
) -> Recipe:
    """A multi-layer perceptron on scikit-learn's handwritten digits (8 x 8 pixels).

    Args:
        hidden: widths of the hidden layers
        activation: activation function of the hidden layers
        norm: normalize hidden values, over the batch or over the layer
        dropout: dropout probability of hidden values
        batch_size: examples per update
        lr: initial learning rate, with cosine decay to 0
        epochs: passes over the training data
    """
    model = partial(MLP, widths=(64, *hidden, 10), activation=activation, norm=norm, dropout=dropout)
    fields: dict[str, Any] = {"schedule": cosine(), "channels_last": False, "batch_size": batch_size, "epochs": epochs}
    return image_classifier(model, "digits", lr, weight_decay=0.01, **fields)
