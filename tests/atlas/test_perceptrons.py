"""Mistakes about perceptrons, made on purpose, that turn chapter 2 red."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from sonde.atlas import perceptrons
from sonde.atlas.exhibit import run
from sonde.estimators import perceptron
from sonde.nn import threshold
from sonde.nn.threshold import ThresholdLayer, corners
from tests.atlas.mistakes import wrong as failed


def wrong(row):
    """Names of the expectations that did not hold, in one line."""
    return " | ".join(failed(row))


def another_rule(monkeypatch, change):
    """Learn with a changed pair (is it wrong?, correct it)."""
    right = perceptron._learn
    monkeypatch.setattr(perceptron, "_learn", lambda estimator, weights, n, *pair: right(estimator, weights, n, *change(*pair)))


@pytest.mark.filterwarnings("ignore:.*mistakes after max_epochs")
class TestRule:
    def test_per_02_notices_a_wrong_sign(self, monkeypatch):
        def backwards(is_wrong, correct):
            def away(weights, row):
                before = weights.copy()
                correct(weights, row)
                weights[:] = 2 * before - weights

            return is_wrong, away

        another_rule(monkeypatch, backwards)
        names = wrong("PER-02")
        assert "converged" in names and "errors afterwards" in names and "correction 1: weights" in names

    def test_per_02_notices_a_tie_that_counts_as_right(self, monkeypatch):
        def lenient(is_wrong, correct):
            return lambda w, part: is_wrong(w, part) & (w.any() | (np.arange(part.start, part.stop) > 0)), correct

        another_rule(monkeypatch, lenient)
        names = wrong("PER-02")
        assert "correction 1: epoch and row" in names and "a tie is a mistake" in names

    def test_per_03_notices_a_rule_without_end(self, monkeypatch):
        def shy(is_wrong, correct):
            """Only the first weight learns."""

            def half(weights, row):
                before = weights.copy()
                correct(weights, row)
                weights[1:] = before[1:]

            return is_wrong, half

        another_rule(monkeypatch, shy)
        monkeypatch.setattr(perceptrons.math, "ceil", lambda bound: 20)
        assert "not learned without an error" in wrong("PER-03")

    def test_per_07_notices_that_only_the_right_class_learns(self, monkeypatch):
        def one_sided(is_wrong, correct):
            def only_up(weights, row):
                before = weights.copy()
                correct(weights, row)
                if weights.ndim == 2:
                    down = weights[:, -1] < before[:, -1]
                    weights[down] = before[down]

            return is_wrong, only_up

        another_rule(monkeypatch, one_sided)
        names = wrong("PER-07")
        assert "plain loop" in names and "W_1 - W_0" in names


def test_per_01_notices_another_value_at_zero(monkeypatch):
    monkeypatch.setattr(threshold, "step", lambda a, at_zero=1.0: (a > 0).double())
    names = wrong("PER-01")
    assert "output on the boundary" in names and "reached or exceeded" in names and "AND of" not in names


def test_per_01_notices_weights_that_lie_on_their_side(monkeypatch):
    right = ThresholdLayer.before
    monkeypatch.setattr(ThresholdLayer, "before", lambda self, x: right(self, x.flip(1)))
    names = wrong("PER-01")
    assert "NOT x1" in names and "sign(w.x + b)" in names and "AND of" not in names


def test_per_04_notices_a_program_without_signs(monkeypatch):
    monkeypatch.setattr(perceptron, "_leads", lambda rows, codes, classes: (np.abs(rows), np.arange(len(rows))))
    result = run("PER-04")
    assert not result.passed and "too close to call" in result.why  # neither answer stands the check on the rows


def test_per_04_notices_a_perceptron_that_claims_to_converge(monkeypatch):
    right = perceptron.Perceptron.fit

    def boast(self, x, y):
        right(self, x, y).converged_ = True
        return self

    monkeypatch.setattr(perceptron.Perceptron, "fit", boast)
    assert wrong("PER-04") == "converged"


def test_per_05_notices_a_forgotten_bias(monkeypatch):
    right = ThresholdLayer.before
    monkeypatch.setattr(ThresholdLayer, "before", lambda self, x: right(self, x) - self.bias)
    names = wrong("PER-05")
    assert "h1 = AND" in names and "sum of h1 at (1, 1)" in names


def test_per_06_notices_a_gate_that_fires_too_late(monkeypatch):
    def strict(truth):
        true = corners(len(truth).bit_length() - 1)[torch.tensor(truth).bool()]
        last = ThresholdLayer(torch.ones(1, len(true)), torch.tensor([-1.5]))
        return nn.Sequential(ThresholdLayer(2 * true - 1, 0.5 - true.sum(1)), last)

    monkeypatch.setattr(perceptrons, "boolean", strict)
    assert "functions of 2 inputs that come out wrong" in wrong("PER-06")


def test_per_08_notices_the_unit_square(monkeypatch):
    right = torch.linspace
    monkeypatch.setattr(torch, "linspace", lambda low, high, steps: right(0, high, steps))
    names = wrong("PER-08")
    assert "smallest and largest coordinate" in names


def test_per_08_notices_the_other_order_of_the_grid(monkeypatch):
    right = torch.meshgrid
    monkeypatch.setattr(torch, "meshgrid", lambda *sides, indexing: right(*sides, indexing="xy"))
    names = wrong("PER-08")
    assert "share their first coordinate" in names and "changes that lie more than half a step" in names


def test_per_09_notices_a_perceptron_that_maximizes_the_margin(monkeypatch):
    from sklearn.svm import SVC

    def widest(self, x, y):
        machine = SVC(kernel="linear", C=1e6, tol=1e-9).fit(x, y)
        self.classes_, self.n_features_in_, self.converged_ = machine.classes_, x.shape[1], True
        self.coef_, self.intercept_ = machine.coef_, machine.intercept_
        return self

    monkeypatch.setattr(perceptron.Perceptron, "fit", widest)
    monkeypatch.setattr(perceptrons, "_frozen", lambda width, seed: width > 1)
    assert wrong("PER-09") == "largest difference between planes of unit normal"
