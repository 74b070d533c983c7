"""Mamba: every entry of the state decays at its own rate over a time step that depends on the token and the channel.

    S_t = exp(-a_t rate) o S_{t-1} + k_t (x) (a_t v_t)        o_t = S_t^T q_t + d v_t

Gu and Dao, Mamba: Linear-Time Sequence Modeling with Selective State Spaces, 2023.
"""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...core.options import Count, checked
from ..recurrence import Rule, State, Steps
from ..short_conv import ShortConv
from ._gates import at_least_float32, step_bias
from ._mixer import Recurrent
from ._parts import PositiveWidth


def rule(q: Tensor, k: Tensor, v: Tensor, a: Tensor, rate: Tensor, d: Tensor | None = None) -> Rule:
    """S = exp(-a rate) o S + k (x) (a v), o = S^T q + d v.

    q, k (B, G, L, K), v and the time step a (B, H, L, V), rate = e^A (H, K, V), the skip d (H, V) or None
    """
    out = yield Steps(q, k, a * v, log_value=-a, rate=rate)
    return out if d is None else out + d.unsqueeze(1) * v


@final
class Mamba(Recurrent):
    """The layer: a short convolution, then time step, write and read made from each token, and a swish gate at the output.

    Args:
        width: model dimension
        states: entries of the state for each channel
        expand: channels of the recurrence as a multiple of the width
        rank: rank of the projection of the time steps; None is a sixteenth of the width
        taps: kernel size of the short convolution (d_conv)
    """

    no_decay = ("log_rate", "D")

    @checked
    def __init__(
        self, width: PositiveWidth = 64, states: Count = 16, expand: Count = 2, rank: Count | None = None, taps: Count = 4
    ) -> None:
        super().__init__()
        inner = width * expand
        self.width, self.sizes = width, (rank or math.ceil(width / 16), states, states)
        self.in_proj = nn.Linear(width, 2 * inner, bias=False)
        self.conv = ShortConv(inner, taps, bias=True)
        self.x_proj = nn.Linear(inner, sum(self.sizes), bias=False)
        self.step = nn.Linear(self.sizes[0], inner, bias=False)
        nn.init.uniform_(self.step.weight, -(self.sizes[0] ** -0.5), self.sizes[0] ** -0.5)
        self.step_bias = nn.Parameter(step_bias(inner))
        self.log_rate = nn.Parameter(torch.arange(1.0, states + 1).log().unsqueeze(1).repeat(1, 1, inner))
        self.D = nn.Parameter(torch.ones(1, inner))
        self.out = nn.Linear(inner, width, bias=False)

    def mix(self, x: Tensor, state: State | None, lengths: Tensor | None) -> tuple[Tensor, State]:
        v, gate = self.in_proj(x).chunk(2, -1)
        v, tail = self.conv(v, (state or {}).get("tail"), lengths)
        step, k, q = self.x_proj(v).split(self.sizes, -1)
        a = F.softplus(at_least_float32(self.step(step)) + at_least_float32(self.step_bias))
        # One head whose values are the channels: (B, T, D) -> (B, 1, T, D)
        q, k, v, a = (part.unsqueeze(1) for part in (q, k, v, a))
        o, after = self.recur(rule(q, k, v, a, at_least_float32(self.log_rate).exp(), self.D), state, lengths)
        return self.out(o.squeeze(1).to(gate.dtype) * F.silu(gate)), {**after, "tail": tail}


def tiny() -> Mamba:
    """A small layer for the contract tests."""
    return Mamba(width=6, states=5, expand=2, rank=3, taps=4)
