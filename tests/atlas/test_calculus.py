"""Mistakes made on purpose that must turn chapter 24 red."""

from __future__ import annotations

import torch

from sonde.atlas import calculus
from sonde.gradients.vjp import RULES
from sonde.lenses import cost as cost_lens
from tests.atlas.mistakes import Mistakes

mistakes = Mistakes()

mistakes.add(
    "CALC-01", "the sign of the cosine", red=("cosine: as printed", "cosine: against differences"), green="sine: as printed"
).replace(RULES, "cos", lambda g, y, x: (g * x.sin(),))
mistakes.add("CALC-01", "a quotient that forgets its denominator", red="quotient: against differences").replace(
    RULES, "div", lambda g, y, a, b, **_: (g / b, None)
)
# A product over i != i is empty: each factor's slope stands alone.
mistakes.add("CALC-01", "the printed form of E-49", red="product of four").replace(
    RULES, "prod", lambda g, y, x, dim=None, *_: (torch.ones_like(x) * (g if dim is None else g.unsqueeze(dim)),)
)
mistakes.add(
    "CALC-02",
    "a matrix that is not transposed",
    red="x^T A x -> (A + A^T) x, walk over the graph",
    green="x^T A x -> 2 A x, A symmetric, walk over the graph",
).replace(RULES, "mv", lambda g, y, a, v: (g.unsqueeze(1) * v, a @ g if a.shape[0] == a.shape[1] else a.t() @ g))
mistakes.add(
    "CALC-04", "multiply adds counted as one", red=("CNN-12, conv1: FLOPs", "CNN-12: FLOPs in all"), green="MLP 5-7-3: FLOPs"
).replace(cost_lens._RULES, torch.nn.Conv2d, lambda right, *args: right(*args) // 2)
mistakes.add(
    "CALC-04", "residual sums forgotten", red=("transformer block: FLOPs", "linear attention, T = 16"), green="RNN: FLOPs"
).replace(cost_lens, "_operation_flops", dict)


@mistakes.add("CALC-03", "a product counted once too often", only=("matrix product: N D M", "inner product: D")).replace(
    calculus._Naive, "inner"
)
def generous(right, self, a, b):
    self.multiplies += 1
    return right(self, a, b)


@mistakes.each
def test_notices(mistake, monkeypatch):
    mistake.assert_noticed(monkeypatch)
