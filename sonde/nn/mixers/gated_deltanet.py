"""Gated DeltaNet: the state decays before the value stored under a key is moved toward the new value.

    S_t = a_t (I - b_t k_t k_t^T) S_{t-1} + b_t k_t (x) v_t        o_t = S_t^T q_t

Yang, Kautz and Hatamizadeh, Gated Delta Networks: Improving Mamba2 with Delta Rule, 2024.
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...core.errors import BadInput
from ...core.options import Count, checked
from ..recurrence import Rule, State, Steps
from ..short_conv import ShortConv
from ._gates import at_least_float32, step_bias, unit
from ._mixer import Recurrent
from ._parts import Heads, PositiveWidth, merge, split


def rule(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_a: Tensor) -> Rule:
    """S = a (I - b k k^T) S + b k (x) v, o = S^T q: q, k (B, G, L, K), v (B, H, L, V), beta, log_a (B, H, L)."""
    return (yield Steps(q, k, v, beta=beta, log_head=log_a))


@final
class GatedDeltaNet(Recurrent):
    """The layer: short convolutions, keys and queries of length one, values wider than keys, a norm and then a swish gate.

    Args:
        width: model dimension
        heads: sets of keys and queries
        value_heads: independent states, a multiple of the heads; None is one per head
        key: width of the keys and queries of a head; None is three quarters of the width divided by the heads
        expand: width of the values as a multiple of that of the keys
        taps: kernel size of the short convolution
    """

    no_decay = ("log_rate",)

    @checked
    def __init__(
        self,
        width: PositiveWidth = 64,
        heads: Heads = 4,
        value_heads: Count | None = None,
        key: Count | None = None,
        expand: Count = 2,
        taps: Count = 4,
    ) -> None:
        super().__init__()
        states, K = value_heads or heads, key or max(3 * width // (4 * heads), 1)
        if states % heads:
            raise BadInput(f"{states} value heads cannot share {heads} heads", where="GatedDeltaNet", fix="let heads divide value_heads")
        self.width, self.heads, self.value_heads = width, heads, states
        self.sizes = (heads * K, heads * K, states * K * expand)
        self.qkv = nn.Linear(width, sum(self.sizes), bias=False)
        self.conv = ShortConv(sum(self.sizes), taps)
        self.beta, self.forget = nn.Linear(width, states, bias=False), nn.Linear(width, states, bias=False)
        self.step_bias = nn.Parameter(step_bias(states))
        self.log_rate = nn.Parameter(torch.empty(states).uniform_(0.01, 16).log())  # away from 0: its logarithm must be finite
        self.norm = nn.RMSNorm(K * expand, eps=1e-6)
        self.gate = nn.Linear(width, self.sizes[2], bias=False)
        self.out = nn.Linear(self.sizes[2], width, bias=False)

    def mix(self, x: Tensor, state: State | None, lengths: Tensor | None) -> tuple[Tensor, State]:
        qkv, tail = self.conv(self.qkv(x), (state or {}).get("tail"), lengths)
        q, k, v = (split(part, n) for part, n in zip(qkv.split(self.sizes, -1), (self.heads, self.heads, self.value_heads)))
        beta = torch.sigmoid(at_least_float32(self.beta(x))).transpose(1, 2)
        # contiguous: a compiler mistakes the layout of the gradient of softplus otherwise
        step = (at_least_float32(self.forget(x)) + at_least_float32(self.step_bias)).transpose(1, 2).contiguous()
        log_a = -at_least_float32(self.log_rate).exp().unsqueeze(1) * F.softplus(step)
        o, after = self.recur(rule(unit(q) * q.shape[-1] ** -0.5, unit(k), v, beta, log_a), state, lengths)
        return self.out(merge(self.norm(o)) * F.silu(self.gate(x))), {**after, "tail": tail}


def tiny() -> GatedDeltaNet:
    """A small layer for the contract tests."""
    return GatedDeltaNet(width=7, heads=2, value_heads=4, key=3)
