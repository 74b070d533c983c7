"""Shared by generative models: checks of the shape of an example, and initial noise.

B batch; a shape is that of one example: (2,) for points in the plane, (C, H, W) for images.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ..core.errors import BadInput

Shape = tuple[int, ...]


def numbers(shape: Shape, where: str) -> int:
    """Number of values in an example of this shape."""
    if not shape or min(shape) < 1:
        raise BadInput(
            f"shape must be one or more numbers >= 1, not {tuple(shape)}", where=where, fix="write shape=(2,) or shape=(1, 8, 8)"
        )
    return math.prod(shape)


def quarters(shape: Shape, where: str) -> Shape:
    """The shape (C, H / 4, W / 4) of an image that is halved twice."""
    if len(shape) != 3 or min(shape) < 1 or shape[1] % 4 or shape[2] % 4:
        what = f"images must be (channels, height, width) with sides that are multiples of 4, not {tuple(shape)}"
        raise BadInput(what, where=where, fix="crop or pad them")
    return shape[0], shape[1] // 4, shape[2] // 4


def check_shape(x: Tensor, shape: Shape, where: str) -> Tensor:
    """Check that every example of x has this shape, and return x."""
    if tuple(x.shape[1:]) != shape or x.ndim != len(shape) + 1:
        expected, actual = ("x".join(map(str, each)) for each in (shape, x.shape[1:]))
        raise BadInput(
            f"{where} takes examples of {expected}, not {actual or 'single numbers'}", where="x", fix="set shape to that of the data"
        )
    return x


def noise(model: nn.Module, n: int, shape: Shape, generator: torch.Generator | None) -> Tensor:
    """Standard normal noise (n, *shape) on the device and in the dtype of the model."""
    if n < 0:
        raise BadInput(f"cannot draw {n} samples", where="sample")
    like = next(model.parameters())
    return torch.randn(n, *shape, generator=generator, device=like.device, dtype=like.dtype)
