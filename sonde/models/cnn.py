"""Convolutional network: blocks of convolution and pooling, then dense layers."""

from __future__ import annotations

from collections import OrderedDict
from typing import Annotated, final

from torch import Tensor, nn

from ..core.dials import Range
from ..core.errors import BadInput


@final
class CNN(nn.Module):
    """A convolutional network for images (B, channels, height, width).

    channels: of the image, then of each convolution
    classes: numbers at the output
    hidden: width of the dense layer before the output; 0 leaves it out
    kernel: side of the convolution window, odd, so that the image keeps its size
    image: height and width; none takes any size and averages over the image instead of flattening it
    dropout: share of values set to 0 before each dense layer while training
    norm: normalise over the batch after each convolution
    pool: side of the pooling window after each convolution; 1 leaves pooling out
    """

    def __init__(
        self,
        channels: Annotated[tuple[int, ...], Range(least=1)] = (1, 32, 64),
        classes: Annotated[int, Range(least=1)] = 10,
        hidden: Annotated[int, Range(least=0)] = 128,
        kernel: Annotated[int, Range(least=1)] = 3,
        image: Annotated[tuple[int, ...] | None, Range(least=1)] = (28, 28),
        dropout: Annotated[float, Range(least=0, below=1)] = 0.0,
        norm: bool = False,
        pool: Annotated[int, Range(least=1)] = 2,
    ) -> None:
        super().__init__()
        if len(channels) < 2 or min(channels) < 1:
            raise _wrong(f"channels must be two or more numbers >= 1, not {tuple(channels)}", "give those of the image first")
        if kernel < 1 or kernel % 2 == 0:
            raise _wrong(f"kernel must be odd, not {kernel}", f"set kernel={kernel + 1}")
        if image is not None and (len(image) != 2 or min(image) < 1):
            raise _wrong(f"image must be height and width, not {tuple(image)}", "write image=(28, 28)")
        if not 0 <= dropout < 1:
            raise _wrong(f"dropout must be >= 0 and < 1, not {dropout!r}")
        self.channels, self.image = channels[0], None if image is None else tuple(image)
        self.least = pool ** (len(channels) - 1)
        """smallest side of an image that survives all pooling"""
        if self.image is not None and min(self.image) < self.least:
            first = next(i for i in range(1, len(channels)) if min(self.image) < pool**i)
            raise _wrong(f"an image of {_size(self.image)} is too small for pool{first}", "use fewer blocks or a smaller pool")

        blocks: OrderedDict[str, nn.Module] = OrderedDict()
        for i in range(1, len(channels)):
            blocks[f"conv{i}"] = nn.Conv2d(channels[i - 1], channels[i], kernel, padding=kernel // 2)
            if norm:
                blocks[f"norm{i}"] = nn.BatchNorm2d(channels[i])
            if pool > 1:
                blocks[f"pool{i}"] = nn.MaxPool2d(pool)
            # After the pooling: the largest value stays the largest under ReLU, and there are fewer of them here.
            blocks[f"relu{i}"] = nn.ReLU()
        self.blocks = nn.Sequential(blocks)

        places = 1 if self.image is None else (self.image[0] // self.least) * (self.image[1] // self.least)
        dense: OrderedDict[str, nn.Module] = OrderedDict()
        if dropout:
            dense["dropout"] = nn.Dropout(dropout)
        if hidden:
            dense["hidden"] = nn.Linear(channels[-1] * places, hidden)
            dense["relu"] = nn.ReLU()
            if dropout:
                dense["dropout_hidden"] = nn.Dropout(dropout)
        dense["output"] = nn.Linear(hidden or channels[-1] * places, classes)
        self.dense = nn.Sequential(dense)

    def forward(self, x: Tensor) -> Tensor:
        self._check(x)
        x = self.blocks(x)
        return self.dense(x.mean((2, 3)) if self.image is None else x.flatten(1))

    def _check(self, x: Tensor) -> None:
        if x.ndim != 4:
            raise _wrong(f"conv1 takes (batch, channels, height, width), not {tuple(x.shape)}", "give x four axes")
        size = tuple(x.shape[2:])
        if x.shape[1] != self.channels:
            raise _wrong(f"conv1 takes images with {self.channels} channels, not {x.shape[1]}", f"set channels to start with {x.shape[1]}")
        if self.image is None and min(size) < self.least:
            raise _wrong(f"pooling takes images of at least {_size((self.least, self.least))}, not {_size(size)}", "use fewer blocks")
        if self.image not in (None, size):
            first = "hidden" if hasattr(self.dense, "hidden") else "output"
            raise _wrong(
                f"layer '{first}' takes images of {_size(self.image)}, not {_size(size)}", "set image to that size, or to none for any"
            )


def _wrong(what: str, fix: str = "") -> BadInput:
    return BadInput(what, where="CNN", fix=fix)


def _size(image: tuple[int, ...] | None) -> str:
    return "x".join(map(str, image or ()))
