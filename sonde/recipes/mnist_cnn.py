"""A CNN on MNIST's handwritten digits (three convolutions with batch norm, dense 128) with small shifts; above 99.3 %."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from ..core.options import Range
from ..core.recipe import Recipe
from ..data.catalog import load
from . import fashion_cnn


def recipe(
    width: Annotated[int, Range(1, 1024)] = 32,
    hidden: Annotated[int, Range(0, 8192)] = 128,
    dropout: Annotated[float, Range(least=0, below=1)] = 0.25,
    shift: Annotated[int, Range(0, 14)] = 2,
    batch_size: Annotated[int, Range(least=1)] = 64,
    lr: Annotated[float, Range(above=0)] = 2e-3,
    epochs: Annotated[float, Range(above=0)] = 5,
) -> Recipe:
    """A CNN on MNIST, 60,000 + 10,000 digits of 28 x 28 pixels; without flips, which change a digit.

    Args:
        width: channels of the first convolution; each further one has twice as many
        hidden: width of the dense layer
        dropout: dropout probability before each dense layer
        shift: largest shift of a training image in pixels
        batch_size: examples per update
        lr: peak learning rate: linear warm-up, then cosine decay to 0
        epochs: passes over the training data
    """
    base = fashion_cnn.recipe(width, hidden, dropout, smoothing=0, shift=shift, flip=False, batch_size=batch_size, lr=lr, epochs=epochs)
    return base.replace(data=partial(load, "mnist"))
