"""RWKV-6: each row of the state has a data-dependent decay, and the current token is read with a weight of its own.

    S_t = Diag(a_t) S_{t-1} + k_t (x) v_t        o_t = (S_{t-1} + bonus_t)^T q_t

The notes weight the values of the current token, bonus_t = k_t (x) (d v_t); the published model its keys, (d k_t) (x) v_t.

Peng et al., Eagle and Finch: RWKV with Matrix-Valued States and Dynamic Recurrence, 2024.
"""

from __future__ import annotations

from typing import Literal, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...core.options import Count, checked
from ..recurrence import Rule, State, Steps
from ..short_conv import tail_of
from ._gates import at_least_float32
from ._mixer import Recurrent
from ._parts import Heads, PositiveWidth, merge, split, width_per_head

BonusSide = Literal["value", "key"]


def rule(q: Tensor, k: Tensor, v: Tensor, log_a: Tensor, d: Tensor, bonus: BonusSide = "value") -> Rule:
    """S = Diag(a) S + k (x) v, read before it is written: o = (S_{t-1} + bonus)^T q.

    q, k, log_a (B, H, L, K), v (B, H, L, V); d (H, V) weights the values of the current token, or (H, K) its keys
    """
    side = {"bonus_value": d} if bonus == "value" else {"bonus_key": d}
    return (yield Steps(q, k, v, log_key=log_a, read="before", **side))


@final
class RWKV6(Recurrent):
    """The layer: token shift with data-dependent weights, a norm for each head, a swish gate.

    Args:
        width: model dimension
        heads: independent states
        rank: rank of the projections of the five token shifts
        decay_rank: rank of the projection of the decay
        bonus: whether the weight of the current token multiplies its keys, as in the published model, or its values
    """

    no_decay = ("time_mix", "time_first")

    @checked
    def __init__(
        self, width: PositiveWidth = 64, heads: Heads = 4, rank: Count = 32, decay_rank: Count = 64, bonus: BonusSide = "key"
    ) -> None:
        super().__init__()
        self.width, self.heads, self.bonus = width, heads, bonus
        channel = torch.arange(width) / width
        # Weights of the previous token, for the low-rank projection and for w, k, v, r, g: as in the first layer of the published model
        self.time_mix = nn.Parameter(torch.stack([1 - channel] * 4 + [1 - channel.sqrt()] * 2))
        self.blend_in = nn.Parameter(torch.zeros(width, 5 * rank))
        self.blend_out = nn.Parameter(torch.empty(5, rank, width).uniform_(-0.01, 0.01))
        along = torch.arange(width) / max(width - 1, 1)
        self.decay = nn.Parameter(-6 + 5 * along**0.7)
        self.decay_in = nn.Parameter(torch.zeros(width, decay_rank))
        self.decay_out = nn.Parameter(torch.empty(decay_rank, width).uniform_(-0.01, 0.01))
        self.time_first = nn.Parameter(0.1 * ((torch.arange(width) + 1) % 3 - 1.0).view(heads, width_per_head(width, heads, "RWKV6")))
        self.k, self.v, self.r, self.gate = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.norm = nn.GroupNorm(heads, width, eps=64e-5)
        self.out = nn.Linear(width, width, bias=False)

    def mix(self, x: Tensor, state: State | None, lengths: Tensor | None) -> tuple[Tensor, State]:
        last = torch.zeros_like(x[:, :1]) if state is None else state["last"].to(x.dtype)
        whole = torch.cat([last, x], 1)
        shift = whole[:, :-1] - x  # from this token to the one before
        low = torch.tanh((x + shift * self.time_mix[0]) @ self.blend_in).view(*x.shape[:2], *self.blend_out.shape[:2])
        weights = torch.einsum("btir,ird->ibtd", low, self.blend_out) + self.time_mix[1:, None, None]
        w, k, v, r, g = (x + shift * weight for weight in weights)
        log_a = -at_least_float32(at_least_float32(self.decay) + torch.tanh(w @ self.decay_in) @ self.decay_out).exp()
        q, k, v, log_a = (split(part, self.heads) for part in (self.r(r), self.k(k), self.v(v), log_a))
        o, after = self.recur(rule(q, k, v, log_a, self.time_first, self.bonus), state, lengths)
        o = self.norm(merge(o).flatten(0, 1)).view_as(x)
        return self.out(o * F.silu(self.gate(g))), {**after, "last": tail_of(whole, 1, lengths)}


def tiny() -> RWKV6:
    """A small layer for the contract tests."""
    return RWKV6(width=12, heads=3, rank=2, decay_rank=5)
