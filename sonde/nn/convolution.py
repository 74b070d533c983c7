"""Convolution written out: every tap of a kernel is one shifted, weighted copy of the input.

    y_i = sum_u w_u x_{i+u}           `correlate`: cross-correlation, what every layer called convolution computes
    y_i = sum_u w_u x_{i-u}           `convolve(..., flip=True)`: true convolution, with the kernel flipped

with stride s and dilation d at positions i s + u d, the same along any number of axes, summed over the channels of the input.
Layers use torch's kernels; this file shows what they compute, and the matrix of it.

B batch, C channels in, K channels out
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core.errors import BadInput
from ..core.options import Count, Range, checked


@checked
def output_size(size: Count, kernel: Count, stride: Count = 1, padding: Annotated[int, Range(0)] = 0, dilation: Count = 1) -> int:
    """Outputs along one axis: floor((size + 2 padding - dilation (kernel - 1) - 1) / stride) + 1."""
    reach = dilation * (kernel - 1) + 1
    if size + 2 * padding < reach:
        raise BadInput(f"a kernel that reaches over {reach} does not fit into {size + 2 * padding}", fix="use more padding")
    return (size + 2 * padding - reach) // stride + 1


def correlate(x: Tensor, weight: Tensor, *, bias: Tensor | None = None, stride: int = 1, padding: int = 0, dilation: int = 1) -> Tensor:
    """x (B, C, ...) and weight (K, C, ...) -> (B, K, ...), with zero padding and one or more spatial axes."""
    axes = weight.ndim - 2
    if axes < 1 or x.ndim != weight.ndim or x.shape[1] != weight.shape[1]:
        raise BadInput(
            f"x {tuple(x.shape)} does not fit a kernel of {tuple(weight.shape)}",
            where="correlate",
            fix="x is (batch, channels, ...), the kernel (outputs, the same channels, ...)",
        )
    sizes = [output_size(n, k, stride, padding, dilation) for n, k in zip(x.shape[2:], weight.shape[2:], strict=True)]
    x = F.pad(x, (padding, padding) * axes)
    y = x.new_zeros(len(x), len(weight), *sizes)
    for tap in itertools.product(*(range(k) for k in weight.shape[2:])):
        window = [slice(u * dilation, u * dilation + (n - 1) * stride + 1, stride) for u, n in zip(tap, sizes, strict=True)]
        index: tuple[slice | int, ...] = (slice(None), slice(None), *tap)
        y = y + torch.einsum("bc...,kc->bk...", x[(slice(None), slice(None), *window)], weight[index])
    return y if bias is None else y + bias.reshape(-1, *[1] * axes)


def convolve(x: Tensor, weight: Tensor, *, flip: bool = False, **how: Any) -> Tensor:
    """The same, with `flip` the convolution of mathematics."""
    return correlate(x, weight.flip(tuple(range(2, weight.ndim))) if flip else weight, **how)


def matrix(weight: Tensor, size: Sequence[int], *, stride: int = 1, padding: int = 0, dilation: int = 1) -> Tensor:
    """The matrix M with correlate(x, weight).flatten() = M x.flatten() for one x (C, *size): sparse, with tied entries.

    Its transpose is the transposed convolution, and the gradient with respect to x.
    """
    whole = (weight.shape[1], *size)
    units = torch.eye(torch.Size(whole).numel(), dtype=weight.dtype, device=weight.device).reshape(-1, *whole)
    return correlate(units, weight, stride=stride, padding=padding, dilation=dilation).flatten(1).T
