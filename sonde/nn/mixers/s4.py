"""S4: every channel is a fixed linear filter, a sum of decaying (and oscillating) exponentials.

    S_t = exp(-a rate) o S_{t-1} + B o v_t        o_t = sum over states of C o S_t, + d v_t

Gu, Goel and Re, Efficiently Modeling Long Sequences with Structured State Spaces, 2021; the diagonal form (S4D) is that
of Gu, Gupta, Goel and Re, On the Parameterization and Initialization of Diagonal State Space Models, 2022.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...core.errors import BadInput
from ...core.options import Range, checked
from ..recurrence import Rule, State, Steps
from ._gates import at_least_float32, step_sizes
from ._mixer import Recurrent
from ._parts import PositiveWidth


def rule(v: Tensor, a: Tensor, rate: Tensor, B: Tensor, C: Tensor, d: Tensor | None = None) -> Rule:
    """S = exp(-a rate) o S + B o v, o = sum over states of C o S, + d v.

    v (B, H, L, V), time step a (H, V), rate = e^A, B, C (H, K, V), skip d (H, V) or None.  Where they are complex each
    state stands for a conjugate pair, and twice the real part is read.
    """
    # B is the same at every step, so it is applied when the state is read.
    out = yield Steps(None, None, v, log_value=-a, rate=rate, weight=B * C)
    return out if d is None else out + d.unsqueeze(1) * v


@final
class S4(Recurrent):
    """The layer (S4D): a filter for each channel with a zero-order hold, GELU, then a gated linear layer that mixes the channels.

    Args:
        width: model dimension
        states: exponentials in each channel's filter; complex ones count as two, a conjugate pair
        kind: complex filters oscillate (rates 1/2 - i pi n), real ones only decay (rates 1, 2, 3, ..)
    """

    no_decay = ("log_step", "log_rate", "A_imag", "D")

    @checked
    def __init__(
        self, width: PositiveWidth = 64, states: Annotated[int, Range(least=1)] = 64, kind: Literal["complex", "real"] = "complex"
    ) -> None:
        super().__init__()
        if kind == "complex" and states % 2:
            raise BadInput(
                f"{states} complex states do not form conjugate pairs", where="S4", fix=f"use {states + 1} states, or kind='real'"
            )
        self.width, self.kind = width, kind
        n = states // 2 if kind == "complex" else states
        self.log_step = nn.Parameter(step_sizes(width).log().unsqueeze(0))
        if kind == "complex":
            self.log_rate = nn.Parameter(torch.full((1, n, width), math.log(0.5)))
            self.A_imag = nn.Parameter(math.pi * torch.arange(float(n)).view(1, n, 1).repeat(1, 1, width))
            # Real and imaginary part as two numbers: a complex parameter would not survive a change of dtype.
            self.C = nn.Parameter(torch.randn(1, n, width, 2) * 0.5**0.5)
        else:
            self.log_rate = nn.Parameter(torch.arange(1.0, n + 1).log().view(1, n, 1).repeat(1, 1, width))
            self.C = nn.Parameter(torch.randn(1, n, width))
        self.D = nn.Parameter(torch.randn(1, width))
        self.out = nn.Linear(width, 2 * width)

    def mix(self, x: Tensor, state: State | None, lengths: Tensor | None) -> tuple[Tensor, State]:
        a, rate, C = at_least_float32(self.log_step).exp(), at_least_float32(self.log_rate).exp(), at_least_float32(self.C)
        if self.kind == "complex":
            rate, C = torch.complex(rate, -at_least_float32(self.A_imag)), torch.complex(*C.unbind(-1))
        B = -torch.expm1(-a.unsqueeze(1) * rate) / rate  # zero-order hold
        o, after = self.recur(rule(x.unsqueeze(1), a, rate, B, C, self.D), state, lengths)
        return F.glu(self.out(F.gelu(o.squeeze(1)))), after


def tiny() -> S4:
    """A small layer for the contract tests."""
    return S4(width=5, states=6)
