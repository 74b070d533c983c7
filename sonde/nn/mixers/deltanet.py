"""DeltaNet: the value stored under a key is moved toward the new value, instead of added to.

    S_t = (I - b_t k_t k_t^T) S_{t-1} + b_t k_t (x) v_t        o_t = S_t^T q_t

One step of gradient descent on |S^T k - v|^2 / 2.  Schlag, Irie and Schmidhuber, Linear Transformers Are Secretly Fast
Weight Programmers, 2021; the layer is that of Yang et al., Parallelizing Linear Transformers with the Delta Rule over
Sequence Length, 2024.
"""

from __future__ import annotations

from typing import Annotated, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...core.options import Range, checked
from ..recurrence import Rule, State, Steps
from ..short_conv import ShortConv
from ._gates import at_least_float32, unit
from ._mixer import Recurrent
from ._parts import Heads, PositiveWidth, merge, split, width_per_head


def rule(q: Tensor, k: Tensor, v: Tensor, beta: Tensor) -> Rule:
    """S = (I - b k k^T) S + b k (x) v, o = S^T q: q, k (B, G, L, K), v (B, H, L, V), beta (B, H, L)."""
    return (yield Steps(q, k, v, beta=beta))


@final
class DeltaNet(Recurrent):
    """The layer: short convolutions, keys and queries of length one, a norm for each head.

    Args:
        width: model dimension
        heads: independent states
        taps: kernel size of the short convolution
        negative: let the write strength reach 2, so that transitions can have negative eigenvalues
        gate: multiply the output by a swish gate
    """

    @checked
    def __init__(
        self,
        width: PositiveWidth = 64,
        heads: Heads = 4,
        taps: Annotated[int, Range(least=1)] = 4,
        negative: bool = False,
        gate: bool = False,
    ) -> None:
        super().__init__()
        self.width, self.heads, self.max_beta = width, heads, 2.0 if negative else 1.0
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.conv = ShortConv(3 * width, taps)
        self.beta = nn.Linear(width, heads, bias=False)
        self.norm = nn.RMSNorm(width_per_head(width, heads, "DeltaNet"), eps=1e-5)
        self.gate = nn.Linear(width, width, bias=False) if gate else None
        self.out = nn.Linear(width, width, bias=False)

    def mix(self, x: Tensor, state: State | None, lengths: Tensor | None) -> tuple[Tensor, State]:
        qkv, tail = self.conv(self.qkv(x), (state or {}).get("tail"), lengths)
        q, k, v = (split(part, self.heads) for part in qkv.chunk(3, -1))
        beta = self.max_beta * torch.sigmoid(at_least_float32(self.beta(x))).transpose(1, 2)
        o, after = self.recur(rule(unit(q) * q.shape[-1] ** -0.5, unit(k), v, beta), state, lengths)
        o = merge(self.norm(o))
        return self.out(o if self.gate is None else o * F.silu(self.gate(x))), {**after, "tail": tail}


def tiny() -> DeltaNet:
    """A small layer for the contract tests."""
    return DeltaNet(width=12, heads=3)
