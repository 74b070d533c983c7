"""Decaying fast weights: rows and columns of the state forget at rates of their own, S_t = (a_t (x) b_t) o S_{t-1} + k_t (x) v_t.

No feature map and no denominator.  Mao, Fine-Tuning Pre-trained Transformers into Decaying Fast Weights, 2022.
"""

from __future__ import annotations

from typing import Annotated, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...core.options import Range, checked
from ..recurrence import Rule, State, Steps
from ._gates import at_least_float32
from ._mixer import Recurrent
from ._parts import Heads, PositiveWidth, merge, split, width_per_head


def rule(q: Tensor, k: Tensor, v: Tensor, log_a: Tensor, log_b: Tensor) -> Rule:
    """S = (a (x) b) o S + k (x) v, o = S^T q: q, k, log_a (B, H, L, K), v, log_b (B, H, L, V)."""
    return (yield Steps(q, k, v, log_key=log_a, log_value=log_b))


@final
class DFW(Recurrent):
    """The layer: projections, and two forget gates, initialized uniformly between 0 and 1.

    Args:
        width: model dimension
        heads: independent states
        keys: width of a key; None is the width of a value
    """

    @checked
    def __init__(self, width: PositiveWidth = 64, heads: Heads = 4, keys: Annotated[int | None, Range(least=1)] = None) -> None:
        super().__init__()
        head = width_per_head(width, heads, "DFW")
        self.width, self.heads = width, heads
        self.q, self.k, self.forget_key = (nn.Linear(width, heads * (keys or head)) for _ in range(3))
        self.v, self.forget_value, self.out = (nn.Linear(width, width) for _ in range(3))
        for forget in (self.forget_key, self.forget_value):
            n = forget.out_features
            forget.bias.data = torch.rand(n).logit(1 / (n + 1))  # uniform gates, but not at the ends, where gradients vanish

    def mix(self, x: Tensor, state: State | None, lengths: Tensor | None) -> tuple[Tensor, State]:
        q, k, v = (split(project(x), self.heads) for project in (self.q, self.k, self.v))
        log_a, log_b = (split(F.logsigmoid(at_least_float32(forget(x))), self.heads) for forget in (self.forget_key, self.forget_value))
        o, state = self.recur(rule(q * q.shape[-1] ** -0.5, k, v, log_a, log_b), state, lengths)
        return self.out(merge(o)), state


def tiny() -> DFW:
    """A small layer for the contract tests."""
    return DFW(width=10, heads=2, keys=3)
