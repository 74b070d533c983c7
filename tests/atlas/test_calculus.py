"""Mistakes made on purpose that must turn chapter 24 red."""

from __future__ import annotations

import torch

from sonde.atlas import calculus
from sonde.gradients.vjp import RULES
from sonde.lenses import cost as cost_lens
from tests.atlas.mistakes import wrong


def test_the_sign_of_the_cosine(monkeypatch) -> None:
    monkeypatch.setitem(RULES, "cos", lambda g, y, x: (g * x.sin(),))
    names = wrong("CALC-01")
    assert "cosine: as printed" in names and "cosine: against differences" in names and "sine: as printed" not in names


def test_a_quotient_that_forgets_its_denominator(monkeypatch) -> None:
    monkeypatch.setitem(RULES, "div", lambda g, y, a, b, **_: (g / b, None))
    assert "quotient: against differences" in wrong("CALC-01")


def test_the_printed_form_of_e_49(monkeypatch) -> None:
    """A product over i != i is empty: each factor's slope stands alone."""
    monkeypatch.setitem(RULES, "prod", lambda g, y, x, dim=None, *_: (torch.ones_like(x) * (g if dim is None else g.unsqueeze(dim)),))
    names = wrong("CALC-01")
    assert any(name.startswith("product of four") for name in names)


def test_a_matrix_that_is_not_transposed(monkeypatch) -> None:
    monkeypatch.setitem(RULES, "mv", lambda g, y, a, v: (g.unsqueeze(1) * v, a @ g if a.shape[0] == a.shape[1] else a.t() @ g))
    names = wrong("CALC-02")
    assert "x^T A x -> (A + A^T) x, walk over the graph" in names and "x^T A x -> 2 A x, A symmetric, walk over the graph" not in names


def test_a_product_counted_once_too_often(monkeypatch) -> None:
    right = calculus._Naive.inner

    def generous(self, a, b):
        self.multiplies += 1
        return right(self, a, b)

    monkeypatch.setattr(calculus._Naive, "inner", generous)
    assert wrong("CALC-03") == ["matrix product: N D M", "inner product: D"]


def test_multiply_adds_counted_as_one(monkeypatch) -> None:
    right = cost_lens._RULES[torch.nn.Conv2d]
    monkeypatch.setitem(cost_lens._RULES, torch.nn.Conv2d, lambda *args: right(*args) // 2)
    names = wrong("CALC-04")
    assert "CNN-12, conv1: FLOPs" in names and "CNN-12: FLOPs in all" in names and "MLP 5-7-3: FLOPs" not in names


def test_residual_sums_forgotten(monkeypatch) -> None:
    monkeypatch.setattr(cost_lens, "_operation_flops", dict)
    names = wrong("CALC-04")
    assert "transformer block: FLOPs" in names and "linear attention, T = 16" in names and "RNN: FLOPs" not in names
