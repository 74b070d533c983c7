"""Threshold units: the step function, layers of perceptrons with given weights, and any Boolean function built from them.

f = step(w.x + b)         step(a) = 0 for a < 0, 1 for a > 0, and `at_zero` at a = 0 (McCulloch & Pitts 1943, Rosenblatt 1958)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, final

import torch
from torch import Tensor, nn

from ..core.errors import BadInput
from ..core.options import checked


def step(a: Tensor, at_zero: float = 1.0) -> Tensor:
    """0 below zero, 1 above, `at_zero` at zero; its derivative is 0 everywhere, and NaN stays NaN."""
    # torch.heaviside has no derivative at all and turns NaN to 0; that of `sign` is the zero we want.
    half = torch.where(a == 0, at_zero, 0.5 * (a.sign() + 1))
    return half.masked_fill(a.isnan(), torch.nan)


@final
class StepActivation(nn.Module):
    """The step function as a layer.

    Args:
        at_zero: the value at exactly 0; the notes use both 1 and 0, and 0.5 lies between them
    """

    def __init__(self, at_zero: float = 1.0) -> None:
        super().__init__()
        if at_zero not in (0, 0.5, 1):
            raise BadInput(f"at_zero must be 0, 0.5 or 1, not {at_zero!r}", where="StepActivation")
        self.at_zero = float(at_zero)

    def forward(self, a: Tensor) -> Tensor:
        return step(a, self.at_zero)


@final
class ThresholdLayer(nn.Module):
    """A layer of perceptrons with fixed weights.

    Args:
        weight: (out, in), a row per unit
        bias: (out,); a unit fires when its weighted sum exceeds -bias
        at_zero: the output exactly on the boundary, in the code 0, 1
        labels: outputs '01' are 0 and 1, 'pm1' -1 and +1
    """

    weight: Tensor
    bias: Tensor

    @checked
    def __init__(
        self,
        weight: Any,
        bias: Any,
        at_zero: float = 1.0,
        labels: Literal["01", "pm1"] = "01",
    ) -> None:
        super().__init__()
        weight, bias = torch.as_tensor(weight, dtype=torch.float64), torch.as_tensor(bias, dtype=torch.float64)
        if weight.ndim != 2 or bias.shape != weight.shape[:1]:
            what = f"weight {tuple(weight.shape)} and bias {tuple(bias.shape)} do not fit"
            raise BadInput(what, where="ThresholdLayer", fix="give weight (out, in) and bias (out,)")
        self.register_buffer("weight", weight)
        self.register_buffer("bias", bias)
        self.step, self.labels = StepActivation(at_zero), labels

    def before(self, x: Tensor) -> Tensor:
        """The weighted sums w.x + b (B, out), before the step."""
        return torch.nn.functional.linear(x.to(self.weight.dtype), self.weight, self.bias)

    def forward(self, x: Tensor) -> Tensor:
        fired = self.step(self.before(x))
        return fired if self.labels == "01" else 2 * fired - 1


def corners(inputs: int) -> Tensor:
    """All 2^n rows of 0 and 1, counting up in binary: (2^n, n)."""
    return torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=torch.float64)] * inputs).reshape(-1, inputs)


def boolean(truth: Sequence[int] | Tensor) -> nn.Sequential:
    """Two layers of threshold units that compute a truth table, given in the order of `corners`.

    Its disjunctive normal form: one hidden unit per row that is true, which fires at that corner alone, then OR.  At its
    corner c the sum of w = 2c - 1 is |c|, and at every other corner at least 1 less, so a bias of 1/2 - |c| separates them.
    """
    table = torch.as_tensor(truth)
    inputs = max(len(table), 1).bit_length() - 1
    if table.ndim != 1 or inputs < 1 or len(table) != 2**inputs or not bool(((table == 0) | (table == 1)).all()):
        raise BadInput("a truth table is a row of 2, 4, 8, ... zeros and ones", where="boolean", fix="give one entry per row of corners(n)")
    true = corners(inputs)[table.bool()]
    minterms = ThresholdLayer(2 * true - 1, 0.5 - true.sum(1))
    return nn.Sequential(minterms, ThresholdLayer(torch.ones(1, len(true)), torch.tensor([-0.5])))
