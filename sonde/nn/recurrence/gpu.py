"""Fused kernels on a GPU: steps handed to the Triton ops of flash-linear-attention (package `fla`), where it is installed.

    no decay             chunk_linear_attn         read before the write      chunk_rwkv6
    head decay           chunk_simple_gla          delta rule                 chunk_delta_rule
    key (+ head) decay   chunk_gla                 delta rule, head decay     chunk_gated_delta_rule

Short inputs without gradients, as in generation, use the `fused_recurrent` op of the same name.  Everything
else (decay on values, Mamba, float64) has no op there and uses the chunk form.

The mapping is tested against stand-ins of the ops on a CPU; this file has not been run on a GPU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...core.errors import BadInput
from .steps import Steps

SHORT = 64
"""up to this length the recurrent op is faster than chunks"""
FORGOTTEN = -20.0
"""a fraction of exp(-20) is below the rounding of float32; the ops subtract sums of logs and cannot take -inf"""


def why_not(s: Steps) -> str:
    """Why flash-linear-attention cannot run these steps; '' if it can."""
    if s.kind == "hadamard" or s.log_value is not None:
        return f"flash-linear-attention has no op for '{s.name}'"
    if s.kind == "delta" and (s.log_key is not None or s.read == "before"):
        return f"flash-linear-attention has no op for '{s.name}, read {s.read}'"
    if s.v.dtype == torch.float64:
        return "flash-linear-attention does not compute in float64"
    if s.kind == "delta" and s.v.dtype == torch.float32 and not _recurrent(s):
        return "flash-linear-attention trains the delta rule in half precision only"
    try:
        _op(s)
    except (ImportError, AttributeError) as error:
        return f"flash-linear-attention cannot be used: {error}"
    return ""


def run(s: Steps, state: Tensor) -> tuple[Tensor, Tensor]:
    """(out (B, H, L, V), state (B, H, K, V)) of the matching op; the caller adds the bonus of the current step."""
    problem = why_not(s)
    if problem:
        raise BadInput(problem, fix="use form='chunk'")
    # q is scaled already.  The ops lay time before heads.
    out, last = _op(s)(**_arguments(s), scale=1.0, initial_state=state, output_final_state=True)
    return out.transpose(1, 2), last


def _op(s: Steps) -> Any:
    if s.kind == "delta":
        name = "delta_rule" if s.log_head is None else "gated_delta_rule"
    elif s.read == "before":
        name = "rwkv6"
    else:
        name = "gla" if s.log_key is not None else "simple_gla" if s.log_head is not None else "linear_attn"
    from fla import ops

    return getattr(ops, f"{'fused_recurrent' if _recurrent(s) else 'chunk'}_{name}")


def _recurrent(s: Steps) -> bool:
    """Not every `fused_recurrent` op has a backward pass."""
    tensors = (s.q, s.k, s.v, s.log_head, s.log_key, s.beta)
    wanted = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)
    return s.v.shape[2] <= SHORT and not wanted


def _arguments(s: Steps) -> dict[str, Any]:
    """Keyword arguments of the op besides scale and state."""
    s = s.ungroup().by_step()
    q, k, v = (x.to(s.v.dtype).transpose(1, 2).contiguous() for x in (s.q, s.k, s.v) if x is not None)
    head, key, beta = (None if x is None else x.float().transpose(1, 2).contiguous() for x in (s.log_head, s.log_key, s.beta))
    head, key = (None if x is None else x.clamp_min(FORGOTTEN) for x in (head, key))
    rows = key if head is None else head.unsqueeze(-1) if key is None else key + head.unsqueeze(-1)
    if s.read == "before":
        w = torch.zeros_like(k, dtype=torch.float32) if rows is None else rows.expand(k.shape).contiguous()
        return {"r": q, "k": k, "v": v, "w": w, "u": q.new_zeros(q.shape[2:])}
    arguments = {"q": q, "k": k, "v": v}
    if beta is not None:
        return arguments | {"beta": beta} | ({} if head is None else {"g": head})
    if key is not None:
        return arguments | {"gk" if _recurrent(s) else "g": rows}
    return arguments | ({"normalize": False} if head is None else {"g": head})
