"""Convolutional network for images or series: blocks of convolution and pooling, then dense layers."""

from __future__ import annotations

from collections import OrderedDict
from itertools import count, pairwise
from math import prod
from typing import Annotated, Literal, final

import torch
from torch import Tensor, nn

from ..core.batch import Batch
from ..core.errors import BadInput
from ..core.options import Range, checked
from ..nn.images import run_layers
from ..nn.residual import Residual

LAYERS = {1: (nn.Conv1d, nn.BatchNorm1d, nn.MaxPool1d), 2: (nn.Conv2d, nn.BatchNorm2d, nn.MaxPool2d)}
"""axes -> convolution, norm and pooling"""
NAMES = {1: ("series", "time", "a length", "three axes"), 2: ("images", "height, width", "height and width", "four axes")}


@final
class CNN(nn.Module):
    """A convolutional network for images (B, channels, height, width) or series (B, channels, time).

    Args:
        channels: channels of the image or series, then of each convolution
        classes: number of outputs
        hidden: width of the dense layer before the output; 0 leaves it out
        kernel: side of the convolution window, odd, so that the image keeps its size
        image: height and width, or the length of a series; none takes any size and averages over it instead of flattening
        dropout: dropout probability before each dense layer
        norm: normalize over the batch after each convolution
        pool: side of the pooling window after each convolution; 1 leaves pooling out
        axes: of an example besides its channels: 2 for images, 1 for series
        residual: after every block except the first, add a residual branch of two convolutions; pool once more at the end
    """

    @checked
    def __init__(  # noqa: PLR0913  one option for each part
        self,
        channels: Annotated[tuple[int, ...], Range(least=1)] = (1, 32, 64),
        classes: Annotated[int, Range(least=1)] = 10,
        hidden: Annotated[int, Range(least=0)] = 128,
        kernel: Annotated[int, Range(least=1)] = 3,
        image: Annotated[tuple[int, ...] | None, Range(least=1)] = (28, 28),
        dropout: Annotated[float, Range(least=0, below=1)] = 0.0,
        norm: bool = False,
        pool: Annotated[int, Range(least=1)] = 2,
        axes: Literal[1, 2] = 2,
        residual: bool = False,
    ) -> None:
        super().__init__()
        if len(channels) < 2:
            raise _error(f"channels must be two or more numbers, not {channels}", "give those of the image first")
        if kernel % 2 == 0:
            raise _error(f"kernel must be odd, not {kernel}", f"set kernel={kernel + 1}")
        if image is not None and len(image) != axes:
            raise _error(f"image must be {NAMES[axes][2]}, not {image}", f"for example image={(28,) * axes}")
        self.axes, self.channels, self.image = axes, channels[0], image
        self.least = pool ** (len(channels) - 1 + residual)
        """smallest side of an image that survives all pooling"""
        self.pool = pool
        if self.image is not None:
            self._check_size(self.image)

        pooling = LAYERS[axes][2]
        blocks: OrderedDict[str, nn.Module] = OrderedDict()
        for i, (before, after) in enumerate(pairwise(channels), 1):
            convolution, *norms = _convolution(before, after, kernel, norm, axes)
            blocks[f"conv{i}"] = convolution
            if norms:
                blocks[f"norm{i}"] = norms[0]
            if pool > 1:
                blocks[f"pool{i}"] = pooling(pool)
            # After the pooling: the largest value stays the largest under ReLU, and there are fewer of them here.
            blocks[f"relu{i}"] = nn.ReLU()
            if residual and i > 1:
                two = [part for _ in range(2) for part in (*_convolution(after, after, kernel, norm, axes), nn.ReLU())]
                blocks[f"residual{i}"] = Residual(nn.Sequential(*two))
        if residual and pool > 1:
            blocks[f"pool{len(channels)}"] = pooling(pool)
        self.blocks = nn.Sequential(blocks)

        pixels = 1 if self.image is None else prod(side // self.least for side in self.image)
        dense: OrderedDict[str, nn.Module] = OrderedDict()
        if dropout:
            dense["dropout"] = nn.Dropout(dropout)
        if hidden:
            dense["hidden"] = nn.Linear(channels[-1] * pixels, hidden)
            dense["relu"] = nn.ReLU()
            if dropout:
                dense["dropout_hidden"] = nn.Dropout(dropout)
        dense["output"] = nn.Linear(hidden or channels[-1] * pixels, classes)
        self.dense = nn.Sequential(dense)

    def forward(self, x: Tensor) -> Tensor:
        self._check(x)
        x = run_layers(self.blocks, x)
        return self.dense(x.mean(tuple(range(2, x.ndim))) if self.image is None else x.flatten(1))

    def _check(self, x: Tensor) -> None:
        kind, names, _, axes = NAMES[self.axes]
        if x.ndim != 2 + self.axes:
            raise _error(f"conv1 takes (batch, channels, {names}), not {tuple(x.shape)}", f"give x {axes}")
        size = tuple(x.shape[2:])
        if x.shape[1] != self.channels:
            raise _error(f"conv1 takes {kind} with {self.channels} channels, not {x.shape[1]}", f"set channels to start with {x.shape[1]}")
        self._check_size(size)
        if self.image not in (None, size):
            first = "hidden" if hasattr(self.dense, "hidden") else "output"
            raise _error(
                f"layer '{first}' takes {kind} of {_size(self.image)}, not {_size(size)}", "set image to that size, or to none for any"
            )

    def _check_size(self, size: tuple[int, ...]) -> None:
        if (side := min(size)) < self.least:
            first = next(i for i in count(1) if side < self.pool**i)
            what = f"{'an image' if self.axes == 2 else 'a series'} of {_size(size)} is too small for pool{first}"
            raise _error(what, f"use fewer blocks or a smaller pool, or sides of at least {self.least}")


def _convolution(before: int, after: int, kernel: int, norm: bool, axes: int) -> list[nn.Module]:
    """A convolution that keeps the size, and where wanted a norm."""
    convolution, batch_norm, _ = LAYERS[axes]
    return [convolution(before, after, kernel, padding=kernel // 2), *([batch_norm(after)] if norm else [])]


def _error(what: str, fix: str = "") -> BadInput:
    return BadInput(what, where="CNN", fix=fix)


def _size(image: tuple[int, ...] | None) -> str:
    return "x".join(map(str, image or ()))


def tiny() -> tuple[CNN, Batch]:
    """A small working instance with input."""
    rng = torch.Generator().manual_seed(0)
    return CNN((1, 3, 4), 5, hidden=6, image=(8, 6)), Batch(x=torch.rand(5, 1, 8, 6, generator=rng))
