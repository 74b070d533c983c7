"""A small CNN on 1,797 real handwritten digits; bundled, about 99 % in seconds."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from ..core.options import Range
from ..core.recipe import Recipe
from ..data import augment
from ..models.cnn import CNN
from ..optim.schedules import cosine
from .tools.parts import apply_with_chance, image_classifier


def recipe(
    width: Annotated[int, Range(1, 1024)] = 32,
    hidden: Annotated[int, Range(0, 8192)] = 128,
    dropout: Annotated[float, Range(least=0, below=1)] = 0.3,
    shift: Annotated[int, Range(1, 4)] = 1,
    shifted: Annotated[float, Range(0, 1)] = 0.25,
    batch_size: Annotated[int, Range(least=1)] = 64,
    lr: Annotated[float, Range(above=0)] = 2e-3,
    weight_decay: Annotated[float, Range(least=0)] = 0.01,
    epochs: Annotated[float, Range(above=0)] = 60,
) -> Recipe:
    """A small CNN on scikit-learn's handwritten digits (8 x 8 pixels).

    Args:
        width: channels of the first convolution; the second has twice as many
        hidden: width of the dense layer
        dropout: dropout probability before each dense layer
        shift: largest shift of a training image in pixels
        shifted: fraction of the training images that are shifted; the digits fill their 8 x 8 pixels, so a shift cuts an edge off
        batch_size: examples per update
        lr: initial learning rate, with cosine decay to 0
        weight_decay: weight decay coefficient
        epochs: passes over the training data
    """
    model = partial(CNN, channels=(1, width, 2 * width), classes=10, hidden=hidden, image=(8, 8), dropout=dropout)
    change = apply_with_chance(augment.shift(shift), shifted) if shifted else None
    return image_classifier(model, "digits", lr, weight_decay, schedule=cosine(), augment=change, batch_size=batch_size, epochs=epochs)
