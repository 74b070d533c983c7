"""Gated random feature attention: a running mean of values, S_t = g_t S_{t-1} + (1 - g_t) k_t (x) v_t, and z_t likewise.

    o_t = S_t^T q_t / (z_t . q_t)

q and k are random Fourier features, whose products imitate softmax attention.  They may be negative, so the denominator may
come near zero: its absolute value is clamped, in the same way in every form.
Peng et al., Random Feature Attention, 2021.
"""

from __future__ import annotations

from typing import Annotated, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...core.options import Range, checked
from ..features import Fourier
from ..recurrence import Rule, State, Steps, normalize, with_ones
from ._gates import at_least_float32
from ._mixer import Recurrent
from ._parts import Heads, PositiveWidth, merge, split, width_per_head


def rule(q: Tensor, k: Tensor, v: Tensor, log_g: Tensor, floor: float = 1e-6) -> Rule:
    """S = g S + (1 - g) k (x) v, z = g z + (1 - g) k, o = S^T q / (z . q): q, k (B, H, L, K), v (B, H, L, V), log_g (B, H, L).

    Args:
        floor: smallest absolute value of the denominator
    """
    written = -torch.expm1(log_g).unsqueeze(-1) * k
    return normalize((yield Steps(q, written, with_ones(v), log_head=log_g)), floor)


@final
class GatedRFA(Recurrent):
    """The layer: Fourier features of normalized queries and keys, one gate for each head.

    Args:
        width: model dimension
        heads: independent states
        features: random directions for each head; there are twice as many features
    """

    @checked
    def __init__(self, width: PositiveWidth = 64, heads: Heads = 4, features: Annotated[int, Range(least=1)] = 64) -> None:
        super().__init__()
        self.width, self.heads = width, heads
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.forget = nn.Linear(width, heads)
        self.phi = Fourier(heads, width_per_head(width, heads, "GatedRFA"), features)

    def mix(self, x: Tensor, state: State | None, lengths: Tensor | None) -> tuple[Tensor, State]:
        q, k, v = (split(project(x), self.heads) for project in (self.q, self.k, self.v))
        log_g = F.logsigmoid(at_least_float32(self.forget(x))).transpose(1, 2)
        o, state = self.recur(rule(self.phi(q), self.phi(k), v, log_g, floor=1e-3), state, lengths)
        return self.out(merge(o)), state


def tiny() -> GatedRFA:
    """A small layer for the contract tests."""
    return GatedRFA(width=10, heads=2, features=7)
