"""ABC, attention with bounded memory: tokens are written into a fixed number of slots, and queries attend to the slots.

    Sk_t = Sk_{t-1} + k_t (x) phi_t        Sv_t = Sv_{t-1} + phi_t (x) v_t        o_t = Sv_t^T softmax(Sk_t^T q_t)

where (x) is the outer product and phi_t are the weights with which token t is written into each slot.  With one slot for each token
it is softmax attention.  The sums of phi = exp(s) grow without bound, so the published model divides both memories by the running sum
of phi: each slot is then a weighted mean of tokens.  That is gated slot attention (`gsa`) with the forget gate

    a_t = sigmoid(log sum_{i<t} phi_i - s_t)        and        phi_t / sum_{i<=t} phi_i = 1 - a_t

which is always in (0, 1).  Peng et al., ABC: Attention with Bounded-memory Control, 2022.

A `Rule` is a generator: it yields the inputs of a linear recurrence, receives its outputs, and returns the output of the layer.
That keeps the formula apart from how the recurrence is computed (step by step, in chunks, in parallel).

B batch, T or L time, H heads, K key width, V value width.
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
    """The equations above, without division: q, k (B, H, L, K), v (B, H, L, V), phi (B, H, L, slots)."""
    return (yield from gsa.rule(q, k, v, phi, None))


def average_rule(q: Tensor, k: Tensor, v: Tensor, s: Tensor, state: State | None = None) -> Rule:
    """The same with phi = exp(s), and both memories divided by the running sum of phi; s (B, H, L, slots).

    The state has z (B, H * slots), the logarithm of that sum.
    """
    old_z = s.new_full((), float("-inf")) if state is None else state["z"].view(len(s), s.shape[1], 1, s.shape[3])
    z = torch.logaddexp(s.logcumsumexp(2), old_z)
    log_a = F.logsigmoid(torch.cat([old_z.expand_as(s[:, :, :1]), z[:, :, :-1]], 2) - s)
    out = yield from gsa.rule(q, k, v, -torch.expm1(log_a), log_a)
    return out, {"z": z.transpose(2, 3).flatten(1, 2)}


@final
class ABC(Recurrent):
    """The layer: keys half as wide as values, rotary positions, RMSNorm for each head, and a SiLU gate at the output.

    Args:
        width: model dimension
        heads: number of heads, each with a memory of its own
        slots: slots of each memory; None for as many as the width of a key
        average: divide the memories by the sum of the write weights; otherwise they grow with the length
    """

    @checked
    def __init__(
        self, width: PositiveWidth = 64, heads: Heads = 4, slots: Annotated[int | None, Range(least=1)] = None, average: bool = True
    ) -> None:
        super().__init__()
        self.width, self.heads, self.average = width, heads, average
        value_width = width_per_head(width, heads, "ABC")
        key_width = max(value_width // 4 * 2, 2)  # half of it, and even: rotary positions rotate pairs
        self.q, self.k = nn.Linear(width, heads * key_width, bias=False), nn.Linear(width, heads * key_width, bias=False)
        self.v, self.gate = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.slot = nn.Linear(width, heads * (slots or key_width), bias=False)
        self.norm = nn.RMSNorm(value_width, eps=1e-5)
        self.out = nn.Linear(width, width, bias=False)

    def mix(self, x: Tensor, state: State | None, lengths: Tensor | None) -> tuple[Tensor, State]:
        """x (B, T, D) -> output (B, T, D) and the state after it; `lengths` (B,) excludes padding."""
        position = None if state is None else state["position"]
        q, k, v = (split(project(x), self.heads) for project in (self.q, self.k, self.v))
        q, k = rotate(q * q.shape[-1] ** -0.5, position), rotate(k, position)
        s = split(at_least_float32(self.slot(x)), self.heads).clamp(-32, 32)  # so that exp(s) does not overflow
        recurrence = average_rule(q, k, v, s, state) if self.average else rule(q, k, v, s.exp())
        o, new_state = self.recur(recurrence, state, lengths)
        new_state["position"] = advance_position(position, x, lengths)
        return self.out(merge(self.norm(o)) * F.silu(self.gate(x))), new_state


def tiny() -> ABC:
    """A small layer for the contract tests."""
    return ABC(width=12, heads=2, slots=3)
