"""Your own images: a folder with one folder of images per class."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Annotated

from ..core.errors import BadInput
from ..core.options import Range
from ..core.recipe import Recipe
from ..data import augment
from ..data.catalog import load
from ..models.cnn import CNN
from .tools.parts import image_classifier

UPDATES = 600
"""default minimum of updates: with fewer a network hardly trains, however few the images"""


def recipe(
    data: Path,
    size: Annotated[int, Range(8, 1024)] = 32,
    channels: Annotated[tuple[int, ...], Range(1, 4096)] = (32, 64, 128),
    hidden: Annotated[int, Range(0, 8192)] = 128,
    dropout: Annotated[float, Range(least=0, below=1)] = 0.3,
    flip: bool = True,
    skip_corrupt: bool = False,
    batch_size: Annotated[int, Range(least=1)] = 64,
    lr: Annotated[float, Range(above=0)] = 1e-3,
    epochs: Annotated[float, Range(above=0)] | None = None,
) -> Recipe:
    """A CNN on your own images: FOLDER/CLASS/*.png (or .jpg, ...), or such class folders inside train/ and test/.

    Args:
        data: folder that holds the class folders
        size: height and width that all images are resized to
        channels: channels of each convolution
        hidden: width of the dense layer
        dropout: dropout probability before each dense layer
        flip: mirror half of the training images; turn off for letters and digits
        skip_corrupt: leave out images that cannot be read, and count them
        batch_size: examples per update
        lr: peak learning rate: linear warm-up, then cosine decay to 0
        epochs: passes over the training data; by default 20, or more where images are few, for at least 600 updates
    """
    if data.is_file():
        raise BadInput(f"'{data}' is a file", where="images", fix="give a folder that has a folder of images for each class")
    dataset = load(data, size=size, skip_corrupt=skip_corrupt)
    colors = dataset.train[:1].x.shape[1]
    shift = augment.shift(max(1, size // 16))
    return image_classifier(
        partial(CNN, (colors, *channels), len(dataset.classes), hidden, image=(size, size), dropout=dropout),
        dataset,
        lr,
        augment=augment.compose(shift, augment.flip()) if flip else shift,
        batch_size=batch_size,
        epochs=epochs or max(20, UPDATES / math.ceil(len(dataset.train) / batch_size)),
    )
