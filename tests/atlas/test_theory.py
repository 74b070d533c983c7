"""Chapter 22 made wrong on purpose: constants, leaks, other networks; each exhibit must notice."""

from __future__ import annotations

import math

import numpy as np
import pytest
from torch import nn

from sonde.atlas import theory
from sonde.core.errors import BadInput
from sonde.models.mlp import MLP
from sonde.nn import wide
from tests.atlas.mistakes import wrong


def test_th_01_notices_a_bound_too_good_to_be_true(monkeypatch) -> None:
    monkeypatch.setattr(theory, "hoeffding", lambda n, t, width=1.0: 2 * math.exp(-4 * n * t * t))
    names = wrong("TH-01")
    assert "Hoeffding at n=100, t=0.1: 2 exp(-2)" in names and "fair coin, t=0.1: frequency below Hoeffding" in names


def test_th_02_notices_the_wrong_logarithm(monkeypatch) -> None:
    def in_bits(hypotheses, error, chance, realizable=True):
        return (
            math.ceil(math.log2(hypotheses / chance) / error)
            if realizable
            else math.ceil(math.log2(2 * hypotheses / chance) / (2 * error**2))
        )

    monkeypatch.setattr(theory, "pac_examples", in_bits)
    names = wrong("TH-02")
    assert {name.split(":")[0] for name in names} >= {"realizable", "agnostic"}


def test_th_03_notices_lines_that_can_do_anything(monkeypatch) -> None:
    monkeypatch.setattr(theory, "_by_a_plane", lambda points, labels: True)
    names = wrong("TH-03")
    assert "labelings of 3 points on a line" in names and "of these, sets that lines shatter" in names
    assert "labelings of 3 points in a triangle" not in names


@pytest.mark.parametrize("bound", [lambda *args: 0.5, lambda d, m: math.sqrt(0.2 / m)])
def test_th_03_notices_a_bound_that_says_nothing_or_too_much(monkeypatch, bound) -> None:
    monkeypatch.setattr(theory, "vc_gap", bound)
    names = wrong("TH-03")
    assert names[0].startswith("VC bound at d=5, m=2560") and (bound(5, 2560) == 0.5 or "d=60, m=30720: gap below the VC bound" in names)


def test_th_04_notices_a_ridge_under_another_name(monkeypatch) -> None:
    right = theory._least_norm
    monkeypatch.setattr(theory, "_least_norm", lambda features, y, penalty: right(features, y, max(penalty, 0.01)))
    assert "number of features at the peak" in wrong("TH-04")


def test_th_05_notices_a_learner_that_peeks(monkeypatch) -> None:
    monkeypatch.setattr(theory, "_right", lambda learner, cube, targets, seen, rest: np.full(len(targets), 4))
    names = wrong("TH-05")
    assert "majority: right answers of 256 * 4" in names and "straight line: mean accuracy off the training points" in names


@pytest.fixture
def few_nets(monkeypatch):
    """Sampling takes the time and is not what these mistakes are about."""
    right = theory._variances
    monkeypatch.setattr(theory, "_variances", lambda *args: right(*args[:4], 60, args[5]))
    right_nets = theory._full_nets
    monkeypatch.setattr(theory, "_full_nets", lambda *args: right_nets(*args[:5], 20))


def test_th_06_notices_the_other_arc_cosine_kernel(monkeypatch) -> None:
    monkeypatch.setitem(wide._CLOSED, "relu", lambda k, size, cosine: size * wide._step(k, size, cosine))
    names = wrong("TH-06")
    assert "arc-cosine kernel of inputs at right angles: K = (C_W/d) / pi" in names
    assert "relu: covariance of sampled nets, against the recursion" in names


def test_th_07_notices_a_layer_that_loses_two_percent(monkeypatch, few_nets) -> None:
    right = wide._relu
    monkeypatch.setitem(wide._CLOSED, "relu", lambda *args: 0.98 * right(*args))
    names = wrong("TH-07")
    assert "relu, C_W=2.0: K after 49 layers is (C_W/2)^49" in names and "relu, C_W=2.0: K of sampled nets over the recursion" in names


def test_th_07_notices_full_matrices_two_percent_too_small(monkeypatch) -> None:
    right = theory.initialize
    monkeypatch.setattr(theory, "initialize", lambda name, std: right(name, std=0.99 * std))
    names = wrong("TH-07")
    assert len(names) == 6 and all("a layer of full matrices over the recursion" in name for name in names)


def test_th_08_notices_full_matrices_that_are_orthogonal(monkeypatch) -> None:
    """They keep every length: 3/n of the fluctuation is left, which comes from the activation alone."""

    def orthogonal(name, std):
        def fill(model):
            for layer in model.layers:
                if isinstance(layer, nn.Linear):
                    nn.init.orthogonal_(layer.weight, gain=std * len(layer.weight) ** 0.5)
                    nn.init.zeros_(layer.bias)

        return fill

    monkeypatch.setattr(theory, "initialize", orthogonal)
    assert wrong("TH-08") == ["3000 nets with full matrices of width 32: the same over (1 + 5/n)^depth - 1"]


def test_th_08_notices_a_network_without_the_symmetry(monkeypatch) -> None:
    monkeypatch.setattr(theory, "MLP", lambda widths, activation: MLP(widths, "gelu"))
    assert "relu, rate 0.001: drift of |row of W1|^2 + b1^2 - |column of W2|^2" in wrong("TH-08")


def test_bounds_refuse_what_makes_no_sense() -> None:
    for call in (
        lambda: theory.markov(-1.0, 1.0),
        lambda: theory.chebyshev(1.0, 0, 1.0),
        lambda: theory.hoeffding(10, 0.0),
        lambda: theory.pac_examples(0, 0.1, 0.1),
        lambda: theory.pac_examples(10, 0.1, 1.0),
        lambda: theory.vc_gap(0, 5),
        lambda: theory.vc_gap(5, 0),
        lambda: theory.vc_gap(20, 1),
        lambda: theory.vc_gap(5, 50, chance=0.0),
    ):
        with pytest.raises(BadInput):
            call()


def test_calculators_by_hand() -> None:
    assert [theory.sauer(5, d) for d in (0, 1, 2, 5)] == [1, 6, 16, 32]
    assert theory.hoeffding(50, 1.0, width=10.0) == pytest.approx(2 * math.exp(-1))
    assert theory.markov(3.0, 2.0) == 1.0 and theory.chebyshev(4.0, 100, 1.0) == 0.04
    assert theory.vc_gap(3, 10_000) == pytest.approx(math.sqrt((24 * math.log(2 * math.e * 1e4 / 3) + 8 * math.log(80)) / 1e4))
