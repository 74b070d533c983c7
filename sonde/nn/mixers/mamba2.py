"""Mamba-2: a scalar decay of the whole state at each step, so that pairs of positions have one weight for all channels.

    S_t = gamma_t S_{t-1} + k_t (x) v_t        o_t = S_t^T q_t

Dao and Gu, Transformers are SSMs: Generalized Models and Efficient Algorithms Through Structured State Space Duality, 2024.
"""

from __future__ import annotations

from typing import Annotated, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...core.errors import BadInput
from ...core.options import Count, Range, checked
from ...kernels.decode import Program, Vectors
from ...kernels.states import Memory, RecurrentState, linear
from ..recurrence import Rule, State, Steps
from ..short_conv import ShortConv
from ._gates import at_least_float32, step_bias
from ._mixer import Recurrent
from ._parts import Heads, PositiveWidth, merge, split, width_per_head


def rule(q: Tensor, k: Tensor, v: Tensor, log_gamma: Tensor, a: Tensor | None = None, d: Tensor | None = None) -> Rule:
    """S = gamma S + k (x) v, o = S^T q: q, k (B, G, L, K), v (B, H, L, V), log_gamma (B, H, L).

    Args:
        a: (B, H, L) time steps: a v is written instead of v
        d: (H,) skip: d v is added to the output
    """
    out = yield Steps(q, k, v if a is None else a.unsqueeze(-1) * v, log_head=log_gamma)
    return out if d is None else out + d.view(-1, 1, 1) * v


@final
class Mamba2(Recurrent):
    """The layer: a short convolution over values, keys and queries, a time step for each head, a gate and then a norm.

    Args:
        width: model dimension
        heads: independent states
        states: width of the keys and queries
        groups: sets of heads that share keys and queries
        expand: channels of the recurrence as a multiple of the width
        taps: kernel size of the short convolution
        least: shortest time step
        most: longest time step; None is no limit
    """

    no_decay = ("log_rate", "D")

    @checked
    def __init__(
        self,
        width: PositiveWidth = 64,
        heads: Heads = 4,
        states: Count = 64,
        groups: Count = 1,
        expand: Count = 2,
        taps: Count = 4,
        least: Annotated[float, Range(least=0)] = 0.0,
        most: Annotated[float, Range(above=0)] | None = None,
    ) -> None:
        super().__init__()
        inner = width * expand
        width_per_head(inner, heads, f"Mamba2 expands {width} to {inner}")
        if heads % groups:
            raise BadInput(f"{heads} heads cannot share {groups} groups of keys", where="Mamba2", fix="let groups divide heads")
        self.width, self.heads, self.groups, self.least, self.most = width, heads, groups, least, most
        self.sizes = (inner, groups * states, groups * states)
        self.in_proj = nn.Linear(width, inner + sum(self.sizes) + heads, bias=False)
        self.conv = ShortConv(sum(self.sizes), taps, bias=True)
        self.step_bias = nn.Parameter(step_bias(heads))
        self.log_rate = nn.Parameter(torch.empty(heads).uniform_(1, 16).log())
        self.D = nn.Parameter(torch.ones(heads))
        self.norm = nn.RMSNorm(inner, eps=1e-5)
        self.out = nn.Linear(inner, width, bias=False)

    def mix(self, x: Tensor, state: State | None, lengths: Tensor | None) -> tuple[Tensor, State]:
        gate, vkq, step = self.in_proj(x).split([self.sizes[0], sum(self.sizes), self.heads], -1)
        vkq, tail = self.conv(vkq, (state or {}).get("tail"), lengths)
        v, k, q = (split(part, n) for part, n in zip(vkq.split(self.sizes, -1), (self.heads, self.groups, self.groups)))
        a = F.softplus(at_least_float32(step) + at_least_float32(self.step_bias)).clamp(self.least, self.most).transpose(1, 2)
        log_gamma = -a * at_least_float32(self.log_rate).exp().unsqueeze(1)
        o, after = self.recur(rule(q, k, v, log_gamma, a, self.D), state, lengths)
        return self.out(self.norm(merge(o).to(gate.dtype) * F.silu(gate))), {**after, "tail": tail}

    def decode(self, program: Program, part: str, x: Vectors, y: Vectors, add: Vectors) -> Memory:
        """y = add + a Mamba-2 layer of x."""
        H, G, (inner, keys, _) = self.heads, self.groups, self.sizes
        channels, sizes = sum(self.sizes), (H, G, keys // G, inner // H)
        into, vkq, mixed, gated = (
            *(program.add_shared(name, n) for name, n in (("into", inner + channels + H), ("vkq", channels), ("mixed", inner))),
            program.add_per_thread("gated", inner),
        )
        program.linear(x, into, *linear(self.in_proj))
        conv = program.convolve(program.later(into, inner), vkq, self.conv.weight, self.conv.bias)
        limits = (self.least, float("inf") if self.most is None else self.most)
        step = program.later(into, inner + channels)
        recur = program.recur(vkq, step, mixed, sizes, (self.step_bias, self.log_rate, self.D), limits)
        program.norm(mixed, gated, inner, self.norm.weight, None, self.norm.eps or 0.0, gate=into)
        program.linear(gated, y, *linear(self.out), add=add)
        return RecurrentState(program, part, {"S0": (recur, (H, *sizes[2:])), "tail": (conv, (self.conv.taps - 1, channels))})


def tiny() -> Mamba2:
    """A small layer for the contract tests."""
    return Mamba2(width=10, heads=4, states=3, groups=2, taps=4)
