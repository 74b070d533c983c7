"""Chapter 1: mistakes made on purpose turn its exhibits red."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sonde.atlas import linear_models
from sonde.atlas.exhibit import run
from sonde.estimators import bayes, least_squares, logistic
from sonde.objectives import gaussian
from tests.atlas.mistakes import wrong as failed


def wrong(row):
    """Names of the expectations that did not hold, in one line."""
    return "; ".join(failed(row))


@pytest.fixture
def mistake_fn_sign(monkeypatch):
    right = linear_models._slope
    monkeypatch.setattr(linear_models, "_slope", lambda phi: -right(phi))


def test_fn_03_notices_a_lost_minus(mistake_fn_sign):
    assert "gradient at (0, 0)" in wrong("FN-03")


def test_fn_03_notices_a_half_that_is_forgotten(monkeypatch):
    """C-04: sum or mean, with or without a half, are told apart."""
    right = gaussian.squared_error
    monkeypatch.setattr(gaussian, "squared_error", lambda output, y, reduction="mean", half=False: right(output, y, reduction))
    names = wrong("FN-03")
    assert "mean, half: gradient" in names and "Gaussian likelihood" in names and "; sum: gradient" not in names


def test_fn_04_notices_a_gradient_that_points_down(mistake_fn_sign):
    assert "least rise" in wrong("FN-04")


def test_fn_04_notices_a_slope_that_is_not_the_gradient(monkeypatch):
    right = linear_models._slope
    monkeypatch.setattr(linear_models, "_slope", lambda phi: right(phi).flip(0))
    assert "gradient . tangent" in wrong("FN-04")


def test_fn_05_notices_steps_uphill(monkeypatch):
    right = linear_models.descend
    monkeypatch.setattr(linear_models, "descend", lambda loss, phi, rate, eps, most=1000: right(loss, phi, -rate, eps, most))
    assert "how it ended" in wrong("FN-05")


def test_fn_02_notices_a_bias_that_is_not_fitted(monkeypatch):
    right = least_squares._Affine._fit

    def through_zero(self, *args, **kwargs):
        self.fit_intercept = False
        right(self, *args, **kwargs)

    monkeypatch.setattr(least_squares._Affine, "_fit", through_zero)
    assert "best affine fit to exclusive-or" in wrong("FN-02")


def test_fn_06_notices_a_small_ridge(monkeypatch):
    right = least_squares.solve
    monkeypatch.setattr(least_squares, "solve", lambda table, alpha, solver="auto": right(table, alpha + 1e-6, solver))
    assert "SciPy" in wrong("FN-06")


def test_fn_07_notices_rows_and_columns_swapped(monkeypatch):
    right = least_squares.flops
    monkeypatch.setattr(least_squares, "flops", lambda rows, columns: right(columns, rows))
    names = wrong("FN-07")
    assert "operations of X^T X against a counter" in names and "inverse" in names and "the whole solution: log-log slope in D" in names


def test_fn_07_notices_a_solution_that_costs_more_than_its_product(monkeypatch):
    """An inverse of a matrix of rows, not of columns."""
    right = least_squares.flops
    monkeypatch.setattr(least_squares, "flops", lambda rows, columns: {**right(rows, columns), "inverse": right(columns, rows)["inverse"]})
    names = wrong("FN-07")
    assert "operations of the inverse" in names and "the whole solution: log-log slope in N" in names and "of X^T X" not in names


def test_fn_07_does_not_hang_on_the_clock(monkeypatch):
    """Whatever the machine's times are, the verdict is that of the counts."""
    monkeypatch.setattr(linear_models, "_seconds", lambda rows, columns, whole=False: 1e-9 * rows**2 / columns)
    assert run("FN-07").passed


def test_fn_08_notices_a_bias_that_is_shrunk(monkeypatch):
    right = least_squares._Affine._fit

    def shrunk(self, X, y, weight, alpha, **kwargs):
        right(self, X, y, weight, alpha, penalize_bias=alpha > 0)

    monkeypatch.setattr(least_squares._Affine, "_fit", shrunk)
    assert "bias free" in wrong("FN-08")


def test_fn_08_notices_silence_about_a_singular_table(monkeypatch):
    right = least_squares._svd
    monkeypatch.setitem(least_squares.FACTORIZATIONS, "svd", lambda table, *args: replace(right(table, *args), rank=table.X.shape[1]))
    names = wrong("FN-08")
    assert "a column twice" in names and "singular, rank" in names


def test_fn_08_notices_prior_and_noise_swapped(monkeypatch):
    right = bayes.MAPRegression.fit

    def swapped(self, X, y):
        self.tau, self.sigma = self.sigma, self.tau
        return right(self, X, y)

    monkeypatch.setattr(bayes.MAPRegression, "fit", swapped)
    assert "lambda" in wrong("FN-08")


def test_fn_09_notices_arctan_without_quadrants(monkeypatch):
    def printed(x):
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.column_stack([np.hypot(x[:, 0], x[:, 1]), np.nan_to_num(np.arctan(x[:, 1] / x[:, 0]))])

    monkeypatch.setattr(linear_models, "polar", printed)
    assert "theta of (-1, 0)" in wrong("FN-09")


def test_fn_09_notices_features_that_are_the_old_ones(monkeypatch):
    right = linear_models.polar
    monkeypatch.setattr(linear_models, "polar", lambda x: x if len(x) > 3 else right(x))
    assert wrong("FN-09") == "accuracy on (r, theta), each seed"


def test_fn_01_notices_a_tenth_of_the_rate(monkeypatch):
    right = linear_models.torch.optim.SGD
    monkeypatch.setattr(linear_models.torch.optim, "SGD", lambda parameters, lr: right(parameters, lr=lr / 10))
    assert wrong("FN-01") == "loss after 100 gradient steps, as a share of the first"


def test_fn_10_notices_a_penalty_nobody_asked_for(monkeypatch):
    right = logistic.Problem.__init__
    monkeypatch.setattr(
        logistic.Problem, "__init__", lambda self, X, codes, outputs, s, alpha, bias: right(self, X, codes, outputs, s, alpha + 0.1, bias)
    )
    assert "gradient where Newton ends" in wrong("FN-10")


def test_fn_11_notices_duels_that_go_to_the_loser(monkeypatch):
    right = logistic._duels
    monkeypatch.setattr(logistic, "_duels", lambda z, K: right(-z, K))
    assert "one-vs-one: accuracy" in wrong("FN-11")
