"""3 x 3 convolution of images with padding 1 and its gradients by Winograd's algorithm, with a quarter of the products.

torch sums every window directly; here tiles of 4 x 4 pixels are transformed to six points along each axis, where a convolution
is one product per point, and back (see convolve.c).  Images must be channels last.  The result does not depend on the number
of threads.  Where the call is observed, or the image is small, torch's own operation runs.

Rounding is two to three times torch's where pixels are of about one size.  It is shared by the pixels of a tile: beside a pixel
10,000 times as large as the others these lose four digits, and beside one that is infinite or not a number so are all of its tile.

Images of bfloat16 have weights of float32, gradients of weights included, and their sums are float32.  Where the processor multiplies
pairs of bfloat16, the values at the points are rounded to bfloat16: the error is then two to three times 2^-8.

B batch, C channels in, K channels out, H height, W width.
"""

from __future__ import annotations

import ctypes
from typing import Any, final

import torch
from torch import Tensor
from torch.nn import functional as F

from .library import STORED, autocast, available, channels_last, compute_dtype, function, is_observed

TILE = 4
"""pixels of a side"""
FEWEST = 48
"""smallest number of tiles; with fewer, transforming the weights costs more than it saves"""
NARROWEST = 16
"""smallest number of channels in and out; with fewer, the transforms of tiles dominate"""
WIDEST = 1 << 17
"""largest product of channels in and out; the transformed weights of more do not fit the caches"""
_POINTERS = ("x", "other", "dy", "y", "weight", "bias", "dweight", "u")
_SIZES = ("images", "height", "width", "channels_in", "channels_out", "relu", "threads", "of_out", "of_in", "of_row", "of_column")


class _Arguments(ctypes.Structure):
    """The struct `arguments` of convolve.c."""

    _fields_ = [*((name, ctypes.c_void_p) for name in _POINTERS), *((name, ctypes.c_int64) for name in _SIZES)]


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x (B, C, H, W), weight (K, C, 3, 3), bias (K,) -> (B, K, H, W), zeros beyond the border."""
    x = autocast(x)
    if can_run(x, weight, bias):
        return _Convolve.apply(x, weight, bias)
    return F.conv2d(x, weight, bias, padding=1)


def can_run(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether the kernel can run and is faster; torch reports shapes that do not match."""
    if x.dim() != 4 or weight.dim() != 4 or x.dtype not in STORED or not x.is_cpu or is_observed((x, weight, bias)):
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
        and all(one is None or (one.dtype == compute_dtype(x.dtype) and one.is_cpu) for one in (weight, bias))
        and available()
    )


@final
class PreparedConvolution:
    """A convolution for inference with transformed weights; a sum and a ReLU may follow in the same call."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None, relu: bool = False) -> None:
        out, channels = weight.shape[:2]
        room = -(-out // _STRIP) * _STRIP
        self.u, self.bias, self.out, self.relu = weight.new_empty(36 * channels * room), bias, out, relu
        _call("convolve_windows", {"weight": weight, "u": self.u}, (1, 1, 1, channels, out), weight.stride())

    def __call__(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        """x (B, C, H, W) and other (B, K, H, W) -> (B, K, H, W)."""
        x, y = channels_last(x), _images(x, self.out)
        tensors = {"x": x, "bias": self.bias, "other": None if other is None else channels_last(other), "y": y, "u": self.u}
        _call("convolve_forward", tensors, _sizes(x, y), relu=self.relu)
        return y


_STRIP = 32
"""channels out that a CPU takes at once, at most"""


def _call(
    name: str,
    tensors: dict[str, Tensor | None],
    sizes: tuple[int, ...],
    steps: tuple[int, ...] = (0,) * 4,
    offset: int = 0,
    relu: bool = False,
) -> None:
    """Fills the struct and runs a compiled function; the tensors stay alive until it returns.

    Args:
        sizes: images, height, width, channels in, channels out
        steps: of the weight along channels out, channels in, rows and columns
        offset: where its first window begins
    """
    present = {field: one for field, one in tensors.items() if one is not None}
    first = next(iter(present.values()))
    pointers = {field: one.data_ptr() for field, one in present.items()}
    if offset:
        pointers["weight"] += offset * present["weight"].element_size()
    numbers = dict(zip(_SIZES, (*sizes, relu, torch.get_num_threads(), *steps), strict=True))
    function(name, first.dtype)(ctypes.byref(_Arguments(**pointers, **numbers)))


def _sizes(x: Tensor, y: Tensor) -> tuple[int, ...]:
    return x.shape[0], *x.shape[2:], x.shape[1], y.shape[1]


def _images(like: Tensor, channels: int) -> Tensor:
    """An empty tensor for images of the same size with `channels` channels."""
    size = like.shape[0], channels, *like.shape[2:]
    return torch.empty(size, dtype=like.dtype, device=like.device, memory_format=torch.channels_last)


@final
class _Convolve(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        y = _images(x, weight.shape[0])
        _call("convolve_forward", {"x": x, "weight": weight, "bias": bias, "y": y}, _sizes(x, y), weight.stride())
        ctx.save_for_backward(x, weight)
        ctx.bias = None if bias is None else list(bias.shape)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors  # hooks may have changed their dtype, and their layout
        x, weight = x.to(dy.dtype), weight.to(compute_dtype(dy.dtype))
        if torch.is_grad_enabled() or is_observed((dy, x, weight)):  # double backward or vmap: torch has to record it
            one, weight = [1, 1], weight.to(dy.dtype)
            return torch.ops.aten.convolution_backward(dy, x, weight, ctx.bias, one, one, one, False, [0, 0], 1, list(ctx.needs_input_grad))
        dy, x = channels_last(dy), channels_last(x)
        dx = dweight = dbias = None
        if ctx.needs_input_grad[0]:  # the windows read from their last number to their first, and from out to in
            dx, (of_out, of_in, of_row, of_column) = _images(dy, x.shape[1]), weight.stride()
            turned = of_in, of_out, -of_row, -of_column
            _call("convolve_forward", {"x": dy, "weight": weight, "y": dx}, _sizes(dy, dx), turned, 2 * (of_row + of_column))
        if ctx.needs_input_grad[1]:
            dweight = torch.empty_like(weight)
            _call("convolve_gradient", {"x": x, "dy": dy, "dweight": dweight}, _sizes(x, dy), dweight.stride())
        if ctx.needs_input_grad[2]:
            dbias = dy.sum((0, 2, 3), dtype=weight.dtype)
        return dx, dweight, dbias
