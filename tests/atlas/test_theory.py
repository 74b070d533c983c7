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
from tests.atlas.mistakes import Mistakes


def few_nets(monkeypatch):
    """Sampling takes the time and is not what these mistakes are about."""
    right = theory._variances
    monkeypatch.setattr(theory, "_variances", lambda *args: right(*args[:4], 60, args[5]))
    right_nets = theory._full_nets
    monkeypatch.setattr(theory, "_full_nets", lambda *args: right_nets(*args[:5], 20))


mistakes = Mistakes()

mistakes.add(
    "TH-01", "a bound too good to be true", red=("Hoeffding at n=100, t=0.1: 2 exp(-2)", "fair coin, t=0.1: frequency below Hoeffding")
).replace(theory, "hoeffding", lambda n, t, width=1.0: 2 * math.exp(-4 * n * t * t))
mistakes.add(
    "TH-03",
    "lines that can do anything",
    red=("labelings of 3 points on a line", "of these, sets that lines shatter"),
    green="labelings of 3 points in a triangle",
).replace(theory, "_by_a_plane", lambda points, labels: True)
mistakes.add("TH-03", "a bound that says nothing", red="VC bound at d=5, m=2560").replace(theory, "vc_gap", lambda *args: 0.5)
mistakes.add("TH-03", "a bound that says too much", red=("VC bound at d=5, m=2560", "d=60, m=30720: gap below the VC bound")).replace(
    theory, "vc_gap", lambda d, m: math.sqrt(0.2 / m)
)
mistakes.add("TH-04", "a ridge under another name", red="number of features at the peak").replace(
    theory, "_least_norm", lambda right, features, y, penalty: right(features, y, max(penalty, 0.01))
)
mistakes.add(
    "TH-05", "a learner that peeks", red=("majority: right answers of 256 * 4", "straight line: mean accuracy off the training points")
).replace(theory, "_right", lambda learner, cube, targets, seen, rest: np.full(len(targets), 4))
mistakes.add(
    "TH-06",
    "the other arc-cosine kernel",
    red=("arc-cosine kernel of inputs at right angles: K = (C_W/d) / pi", "relu: covariance of sampled nets, against the recursion"),
).replace(wide._CLOSED, "relu", lambda k, size, cosine: size * wide._step(k, size, cosine))
mistakes.add(
    "TH-07",
    "a layer that loses two percent",
    red=("relu, C_W=2.0: K after 49 layers is (C_W/2)^49", "relu, C_W=2.0: K of sampled nets over the recursion"),
    setup=few_nets,
).replace(wide._CLOSED, "relu", lambda right, *args: 0.98 * right(*args))
mistakes.add("TH-07", "full matrices two percent too small", count=6, every="a layer of full matrices over the recursion").replace(
    theory, "initialize", lambda right, name, std: right(name, std=0.99 * std)
)
mistakes.add("TH-08", "a network without the symmetry", red="relu, rate 0.001: drift of |row of W1|^2 + b1^2 - |column of W2|^2").replace(
    theory, "MLP", lambda widths, activation: MLP(widths, "gelu")
)


@mistakes.add("TH-02", "the wrong logarithm", red=("realizable:", "agnostic:")).replace(theory, "pac_examples")
def in_bits(hypotheses, error, delta, realizable=True):
    bits = math.log2(hypotheses / delta) / error if realizable else math.log2(2 * hypotheses / delta) / (2 * error**2)
    return math.ceil(bits)


# They keep every length: 3/n of the fluctuation is left, which comes from the activation alone.
@mistakes.add(
    "TH-08", "full matrices that are orthogonal", only="3000 nets with full matrices of width 32: the same over (1 + 5/n)^depth - 1"
).replace(theory, "initialize")
def orthogonal(name, std):
    def fill(model):
        for layer in model.layers:
            if isinstance(layer, nn.Linear):
                nn.init.orthogonal_(layer.weight, gain=std * len(layer.weight) ** 0.5)
                nn.init.zeros_(layer.bias)

    return fill


@mistakes.each
def test_notices(mistake, monkeypatch):
    mistake.assert_noticed(monkeypatch)


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
        lambda: theory.vc_gap(5, 50, delta=0.0),
    ):
        with pytest.raises(BadInput):
            call()


def test_calculators_by_hand() -> None:
    assert [theory.sauer(5, d) for d in (0, 1, 2, 5)] == [1, 6, 16, 32]
    assert theory.hoeffding(50, 1.0, width=10.0) == pytest.approx(2 * math.exp(-1))
    assert theory.markov(3.0, 2.0) == 1.0 and theory.chebyshev(4.0, 100, 1.0) == 0.04
    assert theory.vc_gap(3, 10_000) == pytest.approx(math.sqrt((24 * math.log(2 * math.e * 1e4 / 3) + 8 * math.log(80)) / 1e4))
