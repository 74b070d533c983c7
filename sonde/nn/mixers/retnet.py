"""Retention: every head forgets at a fixed rate of its own, S_t = gamma S_{t-1} + k_t (x) v_t.

With all positions at once it is O = (Q K^T o D) V with D_tj = gamma^(t - j) for j <= t.  Queries and keys have rotary
positions.  Sun et al., Retentive Network: A Successor to Transformer, 2023.
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...core.errors import BadInput
from ...core.options import checked
from ..recurrence import Rule, State, Steps
from ._mixer import Recurrent
from ._parts import Heads, PositiveWidth, advance_position, merge, rotate, split, width_per_head


def rule(q: Tensor, k: Tensor, v: Tensor, log_gamma: Tensor) -> Rule:
    """S = gamma S + k (x) v, o = S^T q: q, k (B, H, L, K), v (B, H, L, V), log_gamma (H,)."""
    return (yield Steps(q, k, v, log_head=log_gamma))


def log_gammas(heads: int) -> Tensor:
    """(H,) log of gamma_h = 1 - 2^(-5 - h): memories of about 32, 64, 128 .. steps; float64."""
    return torch.log1p(-torch.exp2(-5.0 - torch.arange(heads, dtype=torch.float64)))


@final
class RetNet(Recurrent):
    """The layer: values twice as wide as keys, a norm without weights for each head, a swish gate at the output.

    The state includes the position of each sequence, for the rotation of later tokens.

    Args:
        width: model dimension
        heads: independent states
    """

    @checked
    def __init__(self, width: PositiveWidth = 64, heads: Heads = 4) -> None:
        super().__init__()
        self.width, self.heads = width, heads
        key = width_per_head(width, heads, "RetNet")
        if key % 2:
            raise BadInput(f"{heads} heads of width {key} cannot be rotated in pairs", where="RetNet", fix="make width / heads even")
        self.q, self.k = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.v, self.gate = nn.Linear(width, 2 * width, bias=False), nn.Linear(width, 2 * width, bias=False)
        self.norm = nn.RMSNorm(2 * key, eps=1e-5, elementwise_affine=False)
        self.out = nn.Linear(2 * width, width, bias=False)

    def mix(self, x: Tensor, state: State | None, lengths: Tensor | None) -> tuple[Tensor, State]:
        position = None if state is None else state["position"]
        q, k, v = (split(project(x), self.heads) for project in (self.q, self.k, self.v))
        q, k = (rotate(one, position, interleaved=True) for one in (q, k * k.shape[-1] ** -0.5))
        log_gamma = log_gammas(self.heads).to(x.device, torch.promote_types(v.dtype, torch.float32))
        o, after = self.recur(rule(q, k, v, log_gamma), state, lengths)
        after["position"] = advance_position(position, x, lengths)
        return self.out(merge(self.norm(o)) * F.silu(self.gate(x))), after


def tiny() -> RetNet:
    """A small layer for the contract tests."""
    return RetNet(width=12, heads=3)
