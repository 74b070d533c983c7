"""A CNN on Fashion-MNIST (three convolutions with batch norm, dense 128) with shifts and flips; about 93 % in minutes."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from ..core.options import Range
from ..core.recipe import Recipe
from ..data import augment
from ..models.cnn import CNN
from .tools.parts import image_classifier


def recipe(
    width: Annotated[int, Range(1, 1024)] = 32,
    hidden: Annotated[int, Range(0, 8192)] = 128,
    dropout: Annotated[float, Range(least=0, below=1)] = 0.25,
    smoothing: Annotated[float, Range(least=0, below=1)] = 0.1,
    shift: Annotated[int, Range(0, 14)] = 1,
    flip: bool = True,
    batch_size: Annotated[int, Range(least=1)] = 64,
    lr: Annotated[float, Range(above=0)] = 2e-3,
    weight_decay: Annotated[float, Range(least=0)] = 0.05,
    epochs: Annotated[float, Range(above=0)] = 16,
) -> Recipe:
    """A CNN on Fashion-MNIST, 60,000 + 10,000 garments of 28 x 28 pixels.

    Args:
        width: channels of the first convolution; each further one has twice as many
        hidden: width of the dense layer
        dropout: dropout probability before each dense layer
        smoothing: label smoothing: fraction of each target spread over all classes
        shift: largest shift of a training image in pixels
        flip: mirror half of the training images
        batch_size: examples per update
        lr: peak learning rate: linear warm-up, then cosine decay to 0
        weight_decay: weight decay coefficient
        epochs: passes over the training data
    """
    changes = [change for change in (shift and augment.shift(shift), flip and augment.flip()) if change]
    model = partial(CNN, (1, width, 2 * width, 4 * width), 10, hidden, image=(28, 28), dropout=dropout, norm=True)
    fields: dict[str, Any] = {"augment": augment.compose(*changes), "batch_size": batch_size, "epochs": epochs}
    return image_classifier(model, "fashion_mnist", lr, weight_decay, smoothing, **fields)
