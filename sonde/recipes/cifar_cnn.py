"""A CNN on CIFAR-10's small color photographs: four plain convolutions, or more with shortcuts around them; flips and shifts."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from ..core.options import Range
from ..core.recipe import Recipe
from ..data import augment
from ..models.cnn import CNN
from .tools.parts import image_classifier


def recipe(
    channels: Annotated[tuple[int, ...], Range(1, 4096)] = (32, 64, 128, 128),
    hidden: Annotated[int, Range(0, 8192)] = 256,
    dropout: Annotated[float, Range(least=0, below=1)] = 0.3,
    smoothing: Annotated[float, Range(least=0, below=1)] = 0.05,
    shift: Annotated[int, Range(1, 16)] = 3,
    cutout: Annotated[int, Range(0, 32)] = 0,
    cutmix: Annotated[float, Range(least=0)] = 0.0,
    batch_size: Annotated[int, Range(least=1)] = 128,
    lr: Annotated[float, Range(above=0)] = 2e-3,
    residual: bool = False,
    epochs: Annotated[float, Range(above=0)] = 20,
) -> Recipe:
    """A CNN on CIFAR-10, color photographs of 32 x 32 pixels; `cifar_resnet` has the published residual networks.

    Args:
        channels: channels of each convolution; pooling after each one halves the image, so at most five (four with --residual)
        hidden: width of the dense layer; 0 omits it
        dropout: dropout probability before each dense layer
        smoothing: label smoothing: fraction of each target spread over all classes
        shift: largest shift of a training image in pixels
        cutout: side of a square set to zero in each training image; 0 turns it off
        cutmix: a rectangle of each training image comes from another one; its area is drawn from Beta(cutmix, cutmix); 0 turns it off
        batch_size: examples per update
        lr: peak learning rate: linear warm-up, then cosine decay to 0
        residual: after each convolution and its pooling, except the first, add a residual block of two convolutions; pool again at the end
        epochs: passes over the training data
    """
    changes = [augment.shift(shift), augment.flip()]
    if cutout:
        changes.append(augment.cutout(cutout))
    if cutmix:
        changes.append(augment.cutmix(cutmix))
    model = partial(CNN, (3, *channels), 10, hidden, image=(32, 32), dropout=dropout, norm=True, residual=residual)
    fields: dict[str, Any] = {"augment": augment.compose(*changes), "batch_size": batch_size, "epochs": epochs}
    # batch norm needs more than a few examples
    return image_classifier(model, "cifar10", lr, smoothing=smoothing, mixed=bool(cutmix), drop_last=True, **fields)
