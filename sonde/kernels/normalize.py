"""Batch norm of images in training, y = relu(norm(x) + other), forward and backward in one call each.

torch reads the images once for the means, once for the variances, and once each for norm, sum and ReLU; here two passes do
all of it, and two more the backward pass.  Images must be channels last.  Where the call is observed, or images are small,
torch's own operations run, with the same result.  Images of bfloat16 have weights and averages of float32, in which all is computed.

B batch, C channels, H height, W width.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor
from torch.nn import functional as F

from .library import STORED, available, channels_last, compute_dtype, function, is_observed

LEAST = 1 << 18
"""smallest number of elements for which the kernel is faster"""
NARROWEST = 16
"""smallest number of channels: the width of an AVX-512 vector"""
_POINTERS = ("x", "other", "dy", "y", "dx", "dother", "weight", "bias", "kept", "running_mean", "running_variance", "dweight", "dbias")


class _Arguments(ctypes.Structure):
    """The struct `arguments` of normalize.c."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in _POINTERS),
        *((name, ctypes.c_int64) for name in ("pixels", "channels", "kind", "threads")),
        *((name, ctypes.c_double) for name in ("eps", "momentum")),
    ]


@dataclass(frozen=True)
class Running:
    """Running mean and variance of a norm, (C,) each, and how they are updated; a call changes them."""

    mean: Tensor
    variance: Tensor
    momentum: float
    eps: float


def normalize(x: Tensor, weight: Tensor, bias: Tensor, running: Running, relu: bool = False, other: Tensor | None = None) -> Tensor:
    """x, other (B, C, H, W), weight, bias (C,) -> relu(norm(x) + other), `other` and the ReLU optional."""
    if (relu or other is None) and _can_run(x, weight, bias, running, other):
        return _Normalize.apply(x, weight, bias, other, running, relu)
    y = F.batch_norm(x, running.mean, running.variance, weight, bias, True, running.momentum, running.eps)
    y = y if other is None else y.add_(other)
    return y.relu_() if relu else y


def _can_run(x: Tensor, weight: Tensor, bias: Tensor, running: Running, other: Tensor | None) -> bool:
    """Whether the kernel can run and is faster; torch reports shapes that do not match."""
    vectors = weight, bias, running.mean, running.variance
    return (
        not is_observed((x, other, *vectors))
        and x.is_cpu
        and x.dtype in STORED
        and x.dim() == 4
        and x.numel() >= LEAST
        and x.shape[1] >= NARROWEST
        and x.numel() > x.shape[1]
        and x.is_contiguous(memory_format=torch.channels_last)
        and (other is None or (other.shape == x.shape and other.is_contiguous(memory_format=torch.channels_last)))
        and all(one.shape == x.shape[1:2] and one.is_contiguous() for one in vectors)
        and (other is None or (other.dtype == x.dtype and other.is_cpu))
        and all(one.dtype == compute_dtype(x.dtype) and one.is_cpu for one in vectors)
        and available()
    )


def _call(name: str, tensors: dict[str, Tensor | None], kind: int, momentum: float = 0.0, eps: float = 0.0) -> None:
    """Fills the struct and runs a compiled function; the tensors stay alive until it returns."""
    x = tensors["x"]
    assert x is not None
    pointers = {field: one.data_ptr() for field, one in tensors.items() if one is not None}
    sizes = {"pixels": x.numel() // x.shape[1], "channels": x.shape[1], "kind": kind, "threads": torch.get_num_threads()}
    function(name, x.dtype)(ctypes.byref(_Arguments(**pointers, **sizes, eps=eps, momentum=momentum)))


@final
class _Normalize(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, other: Tensor | None, running: Running, relu: bool) -> Tensor:
        y, kept = torch.empty_like(x), weight.new_empty(4, x.shape[1])
        ctx.relu, ctx.kind, ctx.eps = relu, int(relu) + (other is not None), running.eps
        averages = {"running_mean": running.mean, "running_variance": running.variance}
        tensors = {"x": x, "weight": weight, "bias": bias, "other": other, "y": y, "kept": kept, **averages}
        _call("normalize_forward", tensors, ctx.kind, running.momentum, running.eps)
        torch.autograd.graph.increment_version((running.mean, running.variance))
        ctx.save_for_backward(x, weight, bias, kept, None if other is None else y)  # without `other`, x says where y is 0
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        # Hooks may have changed the dtype of what was saved, and the layout.
        x, *vectors, y = ctx.saved_tensors
        x, y = x.to(dy.dtype), None if y is None else y.to(dy.dtype)
        weight, bias, kept = (one.to(compute_dtype(dy.dtype)) for one in vectors)
        again = torch.is_grad_enabled()
        if again or is_observed((dy, x, weight, bias, kept, y)):  # double backward or vmap: torch has to record it
            with torch.enable_grad():
                x, weight, bias = (one if again else one.detach().requires_grad_(one.requires_grad) for one in (x, weight, bias))
                norm = F.batch_norm(x, None, None, weight, bias, True, 0.0, ctx.eps)
                g = dy * ((norm if y is None else y) > 0) if ctx.relu else dy
                wanted = [one for one, needed in zip((x, weight, bias), ctx.needs_input_grad) if needed]
                gradients = iter(torch.autograd.grad(norm, wanted, g, create_graph=again) if wanted else ())
            return *(next(gradients) if needed else None for needed in ctx.needs_input_grad[:3]), None if y is None else g, None, None
        x, y = channels_last(x), None if y is None else channels_last(y)
        outputs = {"dx": torch.empty_like(x), "dweight": torch.empty_like(weight), "dbias": torch.empty_like(bias)}
        dother = None if y is None else torch.empty_like(x)
        inputs = {"x": x, "dy": channels_last(dy), "y": y, "kept": kept, "dother": dother}
        _call("normalize_backward", inputs | outputs, ctx.kind)
        return *outputs.values(), dother, None, None
