"""Mistakes about perceptrons, made on purpose, that turn chapter 2 red."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.svm import SVC
from torch import nn

from sonde.atlas import perceptrons
from sonde.estimators import perceptron
from sonde.nn import threshold
from sonde.nn.threshold import ThresholdLayer, corners
from tests.atlas.mistakes import Mistakes

UNFINISHED = [pytest.mark.filterwarnings("ignore:.*mistakes after max_epochs")]


def change_rule(monkeypatch, change):
    """Learn with a changed pair (is it wrong?, correct it)."""
    right = perceptron._learn
    monkeypatch.setattr(perceptron, "_learn", lambda estimator, weights, n, *pair: right(estimator, weights, n, *change(*pair)))


mistakes = Mistakes()

mistakes.add("PER-01", "another value at zero", red=("output on the boundary", "reached or exceeded"), green="AND of").replace(
    threshold, "step", lambda a, at_zero=1.0: (a > 0).double()
)
mistakes.add("PER-01", "weights that lie on their side", red=("NOT x1", "sign(w.x + b)"), green="AND of").replace(
    ThresholdLayer, "before", lambda right, self, x: right(self, x.flip(1))
)
# Neither answer passes the check on the rows.
mistakes.add("PER-04", "a program without signs", why="too close to call").replace(
    perceptron, "_leads", lambda rows, codes, classes: (np.abs(rows), np.arange(len(rows)))
)
mistakes.add("PER-05", "a forgotten bias", red=("h1 = AND", "sum of h1 at (1, 1)")).replace(
    ThresholdLayer, "before", lambda right, self, x: right(self, x) - self.bias
)
mistakes.add("PER-08", "the unit square", red="smallest and largest coordinate").replace(
    torch, "linspace", lambda right, low, high, steps: right(0, high, steps)
)
mistakes.add(
    "PER-08", "the other order of the grid", red=("share their first coordinate", "changes that lie more than half a step")
).replace(torch, "meshgrid", lambda right, *sides, indexing: right(*sides, indexing="xy"))


@mistakes.add("PER-02", "a wrong sign", red=("converged", "errors afterwards", "correction 1: weights"), marks=UNFINISHED)
def correct_backwards(monkeypatch):
    def backwards(is_wrong, correct):
        def away(weights, row):
            before = weights.copy()
            correct(weights, row)
            weights[:] = 2 * before - weights

        return is_wrong, away

    change_rule(monkeypatch, backwards)


@mistakes.add("PER-02", "a tie that counts as right", red=("correction 1: epoch and row", "a tie is a mistake"), marks=UNFINISHED)
def forgive_ties(monkeypatch):
    def lenient(is_wrong, correct):
        return lambda w, part: is_wrong(w, part) & (w.any() | (np.arange(part.start, part.stop) > 0)), correct

    change_rule(monkeypatch, lenient)


@mistakes.add("PER-03", "a rule without end", red="not learned without an error", marks=UNFINISHED)
def teach_only_the_first_weight(monkeypatch):
    def shy(is_wrong, correct):
        def half(weights, row):
            before = weights.copy()
            correct(weights, row)
            weights[1:] = before[1:]

        return is_wrong, half

    change_rule(monkeypatch, shy)
    monkeypatch.setattr(perceptrons.math, "ceil", lambda bound: 20)


@mistakes.add("PER-04", "a perceptron that claims to converge", only="converged").replace(perceptron.Perceptron, "fit")
def boast(right, self, x, y):
    right(self, x, y).converged_ = True
    return self


@mistakes.add("PER-06", "a gate that fires too late", red="functions of 2 inputs that come out wrong").replace(perceptrons, "boolean")
def strict(truth):
    true = corners(len(truth).bit_length() - 1)[torch.tensor(truth).bool()]
    last = ThresholdLayer(torch.ones(1, len(true)), torch.tensor([-1.5]))
    return nn.Sequential(ThresholdLayer(2 * true - 1, 0.5 - true.sum(1)), last)


@mistakes.add("PER-07", "a rule by which only the right class learns", red=("plain loop", "W_1 - W_0"), marks=UNFINISHED)
def teach_only_the_right_class(monkeypatch):
    def one_sided(is_wrong, correct):
        def only_up(weights, row):
            before = weights.copy()
            correct(weights, row)
            if weights.ndim == 2:
                down = weights[:, -1] < before[:, -1]
                weights[down] = before[down]

        return is_wrong, only_up

    change_rule(monkeypatch, one_sided)


@(
    mistakes.add("PER-09", "a perceptron that maximizes the margin", only="largest difference between planes of unit normal")
    .replace(perceptrons, "_learns_xor", lambda width, seed: width > 1)
    .replace(perceptron.Perceptron, "fit")
)
def widest(self, x, y):
    machine = SVC(kernel="linear", C=1e6, tol=1e-9).fit(x, y)
    self.classes_, self.n_features_in_, self.converged_ = machine.classes_, x.shape[1], True
    self.coef_, self.intercept_ = machine.coef_, machine.intercept_
    return self


@mistakes.each
def test_notices(mistake, monkeypatch):
    mistake.assert_noticed(monkeypatch)
