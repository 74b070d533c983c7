"""Activations, y = f(x) or with a gate y = f(x) up, forward and backward in one pass over memory each.

torch takes several passes, and its tanh three times as long as an exponential.  (Its exact GELU cannot be made faster, so it
is not here.)  bfloat16 is computed in float32.  Where the call is observed (a compiler, a transform, a counter of FLOPs)
torch's operations run, with the same result.
"""

from __future__ import annotations

import ctypes
from typing import Any, Literal, final

import torch
from torch import Tensor
from torch.nn import functional as F

from .library import STORED, available, function, is_observed

KernelActivation = Literal["silu", "gelu_tanh"]
LEAST = 1 << 15
"""smallest number of elements for which the kernel is faster"""
_Row = ctypes.c_int64 * 9


def activate(x: Tensor, kind: KernelActivation, up: Tensor | None = None) -> Tensor:
    """f(x), or f(x) * up."""
    if _can_run(x, up):
        return _Activate.apply(x, up, kind)
    return _reference(x, kind, up)


def _can_run(x: Tensor, up: Tensor | None) -> bool:
    """Whether the kernel can run and is faster."""
    return (
        x.dtype in STORED
        and x.numel() >= LEAST
        and x.is_cpu
        and x.is_contiguous()
        and (up is None or (up.dtype == x.dtype and up.shape == x.shape and up.is_contiguous()))
        and not is_observed((x, up))
        and available()
    )


def _call(name: str, kind: KernelActivation, x: Tensor, *others: Tensor | None) -> None:
    """Fills the struct `arguments` of activate.c (x, up, dy, y, dx, dup) and runs a compiled function."""
    numbers = [0 if one is None else one.data_ptr() for one in (x, *others)]
    function(name, x.dtype)(_Row(*numbers, x.numel(), kind == "gelu_tanh", torch.get_num_threads()))


@final
class _Activate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, up: Tensor | None, kind: KernelActivation) -> Tensor:
        ctx.save_for_backward(x, up)
        ctx.kind, y = kind, torch.empty_like(x)
        _call("activate_forward", kind, x, up, None, y, None, None)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, up = ctx.saved_tensors
        if torch.is_grad_enabled():  # double backward: let torch record it
            wanted = [one for one in (x, up) if one is not None and one.requires_grad]
            gradients = iter(torch.autograd.grad(_reference(x, ctx.kind, up), wanted, dy, create_graph=True))
            return *(next(gradients) if one is not None and one.requires_grad else None for one in (x, up)), None
        dy, dx = dy.contiguous(), torch.empty_like(x)
        dup = None if up is None else torch.empty_like(x)
        _call("activate_backward", ctx.kind, x, up, dy, None, dx, dup)
        return dx, dup, None


def _reference(x: Tensor, kind: KernelActivation, up: Tensor | None) -> Tensor:
    """The formula in torch's own operations."""
    f = F.silu(x) if kind == "silu" else F.gelu(x, approximate="tanh")
    return f if up is None else f * up
