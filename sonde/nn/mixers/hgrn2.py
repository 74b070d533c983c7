"""Gated linear recurrence with the complement of the forget gate as key: S_t = Diag(a_t) S_{t-1} + (1 - a_t) (x) v_t.

It is `gla` with k = 1 - a: what a row of the state loses, the new value fills.  Gates have a lower bound that rises from
layer to layer, 0 in the first, so that deeper layers remember longer.
Qin et al., HGRN2: Gated Linear RNNs with State Expansion, 2024.
"""

from __future__ import annotations

from math import log, log1p
from typing import Annotated, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...core.options import Range, checked
from ..recurrence import Rule, State
from . import gla
from ._gates import at_least_float32
from ._mixer import Recurrent
from ._parts import Heads, PositiveWidth, merge, split, width_per_head


def rule(q: Tensor, v: Tensor, log_a: Tensor) -> Rule:
    """S = Diag(a) S + (1 - a) (x) v, o = S^T q: q, log_a (B, H, L, K), v (B, H, L, V)."""
    return (yield from gla.rule(q, -torch.expm1(log_a), v, log_a))


@final
class HGRN2(Recurrent):
    """The layer: swish on queries, gates above a lower bound, a norm over the whole width.

    Args:
        width: model dimension
        heads: independent states
        bound: lower bound of the forget gates; 0 in the first layer, nearer to 1 in deeper ones
    """

    @checked
    def __init__(self, width: PositiveWidth = 64, heads: Heads = 4, bound: Annotated[float, Range(least=0, below=1)] = 0.0) -> None:
        super().__init__()
        width_per_head(width, heads, "HGRN2")
        self.width, self.heads, self.bound = width, heads, bound
        self.q, self.forget, self.v, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.norm = nn.RMSNorm(width, eps=1e-5)

    def mix(self, x: Tensor, state: State | None, lengths: Tensor | None) -> tuple[Tensor, State]:
        log_a = F.logsigmoid(at_least_float32(self.forget(x)))
        if self.bound:
            log_a = torch.logaddexp(log_a.new_tensor(log(self.bound)), log1p(-self.bound) + log_a)
        q, v, log_a = (split(one, self.heads) for one in (F.silu(self.q(x)), self.v(x), log_a))
        o, state = self.recur(rule(q * q.shape[-1] ** -0.5, v, log_a), state, lengths)
        return self.out(self.norm(merge(o))), state


def tiny() -> HGRN2:
    """A small layer for the contract tests."""
    return HGRN2(width=10, heads=2, bound=0.3)
