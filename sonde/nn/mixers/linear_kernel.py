"""Linear attention of features: S_t = S_{t-1} + phi(k_t) (x) v_t, read with phi(q_t).

With phi the identity it is `linear`; with a polynomial phi each pair weighs (q . k)^2; `linear_norm` divides by the sum of
the weights.  Katharopoulos et al., Transformers are RNNs, 2020; Schlag et al., Linear Transformers Are Secretly Fast Weight
Programmers, 2021.
"""

from __future__ import annotations

from typing import final

from torch import Tensor, nn

from ...core.options import checked
from ..features import Feature, FeatureName, feature
from ..recurrence import Rule, State
from . import linear
from ._mixer import Recurrent
from ._parts import Heads, PositiveWidth, merge, split, width_per_head


def rule(q: Tensor, k: Tensor, v: Tensor, phi: Feature) -> Rule:
    """S = S + phi(k) (x) v, o = S^T phi(q): q, k (B, H, L, K), v (B, H, L, V)."""
    return (yield from linear.rule(phi(q), phi(k), v))


@final
class LinearKernel(Recurrent):
    """The layer: features of queries and keys, and a norm for each head instead of a denominator.

    Args:
        width: model dimension
        heads: independent states
        feature_map: feature map of queries and keys
    """

    @checked
    def __init__(self, width: PositiveWidth = 64, heads: Heads = 4, feature_map: FeatureName = "elu") -> None:
        super().__init__()
        self.width, self.heads = width, heads
        head = width_per_head(width, heads, "LinearKernel")
        self.q, self.k, self.v, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.phi = feature(feature_map, head)
        self.norm = nn.RMSNorm(head, eps=1e-5)

    def mix(self, x: Tensor, state: State | None, lengths: Tensor | None) -> tuple[Tensor, State]:
        q, k, v = (split(project(x), self.heads) for project in (self.q, self.k, self.v))
        o, state = self.recur(rule(q, k, v, self.phi), state, lengths)
        return self.out(merge(self.norm(o))), state


def tiny() -> LinearKernel:
    """A small layer for the contract tests."""
    return LinearKernel(width=10, heads=2, feature_map="dpfp")
