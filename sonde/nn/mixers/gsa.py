"""Gated slot attention: tokens are written into a few slots that forget, and a softmax over the slots reads them.

    Sk_t = Sk_{t-1} Diag(a_t) + k_t (x) phi_t        Sv_t = Diag(a_t) Sv_{t-1} + phi_t (x) v_t
    o_t = Sv_t^T softmax(Sk_t^T q_t)

Two recurrences, one after the other: slots are the value axis of the first and the key axis of the second.  The published
layer writes phi = 1 - a, so that each slot is a running mean.  Without forgetting, a = 1, it is `abc`.
Zhang et al., Gated Slot Attention for Efficient Linear-Time Sequence Modeling, 2024.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Annotated, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...core.options import Range, checked
from ..recurrence import State, Steps
from ._gates import at_least_float32
from ._mixer import Recurrent
from ._parts import Heads, PositiveWidth, merge, split, width_per_head


def rule(q: Tensor, k: Tensor, v: Tensor, phi: Tensor, log_a: Tensor | None) -> Generator[Steps, Tensor, Tensor]:
    """Both recurrences: q, k (B, H, L, K), v (B, H, L, V), phi, log_a (B, H, L, slots); log_a None forgets nothing."""
    scores = yield Steps(q, k, phi, log_value=log_a)
    return (yield Steps(scores.softmax(-1), phi, v, log_key=log_a))


@final
class GSA(Recurrent):
    """The layer: swish on queries, keys and values, phi = 1 - a, then swish and a norm over the whole width.

    Args:
        width: model dimension
        heads: independent memories
        slots: slots of each memory; None is the width of a key
    """

    @checked
    def __init__(self, width: PositiveWidth = 64, heads: Heads = 4, slots: Annotated[int | None, Range(least=1)] = None) -> None:
        super().__init__()
        head = width_per_head(width, heads, "GSA")
        self.width, self.heads = width, heads
        self.q, self.k, self.v, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.forget = nn.Linear(width, heads * (slots or head), bias=False)
        self.norm = nn.RMSNorm(width, eps=1e-5)

    def mix(self, x: Tensor, state: State | None, lengths: Tensor | None) -> tuple[Tensor, State]:
        q, k, v = (split(F.silu(project(x)), self.heads) for project in (self.q, self.k, self.v))
        log_a = split(F.logsigmoid(at_least_float32(self.forget(x))), self.heads) / 8
        o, state = self.recur(rule(q, k, v, -torch.expm1(log_a), log_a), state, lengths)
        return self.out(self.norm(F.silu(merge(o)))), state


def tiny() -> GSA:
    """A small layer for the contract tests."""
    return GSA(width=10, heads=2, slots=3)
