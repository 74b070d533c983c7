"""Residual networks for images [he2016a, he2016b]: every block adds a correction to its input.

    H(x) = F(x) + skip * shortcut(x)             activation 'post': ReLU after the sum, F = norm conv ReLU norm conv
                                                 activation 'pre': nothing after it,  F = conv ReLU norm conv ReLU norm

(F is read from right to left.)  Where a stage halves the image and doubles the channels, the shortcut is a convolution of side
1 with a norm ('projection'), or has no weights ('pad'): every second pixel, and zeros for the channels that are missing.

    cifar(20)          269,722 parameters; 32, 44, 56, 110
    imagenet(50)    25,557,032 parameters; 18, 34, 101, 152

Parameters have the names of torchvision and timm, so a state dict of one loads into the other.

B batch, C channels, H height, W width
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.batch import Batch
from ..core.errors import BadInput
from ..core.options import Count, Range, checked
from ..nn.images import apply_convolution, apply_norm, run_layers

ActivationOrder = Literal["post", "pre"]
Shortcut = Literal["projection", "pad"]

IMAGENET: dict[int, tuple[tuple[int, ...], bool]] = {
    18: ((2, 2, 2, 2), False),
    34: ((3, 4, 6, 3), False),
    50: ((3, 4, 6, 3), True),
    101: ((3, 4, 23, 3), True),
    152: ((3, 8, 36, 3), True),
}
"""layers -> blocks of each stage, and whether they are bottlenecks"""


def cifar(depth: int = 20, classes: int = 10, shortcut: Shortcut = "pad", **others: object) -> ResNet:
    """The network for images of 32 x 32 with 6n + 2 layers: 20, 32, 44, 56 or 110 in the paper."""
    if depth < 8 or (depth - 2) % 6:
        raise BadInput(f"a ResNet for CIFAR has 6n + 2 layers, not {depth}", where="resnet.cifar", fix="such as 20, 32, 44, 56 or 110")
    return ResNet(((depth - 2) // 6,) * 3, classes, width=16, large=False, shortcut=shortcut, **others)  # type: ignore[arg-type]


@checked
def imagenet(depth: Literal[18, 34, 50, 101, 152] = 50, classes: int = 1000, **others: object) -> ResNet:
    """The network for images of 224 x 224 with 18, 34, 50, 101 or 152 layers."""
    blocks, bottleneck = IMAGENET[depth]
    return ResNet(blocks, classes, bottleneck=bottleneck, **others)  # type: ignore[arg-type]


@final
class ResNet(nn.Module):
    """A residual network for images (B, channels, H, W) of any size: the last maps are averaged.

    Args:
        blocks: residual blocks of each stage; each stage but the first halves the image and doubles the channels
        classes: number of outputs
        channels: of the image
        width: channels of the first stage
        bottleneck: blocks of three convolutions of sides 1, 3, 1, the last with four times the channels; else two of side 3
        large: start with a stride of 2 and pooling, for images of 224 x 224; else with a convolution of side 3, for 32 x 32
        activation: ReLU and norm after each convolution (post), or before it (pre)
        shortcut: what a block adds to where sizes change: projection has weights, pad has none
        skip: factor of the shortcut in every sum
        zero: initialize the last norm (pre: convolution) of each block to zero, so that blocks start as the identity
    """

    @checked
    def __init__(  # noqa: PLR0913  an option for each way in which published residual networks differ
        self,
        blocks: Annotated[tuple[int, ...], Range(least=1)] = (2, 2, 2, 2),
        classes: Count = 1000,
        channels: Count = 3,
        width: Count = 64,
        bottleneck: bool = False,
        large: bool = True,
        activation: ActivationOrder = "post",
        shortcut: Shortcut = "projection",
        skip: float = 1.0,
        zero: bool = False,
    ) -> None:
        super().__init__()
        if not blocks:
            raise _error("there are no blocks", "give one number or more")
        self.channels, self.image = channels, (224, 224) if large else (32, 32)
        """channels of an image, and its usual size; other sizes work too"""
        self.pre = activation == "pre"
        self.conv1 = _conv(channels, width, 7, 2) if large else _conv(channels, width, 3)
        self.bn1 = nn.BatchNorm2d(_widths(width, bottleneck, len(blocks))[-1] if self.pre else width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1) if large else nn.Identity()
        self.stages = [f"layer{i}" for i in range(1, len(blocks) + 1)]
        into = width
        for i, (name, out) in enumerate(zip(self.stages, _widths(width, bottleneck, len(blocks)), strict=True)):
            make = partial(ResidualBlock, out=out, bottleneck=bottleneck, pre=self.pre, shortcut=shortcut, skip=skip)
            rest = [make(out, stride=1) for _ in range(blocks[i] - 1)]
            self.add_module(name, nn.Sequential(make(into, stride=2 if i else 1), *rest))
            into = out
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(into, classes)
        self.halving = ["conv1", "maxpool"] * large + self.stages[1:]
        """layers that halve the image, in order"""
        for part in self.modules():
            if isinstance(part, nn.Conv2d):  # He initialization with fan-out
                nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")
        for part in self.modules():
            if zero and isinstance(part, ResidualBlock):
                nn.init.zeros_(part.last.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.features(x))

    def features(self, x: Tensor) -> Tensor:
        """Input of the last layer: (B, channels of the last stage)."""
        self._check(x)
        x = apply_convolution(self.conv1, x)
        x = self.maxpool(x if self.pre else apply_norm(self.bn1, x, self.relu))
        for name in self.stages:
            x = getattr(self, name)(x)
        return self.avgpool(apply_norm(self.bn1, x, self.relu) if self.pre else x).flatten(1)

    def _check(self, x: Tensor) -> None:
        if x.ndim != 4:
            raise _error(f"conv1 takes (batch, channels, height, width), not {tuple(x.shape)}", "give x four axes")
        if x.shape[1] != self.channels:
            raise _error(f"conv1 takes images with {self.channels} channels, not {x.shape[1]}", f"set channels={x.shape[1]}")
        # A side of n becomes ceil(n / 2), so the layer after i others is given one pixel where n <= 2^i.
        side, largest = min(x.shape[2:]), 1 << max(len(self.halving) - 1, 0)
        if side <= largest and self.halving:
            first = next(name for i, name in enumerate(self.halving) if side <= 1 << i)
            message = f"{first} cannot halve what is left of an image of {x.shape[2]}x{x.shape[3]}, one pixel"
            raise _error(message, f"give images of at least {largest + 1}x{largest + 1}")


@final
class ResidualBlock(nn.Module):
    """F(x) + skip * shortcut(x), of convolutions conv1, conv2 ... with a norm for each."""

    @checked
    def __init__(self, into: int, out: int, stride: int, bottleneck: bool, pre: bool, shortcut: Shortcut, skip: float) -> None:
        super().__init__()
        thin = out // 4
        if bottleneck:
            sizes = [(into, thin, 1, 1), (thin, thin, 3, stride), (thin, out, 1, 1)]
        else:
            sizes = [(into, out, 3, stride), (out, out, 3, 1)]
        for i, (a, b, side, step) in enumerate(sizes, 1):
            self.add_module(f"conv{i}", _conv(a, b, side, step))
            self.add_module(f"bn{i}", nn.BatchNorm2d(a if pre else b))
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if shortcut == "projection" and (stride > 1 or into != out):
            norm = () if pre else (nn.BatchNorm2d(out),)
            self.downsample = nn.Sequential(_conv(into, out, 1, stride), *norm)
        self.pre, self.skip, self.stride, self.extra, self.count = pre, skip, stride, out - into, len(sizes)

    @property
    def last(self) -> nn.Conv2d | nn.BatchNorm2d:
        """The last layer of F."""
        return getattr(self, f"{'conv' if self.pre else 'bn'}{self.count}")

    def forward(self, x: Tensor) -> Tensor:
        pairs = [(getattr(self, f"conv{i}"), getattr(self, f"bn{i}")) for i in range(1, self.count + 1)]
        y = seen = x
        if self.pre:
            for i, (conv, norm) in enumerate(pairs):
                y = apply_norm(norm, y, self.relu)
                seen = y if i == 0 else seen  # a projection reads what the branch reads
                y = apply_convolution(conv, y)
            return y + self._shortcut(x, seen)
        *pairs, (last, last_norm) = pairs
        for conv, norm in pairs:
            y = apply_norm(norm, apply_convolution(conv, y), self.relu)
        return apply_norm(last_norm, apply_convolution(last, y), self.relu, other=self._shortcut(x, x))

    def _shortcut(self, x: Tensor, seen: Tensor) -> Tensor:
        shortcut = subsample_and_pad(x, self.stride, self.extra) if self.downsample is None else run_layers(self.downsample, seen)
        return shortcut if self.skip == 1 else self.skip * shortcut


def subsample_and_pad(x: Tensor, stride: int, extra: int) -> Tensor:
    """Every stride-th pixel, and zeros for channels that are missing; x itself where neither is asked for."""
    if stride > 1:
        x = F.avg_pool2d(x, 1, stride)  # a slice, but one whose gradient keeps the layout of x
    return F.pad(x, (0, 0, 0, 0, 0, extra)) if extra else x


def _widths(width: int, bottleneck: bool, stages: int) -> list[int]:
    """Channels after each stage."""
    return [(4 if bottleneck else 1) * width << i for i in range(stages)]


def _conv(into: int, out: int, side: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(into, out, side, stride, side // 2, bias=False)


def _error(what: str, fix: str = "") -> BadInput:
    return BadInput(what, where="ResNet", fix=fix)


def tiny() -> tuple[ResNet, Batch]:
    """A small working instance with input."""
    rng = torch.Generator().manual_seed(0)
    return ResNet((1, 1), 5, channels=1, width=4, large=False), Batch(x=torch.rand(5, 1, 8, 8, generator=rng))
