"""Linear attention with its denominator: a mean of values weighted by phi(q_t) . phi(k_i), kept in two sums.

    S_t = S_{t-1} + phi(k_t) (x) v_t        z_t = z_{t-1} + phi(k_t)        o_t = S_t^T phi(q_t) / (z_t . phi(q_t))

A positive phi makes the weights positive.  With another one (the identity) the denominator may come near zero: it is
clamped, and `recurrence.record_recurrences` counts how often.  Katharopoulos et al., Transformers are RNNs, 2020.
"""

from __future__ import annotations

from typing import final

from torch import Tensor, nn

from ...core.options import checked
from ..features import Feature, FeatureName, feature
from ..recurrence import Rule, State, Steps, normalize, with_ones
from ._mixer import Recurrent
from ._parts import Heads, PositiveWidth, merge, split, width_per_head


def rule(q: Tensor, k: Tensor, v: Tensor, phi: Feature, floor: float = 1e-6) -> Rule:
    """o = S^T phi(q) / (z . phi(q)), z in one more column of S: q, k (B, H, L, K), v (B, H, L, V).

    Args:
        floor: smallest absolute value of the denominator
    """
    return normalize((yield Steps(phi(q), phi(k), with_ones(v))), floor)


@final
class LinearNorm(Recurrent):
    """The layer: the recurrence between projections with biases, in place of softmax attention.

    Args:
        width: model dimension
        heads: independent states
        feature_map: feature map of queries and keys
    """

    @checked
    def __init__(self, width: PositiveWidth = 64, heads: Heads = 4, feature_map: FeatureName = "elu") -> None:
        super().__init__()
        self.width, self.heads = width, heads
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.phi = feature(feature_map, width_per_head(width, heads, "LinearNorm"))

    def mix(self, x: Tensor, state: State | None, lengths: Tensor | None) -> tuple[Tensor, State]:
        q, k, v = (split(project(x), self.heads) for project in (self.q, self.k, self.v))
        o, state = self.recur(rule(q, k, v, self.phi), state, lengths)
        return self.out(merge(o)), state


def tiny() -> LinearNorm:
    """A small layer for the contract tests."""
    return LinearNorm(width=10, heads=2)
