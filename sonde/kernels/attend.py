"""Exact softmax attention, o_i = sum_j softmax_j(scale q_i . k_j) v_j, forward and backward, for short sequences.

torch's own kernel works in blocks as large as such a sequence, and computes masked pairs too.  Where the call is observed (a
compiler, a transform, a counter of FLOPs) torch's kernel runs, with the same result.  bfloat16 is computed in float32.

B batch, H heads, G key groups (head h uses k and v of group h // (H/G)), T queries, N keys, K key width, V value width.
"""

from __future__ import annotations

import ctypes
import struct
from typing import Any, final

import torch
from torch import Tensor
from torch.nn import functional as F

from .library import STORED, autocast, available, compute_dtype, function, is_observed, rows

LONGEST = 2048
"""largest number of keys; beyond it the keys of a task do not fit the cache"""
LEAST = 3 << 17
"""smallest number of products for which the kernel is faster"""
_FIELDS = ("q", "k", "v", "out", "dout", "dq", "dk", "dv")
_Row = ctypes.c_int64 * (4 * len(_FIELDS) + 11)


def attend(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool = False) -> Tensor:
    """q [B, H, T, K], k [B, G, N, K], v [B, G, N, V] -> [B, H, T, V]; `causal` lets query i see the keys up to i."""
    q, k, v = autocast(q), autocast(k), autocast(v)
    if _can_run(q, k, v):
        return _Attend.apply(q, k, v, scale, causal)
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale, enable_gqa=k.shape[1] < q.shape[1])


def _can_run(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether the kernel can run and is faster; torch reports shapes that do not match."""
    return (
        not is_observed((q, k, v))
        and q.is_cpu
        and q.dtype in STORED
        and q.dtype == k.dtype == v.dtype
        and q.dim() == k.dim() == v.dim() == 4
        and q.numel() > 0
        and v.numel() > 0
        and (len(k), k.shape[3], k.shape[:3]) == (len(q), q.shape[3], v.shape[:3])
        and q.shape[1] % k.shape[1] == 0
        and k.shape[2] <= LONGEST
        and len(k) * k.shape[1] >= torch.get_num_threads()
        and q.numel() * k.shape[2] >= LEAST
        and available()
    )


def _call(name: str, tensors: dict[str, Tensor], log_sum: Tensor, scale: float, causal: bool) -> None:
    """Fills the struct `arguments` of attend.c and runs a compiled function."""
    (B, H, T, K), (G, N, V) = tensors["q"].shape, tensors["v"].shape[1:]
    held, numbers = {field: rows(x) for field, x in tensors.items()}, list[int]()
    for field in _FIELDS:
        x = held.get(field)
        numbers += (0, 0, 0, 0) if x is None else (x.data_ptr(), *x.stride()[:3])
    bits = struct.unpack("q", struct.pack("d", scale))[0]
    numbers += (log_sum.data_ptr(), B, G, H // G, T, N, K, V, int(causal), torch.get_num_threads(), bits)
    function(name, tensors["q"].dtype)(_Row(*numbers))


def _empty(like: Tensor, width: int) -> Tensor:
    """An empty [B, H, T, width] in the memory order [B, T, H, width], so that merging heads is free."""
    B, H, T, _ = like.shape
    return like.new_empty(B, T, H, width).transpose(1, 2)


@final
class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> Tensor:
        out, log_sum = _empty(q, v.shape[-1]), q.new_empty(q.shape[:3], dtype=compute_dtype(q.dtype))
        ctx.save_for_backward(q, k, v, log_sum)
        ctx.scale, ctx.causal = scale, causal
        _call("attend_forward", {"q": q, "k": k, "v": v, "out": out}, log_sum, scale, causal)
        return out

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, log_sum = ctx.saved_tensors
        if torch.is_grad_enabled():  # double backward: let torch record it
            wanted = [x for x in (q, k, v) if x.requires_grad]
            gradients = iter(torch.autograd.grad(_reference(q, k, v, ctx.scale, ctx.causal), wanted, dout, create_graph=True))
            return *(next(gradients) if x.requires_grad else None for x in (q, k, v)), None, None
        outputs = {"dq": _empty(q, q.shape[-1]), "dk": _empty(k, k.shape[-1]), "dv": _empty(v, v.shape[-1])}
        _call("attend_backward", {"q": q, "k": k, "v": v, "dout": dout} | outputs, log_sum, ctx.scale, ctx.causal)
        return *outputs.values(), None, None


def _reference(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> Tensor:
    """The formula in operations that torch differentiates any number of times."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = scale * q @ k.mT
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[2:], dtype=torch.bool).triu(1), float("-inf"))
    return scores.softmax(-1) @ v
