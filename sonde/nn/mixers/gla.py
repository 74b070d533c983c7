"""Gated linear attention: each row of the state forgets at its own rate, S_t = Diag(a_t) S_{t-1} + k_t (x) v_t.

Yang et al., Gated Linear Attention Transformers with Hardware-Efficient Training, 2023.
"""

from __future__ import annotations

from typing import Annotated, final

from torch import Tensor, nn
from torch.nn import functional as F

from ...core.options import Range, checked
from ..recurrence import Rule, State, Steps
from ._gates import at_least_float32
from ._mixer import Recurrent
from ._parts import Heads, PositiveWidth, merge, split, width_per_head


def rule(q: Tensor, k: Tensor, v: Tensor, log_a: Tensor) -> Rule:
    """S = Diag(a) S + k (x) v, o = S^T q: q, k, log_a (B, H, L, K), v (B, H, L, V)."""
    return (yield Steps(q, k, v, log_key=log_a))


@final
class GLA(Recurrent):
    """The layer: keys half as wide as values, a gate of low rank, a norm for each head, a swish gate at the output.

    Args:
        width: model dimension
        heads: independent states
        rank: rank of the projection of the forget gate
    """

    @checked
    def __init__(self, width: PositiveWidth = 64, heads: Heads = 4, rank: Annotated[int, Range(least=1)] = 16) -> None:
        super().__init__()
        self.width, self.heads = width, heads
        value = width_per_head(width, heads, "GLA")
        keys = heads * max(value // 2, 1)
        self.q, self.k = nn.Linear(width, keys, bias=False), nn.Linear(width, keys, bias=False)
        self.v, self.gate = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.forget = nn.Sequential(nn.Linear(width, rank, bias=False), nn.Linear(rank, keys))
        self.norm = nn.RMSNorm(value, eps=1e-5)
        self.out = nn.Linear(width, width, bias=False)

    def mix(self, x: Tensor, state: State | None, lengths: Tensor | None) -> tuple[Tensor, State]:
        q, k, v = (split(project(x), self.heads) for project in (self.q, self.k, self.v))
        log_a = split(F.logsigmoid(at_least_float32(self.forget(x))), self.heads) / 16
        o, state = self.recur(rule(q * q.shape[-1] ** -0.5, k, v, log_a), state, lengths)
        return self.out(merge(self.norm(o)) * F.silu(self.gate(x))), state


def tiny() -> GLA:
    """A small layer for the contract tests."""
    return GLA(width=12, heads=3, rank=2)
