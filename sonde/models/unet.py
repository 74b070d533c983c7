"""U-Net: a contracting and an expanding path with skip connections at every level; an output for every pixel.

Ronneberger, Fischer and Brox, U-Net, 2015.  Without padding every 3 x 3 convolution removes a border of one pixel, so features
of the contracting path are cropped before they are concatenated, and 572 x 572 pixels give 388 x 388 outputs.

B batch, C channels, H height, W width.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Annotated, final

import torch
from torch import Tensor, nn

from ..core.batch import Batch
from ..core.errors import BadInput
from ..core.options import Range, checked
from ..nn.images import run_layers

LOST = 4
"""pixels of a side that two convolutions without padding take away"""


@final
class UNet(nn.Module):
    """Outputs for every pixel of an image (B, C, H, W), as (B, H, W, classes).

    Args:
        channels: of the image
        classes: number of outputs for each pixel
        width: channels of the first level; each level below has twice as many
        depth: how often the image is halved
        padded: zero padding, so that there is an output for each pixel; otherwise only for pixels whose receptive field
            is inside the image
        norm: normalize over the batch after each convolution
    """

    @checked
    def __init__(
        self,
        channels: Annotated[int, Range(least=1)] = 1,
        classes: Annotated[int, Range(least=1)] = 2,
        width: Annotated[int, Range(least=1)] = 64,
        depth: Annotated[int, Range(1, 16)] = 4,
        padded: bool = False,
        norm: bool = False,
    ) -> None:
        super().__init__()
        self.channels, self.depth, self.padded = channels, depth, padded
        widths = [width * 2**level for level in range(depth + 1)]
        self.down = nn.ModuleList(_pair(before, after, padded, norm) for before, after in zip((channels, *widths), widths))
        self.pool = nn.MaxPool2d(2)
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * each, each, 2, stride=2) for each in widths[:-1])
        self.join = nn.ModuleList(_pair(2 * each, each, padded, norm) for each in widths[:-1])
        self.output = nn.Conv2d(width, classes, 1)
        for part in self.modules():
            if isinstance(part, (nn.Conv2d, nn.ConvTranspose2d)):  # He initialization: ReLU removes half of the variance
                nn.init.kaiming_normal_(part.weight, mode="fan_in", nonlinearity="relu")
                if part.bias is not None:
                    nn.init.zeros_(part.bias)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, C, H, W) -> (B, H', W', classes); H' and W' are those of `output_size`."""
        self._check(x)
        seen: list[Tensor] = []
        for level, convolve in enumerate(self.down):
            x = run_layers(convolve, x if level == 0 else self.pool(x))  # type: ignore[arg-type]
            seen.append(x)
        for level in reversed(range(self.depth)):
            x = self.up[level](x)
            joined = torch.cat([central(seen[level], (x.shape[2], x.shape[3])), x], 1)
            x = run_layers(self.join[level], joined)  # type: ignore[arg-type]
        return self.output(x).permute(0, 2, 3, 1)

    def output_size(self, size: tuple[int, int]) -> tuple[int, int]:
        """Height and width of the output for an image of this height and width."""
        step, lost = 2**self.depth, self.border
        smallest = step if self.padded else min(step, 4)  # without padding the output has 4 pixels more than a multiple of 2^depth
        for side in size:
            if side < lost + smallest or (side - lost - smallest) % step:
                near = lost + smallest + max((side - lost - smallest) // step, 0) * step
                message = f"{self._stuck(side)} of a U-Net of depth {self.depth}{'' if self.padded else ' without padding'}"
                message = f"images of {_size(size)} do not pass {message}"
                raise _error(message, f"use sides of {near} or {near + step} pixels, that is {lost + smallest} + {step} k")
        return size[0] - lost, size[1] - lost

    def _stuck(self, side: int) -> str:
        """The first layer that fails for a side; one that passes the contracting path is used up in the expanding one."""
        for level in range(self.depth + 1):
            side -= 0 if self.padded else LOST
            if side < 1:
                return f"layer 'down.{level}'"
            if level < self.depth:
                if side % 2:
                    return f"the pooling before layer 'down.{level + 1}' ({side} pixels cannot be halved)"
                side //= 2
        level = self.depth - 1
        while (side := 2 * side - LOST) > 0:
            level -= 1
        return f"layer 'join.{level}'"

    @property
    def border(self) -> int:
        """Pixels of a side without output: 4 at the bottom, and each level above doubles them and takes 4 before and 4 after."""
        return 0 if self.padded else 2 * LOST * (2**self.depth - 1) + LOST * 2**self.depth

    def _check(self, x: Tensor) -> None:
        if x.ndim != 4:
            raise _error(f"layer 'down.0' takes (batch, channels, height, width), not {tuple(x.shape)}", "give x four axes")
        if x.shape[1] != self.channels:
            raise _error(f"layer 'down.0' takes images with {self.channels} channels, not {x.shape[1]}", f"set channels={x.shape[1]}")
        self.output_size((x.shape[2], x.shape[3]))


def central(x: Tensor, size: tuple[int, int]) -> Tensor:
    """The middle of the last two axes: of features to concatenate, or of a mask (B, H, W) where only the middle has outputs."""
    top, left = ((have - want) // 2 for have, want in zip(x.shape[-2:], size))
    return x[..., top : top + size[0], left : left + size[1]]


def _pair(before: int, after: int, padded: bool, norm: bool) -> nn.Sequential:
    """Two convolutions with ReLU; a norm's own shift takes over the role of their biases."""
    parts: OrderedDict[str, nn.Module] = OrderedDict()
    for i, channels in enumerate((before, after), 1):
        parts[f"conv{i}"] = nn.Conv2d(channels, after, 3, padding=int(padded), bias=not norm)
        if norm:
            parts[f"norm{i}"] = nn.BatchNorm2d(after)
        parts[f"relu{i}"] = nn.ReLU()
    return nn.Sequential(parts)


def _error(what: str, fix: str) -> BadInput:
    return BadInput(what, where="UNet", fix=fix)


def _size(size: tuple[int, int]) -> str:
    return "x".join(map(str, size))


def tiny() -> tuple[UNet, Batch]:
    """A small working instance with input."""
    rng = torch.Generator().manual_seed(0)
    return UNet(1, 2, width=4, depth=2, padded=True), Batch(x=torch.rand(5, 1, 16, 12, generator=rng))
