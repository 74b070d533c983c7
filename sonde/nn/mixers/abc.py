"""Attention with bounded memory: tokens are written into a fixed number of slots, and a softmax over the slots reads them.

    Sk_t = Sk_{t-1} + k_t (x) phi_t        Sv_t = Sv_{t-1} + phi_t (x) v_t        o_t = Sv_t^T softmax(Sk_t^T q_t)

With a slot for each token it is softmax attention.  phi = exp(s) grows without end, so the published model divides both
memories by the running sum of phi: each slot is then a mean of the tokens in it.  That is `gsa` with the gate

    a_t = sigmoid(log sum_{i<t} phi_i - s_t)        and        phi_t / sum_{i<=t} phi_i = 1 - a_t

which never leaves (0, 1).  Peng et al., ABC: Attention with Bounded-memory Control, 2022.
"""

from __future__ import annotations

from typing import Annotated, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...core.options import Range, checked
from ..recurrence import Rule, State
from . import gsa
from ._gates import at_least_float32
from ._mixer import Recurrent
from ._parts import Heads, PositiveWidth, advance_position, merge, rotate, split, width_per_head


def rule(q: Tensor, k: Tensor, v: Tensor, phi: Tensor) -> Rule:
    """The plain sums: q, k (B, H, L, K), v (B, H, L, V), phi (B, H, L, slots)."""
    return (yield from gsa.rule(q, k, v, phi, None))


def average_rule(q: Tensor, k: Tensor, v: Tensor, s: Tensor, state: State | None = None) -> Rule:
    """The same with phi = exp(s) and both memories divided by the sum of phi; s (B, H, L, slots).

    The state carries the log of that sum, z (B, H slots).
    """
    old = s.new_full((), float("-inf")) if state is None else state["z"].view(len(s), s.shape[1], 1, s.shape[3])
    z = torch.logaddexp(s.logcumsumexp(2), old)
    log_a = F.logsigmoid(torch.cat([old.expand_as(s[:, :, :1]), z[:, :, :-1]], 2) - s)
    out = yield from gsa.rule(q, k, v, -torch.expm1(log_a), log_a)
    return out, {"z": z.transpose(2, 3).flatten(1, 2)}


@final
class ABC(Recurrent):
    """The layer: rotated keys half as wide as values, slots averaged, a norm for each head, a swish gate at the output.

    Args:
        width: model dimension
        heads: independent memories
        slots: slots of each memory; None is the width of a key
        average: divide the memories by the sum of the write weights; otherwise they grow with the length
    """

    @checked
    def __init__(
        self, width: PositiveWidth = 64, heads: Heads = 4, slots: Annotated[int | None, Range(least=1)] = None, average: bool = True
    ) -> None:
        super().__init__()
        self.width, self.heads, self.average = width, heads, average
        value = width_per_head(width, heads, "ABC")
        key = max(value // 4 * 2, 2)  # even: it is rotated in pairs
        self.q, self.k = nn.Linear(width, heads * key, bias=False), nn.Linear(width, heads * key, bias=False)
        self.v, self.gate = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.slot = nn.Linear(width, heads * (slots or key), bias=False)
        self.norm = nn.RMSNorm(value, eps=1e-5)
        self.out = nn.Linear(width, width, bias=False)

    def mix(self, x: Tensor, state: State | None, lengths: Tensor | None) -> tuple[Tensor, State]:
        position = None if state is None else state["position"]
        q, k, v = (split(project(x), self.heads) for project in (self.q, self.k, self.v))
        q, k = (rotate(one, position) for one in (q * q.shape[-1] ** -0.5, k))
        s = split(at_least_float32(self.slot(x)), self.heads).clamp(-32, 32)
        written = average_rule(q, k, v, s, state) if self.average else rule(q, k, v, s.exp())
        o, after = self.recur(written, state, lengths)
        after["position"] = advance_position(position, x, lengths)
        return self.out(merge(self.norm(o)) * F.silu(self.gate(x))), after


def tiny() -> ABC:
    """A small layer for the contract tests."""
    return ABC(width=12, heads=2, slots=3)
