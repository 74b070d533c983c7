"""A residual network on CIFAR-10's small color photographs, with flips, shifts and mixtures of images."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal

from ..core.options import Range
from ..core.recipe import Recipe
from ..data import augment
from ..models.resnet import ResNet
from .tools.parts import image_classifier


def recipe(
    blocks: Annotated[int, Range(1, 200)] = 1,
    width: Annotated[int, Range(1, 1024)] = 32,
    shortcut: Literal["projection", "pad"] = "pad",
    activation: Literal["post", "pre"] = "post",
    smoothing: Annotated[float, Range(least=0, below=1)] = 0.05,
    shift: Annotated[int, Range(1, 16)] = 4,
    mixture: Literal["none", "mixup", "cutmix"] = "none",
    alpha: Annotated[float, Range(above=0)] = 0.5,
    batch_size: Annotated[int, Range(least=1)] = 128,
    lr: Annotated[float, Range(above=0)] = 4e-3,
    weight_decay: Annotated[float, Range(least=0)] = 0.05,
    epochs: Annotated[float, Range(above=0)] = 30,
) -> Recipe:
    """A residual network on CIFAR-10, color photographs of 32 x 32 pixels; 3 blocks of width 16 are ResNet-20.

    Args:
        blocks: residual blocks in each of three stages, two convolutions each
        width: channels of the first stage; each further stage has twice as many on a quarter of the pixels
        shortcut: between stages, zeros for missing channels (pad) or a 1 x 1 convolution (projection)
        activation: norm and ReLU after each convolution (post) or before it (pre)
        smoothing: label smoothing: fraction of each target spread over all classes
        shift: largest shift of a training image in pixels
        mixture: train on mixtures of two images: weighted means (mixup), or a rectangle of the other (cutmix)
        alpha: weights are drawn from Beta(alpha, alpha); small values keep most images nearly unchanged
        batch_size: examples per update
        lr: peak learning rate: linear warm-up, then cosine decay to 0
        weight_decay: weight decay coefficient
        epochs: passes over the training data
    """
    mixtures = {"none": (), "mixup": (augment.mixup(alpha),), "cutmix": (augment.cutmix(alpha),)}
    change = augment.compose(augment.shift(shift), augment.flip(), *mixtures[mixture])
    model = partial(ResNet, (blocks,) * 3, 10, width=width, large=False, activation=activation, shortcut=shortcut, zero=True)
    fields: dict[str, Any] = {"augment": change, "batch_size": batch_size, "epochs": epochs}
    # batch norm needs more than a few examples
    return image_classifier(model, "cifar10", lr, weight_decay, smoothing, mixed=True, drop_last=True, **fields)
