"""Linear attention: the state adds up every key and value and forgets nothing, S_t = S_{t-1} + k_t (x) v_t.

With all positions at once it is O = (Q K^T o M) V, M the lower triangle: attention without its softmax.
Katharopoulos et al., Transformers are RNNs, 2020; a norm of the output instead of a denominator: Qin et al., The Devil in
Linear Transformer, 2022.
"""

from __future__ import annotations

from typing import final

from torch import Tensor, nn

from ...core.options import checked
from ..recurrence import Rule, State, Steps
from ._mixer import Recurrent
from ._parts import Heads, PositiveWidth, merge, split, width_per_head


def rule(q: Tensor, k: Tensor, v: Tensor) -> Rule:
    """S = S + k (x) v, o = S^T q: q, k (B, H, L, K), v (B, H, L, V)."""
    return (yield Steps(q, k, v))


@final
class Linear(Recurrent):
    """The layer: plain queries and keys, and a norm for each head, because the state grows with the length.

    Args:
        width: model dimension
        heads: independent states
    """

    @checked
    def __init__(self, width: PositiveWidth = 64, heads: Heads = 4) -> None:
        super().__init__()
        self.width, self.heads = width, heads
        self.q, self.k, self.v, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.norm = nn.RMSNorm(width_per_head(width, heads, "Linear"), eps=1e-5)

    def mix(self, x: Tensor, state: State | None, lengths: Tensor | None) -> tuple[Tensor, State]:
        q, k, v = (split(project(x), self.heads) for project in (self.q, self.k, self.v))
        o, state = self.recur(rule(q * q.shape[-1] ** -0.5, k, v), state, lengths)
        return self.out(merge(self.norm(o))), state


def tiny() -> Linear:
    """A small layer for the contract tests."""
    return Linear(width=10, heads=2)
