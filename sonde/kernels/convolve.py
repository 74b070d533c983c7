"""Convolution of images with windows of 3 x 3 that keep their size, and its gradients, in a quarter of the products.

torch sums every window directly; here tiles of 4 x 4 pixels go to six points along each axis, where a convolution is one product
for each, and back (see convolve.c).  Images must be laid out channels last.  Rounding is about twice torch's; the number of
threads changes no bit.  Where somebody watches, or there is little to do, torch's own operation serves.

B batch, C channels in, K channels out, H height, W width.
"""

from __future__ import annotations

import ctypes
from typing import Any, final

import torch
from torch import Tensor
from torch.nn import functional as F

from ._library import SUFFIX, available, function, watched

TILE = 4
"""pixels of a side"""
FEWEST = 48
"""tiles; with fewer, taking the windows to the points costs more than it saves"""
NARROWEST = 16
"""channels in and out; with fewer most of the time goes to taking tiles to the points and back"""
WIDEST = 1 << 17
"""channels in times out; the points of more windows outgrow the caches"""
_POINTERS = ("x", "weight", "bias", "dy", "y", "dweight")
_SIZES = ("images", "height", "width", "channels_in", "channels_out", "threads", "of_out", "of_in", "of_row", "of_column")


class _Arguments(ctypes.Structure):
    """The struct `arguments` of convolve.c."""

    _fields_ = [*((name, ctypes.c_void_p) for name in _POINTERS), *((name, ctypes.c_int64) for name in _SIZES)]


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x (B, C, H, W), weight (K, C, 3, 3), bias (K,) -> (B, K, H, W), zeros beyond the border."""
    if _serves(x, weight, bias):
        return _Convolve.apply(x, weight, bias)
    return F.conv2d(x, weight, bias, padding=1)


def _serves(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether the kernel can run and is faster; what is wrong with tensors that do not fit together is for torch to say."""
    if x.dim() != 4 or weight.dim() != 4 or x.dtype not in SUFFIX or not x.is_cpu or watched((x, weight, bias)):
        return False
    (images, channels, height, width), out = x.shape, weight.shape[0]
    tiles = images * -(-height // TILE) * -(-width // TILE)
    return (
        weight.shape[1:] == (channels, 3, 3)
        and min(channels, out) >= NARROWEST
        and channels * out <= WIDEST
        and tiles >= FEWEST
        and 2 * images * height * width >= tiles * TILE * TILE  # half of the tiles' pixels at least are in the images
        and x.is_contiguous(memory_format=torch.channels_last)
        and (bias is None or (bias.shape == weight.shape[:1] and bias.is_contiguous()))
        and all(one is None or (one.dtype == x.dtype and one.is_cpu) for one in (weight, bias))
        and not torch.is_autocast_enabled("cpu")
        and available()
    )


def _call(name: str, tensors: dict[str, Tensor | None], window: tuple[int, ...], offset: int = 0) -> None:
    """Fills the struct and runs a compiled function; the tensors stay alive until it returns.

    window: steps of the weight along channels out, channels in, rows and columns
    offset: where its first window begins
    """
    x = tensors["x"]
    assert x is not None
    pointers = {field: one.data_ptr() for field, one in tensors.items() if one is not None}
    if offset:
        pointers["weight"] += offset * x.element_size()
    other = tensors.get("y", tensors.get("dy"))
    assert other is not None
    sizes = x.shape[0], *x.shape[2:], x.shape[1], other.shape[1], torch.get_num_threads(), *window
    function(name, x.dtype)(ctypes.byref(_Arguments(**pointers, **dict(zip(_SIZES, sizes, strict=True)))))


def _images(like: Tensor, channels: int) -> Tensor:
    """Room for images of the same size with so many channels."""
    size = like.shape[0], channels, *like.shape[2:]
    return torch.empty(size, dtype=like.dtype, memory_format=torch.channels_last)


@final
class _Convolve(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        y = _images(x, weight.shape[0])
        _call("convolve_forward", {"x": x, "weight": weight, "bias": bias, "y": y}, weight.stride())
        ctx.save_for_backward(x, weight)
        ctx.bias = None if bias is None else list(bias.shape)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        if torch.is_grad_enabled():  # this gradient will be differentiated again: let torch record it
            one = [1, 1]
            return torch.ops.aten.convolution_backward(dy, x, weight, ctx.bias, one, one, one, False, [0, 0], 1, list(ctx.needs_input_grad))
        dy = dy.contiguous(memory_format=torch.channels_last)
        dx = dweight = dbias = None
        if ctx.needs_input_grad[0]:  # the windows read from their last number to their first, and from out to in
            dx, (of_out, of_in, of_row, of_column) = _images(dy, x.shape[1]), weight.stride()
            turned = of_in, of_out, -of_row, -of_column
            _call("convolve_forward", {"x": dy, "weight": weight, "y": dx}, turned, 2 * (of_row + of_column))
        if ctx.needs_input_grad[1]:
            dweight = torch.empty_like(weight)
            _call("convolve_gradient", {"x": x, "dy": dy, "dweight": dweight}, dweight.stride())
        if ctx.needs_input_grad[2]:
            dbias = dy.sum((0, 2, 3))
        return dx, dweight, dbias
