"""Least squares and ridge against scikit-learn, SciPy and worked numbers."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import lstsq
from sklearn.datasets import load_diabetes
from sklearn.linear_model import LinearRegression
from sklearn.linear_model import Ridge as TheirRidge

from sonde.core.errors import BadInput
from sonde.estimators import PCA, LeastSquares, MAPRegression, Ridge
from sonde.estimators._base import ConstantTarget
from sonde.estimators._moments import MomentTable
from sonde.estimators.least_squares import Singular

X, Y = load_diabetes(return_X_y=True)
S = np.random.default_rng(0).random(len(Y))
solvers = pytest.mark.parametrize("solver", ["auto", "cholesky", "qr", "svd"])


def close(ours, theirs, rtol=1e-9):
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=rtol, atol=rtol)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, rtol=rtol, atol=rtol)


@solvers
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("weight", [None, S])
def test_real_data(solver, bias, weight):
    close(LeastSquares(bias, solver=solver).fit(X, Y, weight), LinearRegression(fit_intercept=bias).fit(X, Y, weight))
    close(Ridge(0.3, bias, solver=solver).fit(X, Y, weight), TheirRidge(0.3, fit_intercept=bias).fit(X, Y, weight))


@solvers
def test_several_targets(solver):
    several = np.column_stack([Y, Y**0.5, X[:, 2] * Y])
    ours = Ridge(2.0, solver=solver).fit(X, several)
    close(ours, TheirRidge(2.0).fit(X, several))
    assert ours.coef_.shape == (3, 10) and ours.predict(X).shape == (442, 3)


@pytest.mark.parametrize("solver", ["auto", "cholesky", "qr", "svd"])
def test_fewer_rows_than_columns(solver):
    close(Ridge(0.3, solver=solver).fit(X[:7], Y[:7]), TheirRidge(0.3).fit(X[:7], Y[:7]))
    with pytest.warns(Singular, match="10 columns of rank 6 after centering"):
        ours = LeastSquares().fit(X[:7], Y[:7])
    shortest = lstsq(X[:7] - X[:7].mean(0), Y[:7] - Y[:7].mean())[0]
    np.testing.assert_allclose(ours.coef_, shortest, rtol=1e-9)
    assert ours.solver_ == "svd" and ours.condition_ == np.inf


def test_the_factorization_follows_the_condition():
    near = np.vander(np.linspace(0, 1, 50), 13, increasing=True)[:, 1:]
    target = np.cos(near[:, 0])
    easy, hard = LeastSquares().fit(X, Y), LeastSquares().fit(near, target)
    assert (easy.solver_, hard.solver_) == ("cholesky", "qr")
    for model, table in ((easy, X), (hard, near)):
        assert model.condition_ == pytest.approx(np.linalg.cond(table - table.mean(0)), rel=1e-6)
    np.testing.assert_allclose(hard.predict(near), target, atol=1e-14)


def test_a_far_mean_costs_no_digits():
    far = X + 1e6
    np.testing.assert_allclose(LeastSquares().fit(far, Y).coef_, LeastSquares().fit(far - 1e6, Y).coef_, rtol=1e-9)
    table = MomentTable(far, Y[:, None], S)
    exact = MomentTable(far - 1e6, Y[:, None], S)
    np.testing.assert_allclose(table.scatter, exact.scatter, rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(table.cross, exact.cross, rtol=1e-8)


@pytest.mark.parametrize("level", [0.1, 1e9, 1 / 3])
def test_a_constant_column_gets_no_weight(level):
    table = np.column_stack([X, np.full(len(X), level)])
    with pytest.warns(Singular, match="rank 10"):
        ours = LeastSquares().fit(table, Y)
    assert ours.coef_[-1] == 0
    np.testing.assert_allclose(ours.coef_[:-1], LeastSquares().fit(X, Y).coef_, rtol=1e-9)
    assert Ridge(1.0).fit(table, Y).coef_[-1] == 0


def test_units_do_not_make_it_singular():
    units = X * np.logspace(-12, 12, 10)
    ours = LeastSquares().fit(units, Y)
    assert not ours.singular_
    np.testing.assert_allclose(ours.predict(units), LeastSquares().fit(X, Y).predict(X), rtol=1e-9)


def test_singular_is_reported():
    twice = np.column_stack([X, X[:, 3]])
    with pytest.raises(BadInput, match="11 columns of rank 10") as caught:
        LeastSquares(singular="refuse").fit(twice, Y)
    assert isinstance(caught.value, ValueError) and "Ridge" in caught.value.fix
    for solver in ("cholesky", "qr"):
        with pytest.raises(BadInput, match="singular"):
            LeastSquares(solver=solver).fit(twice, Y)
    with pytest.warns(Singular):
        ours = LeastSquares().fit(twice, Y)
    assert ours.singular_ and ours.rank_ == 10
    np.testing.assert_allclose(ours.coef_[3], ours.coef_[10])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not Ridge(1e-3).fit(twice, Y).singular_


def test_bias_is_penalized_only_on_request():
    free, shrunk = Ridge(50.0).fit(X, Y), Ridge(50.0, penalize_bias=True).fit(X, Y)
    np.testing.assert_allclose(free.intercept_, Y.mean())
    assert shrunk.intercept_ < 0.95 * Y.mean()
    folded = TheirRidge(50.0, fit_intercept=False).fit(np.column_stack([X, np.ones(len(X))]), Y)
    np.testing.assert_allclose([*shrunk.coef_, shrunk.intercept_], folded.coef_, rtol=1e-9)


def test_nearest_setting_is_named():
    with pytest.raises(BadInput, match="did you mean 'cholesky'"):
        Ridge(solver="choleski").fit(X, Y)


def test_constant_targets_are_named():
    with pytest.warns(ConstantTarget, match="442 targets are equal"):
        ours = LeastSquares().fit(X, np.full(len(X), 3.5))
    np.testing.assert_allclose(ours.coef_, 0, atol=1e-12)
    assert ours.intercept_ == pytest.approx(3.5)


@pytest.mark.parametrize("weight, word", [(-S, "negative"), (0 * S, "zero"), (S[:5], "442 rows"), (S + np.inf, "inf")])
def test_wrong_weights(weight, word):
    with pytest.raises(BadInput, match=word):
        Ridge().fit(X, Y, weight)


@given(rows=st.integers(1, 9), columns=st.integers(1, 9), alpha=st.sampled_from([1e-6, 0.1, 30.0]), seed=st.integers(0, 99))
def test_any_shape(rows, columns, alpha, seed):
    draw = np.random.default_rng(seed)
    x, y = draw.normal(size=(rows, columns)), draw.normal(size=rows)
    ours = Ridge(alpha, fit_intercept=False).fit(x, y)
    np.testing.assert_allclose(x.T @ (x @ ours.coef_ - y) + alpha * ours.coef_, 0, atol=1e-7)


@pytest.mark.parametrize("scale", [1e160, 1e154, 1e-160, 1e-200])
@pytest.mark.parametrize("model", [LeastSquares(), LeastSquares(solver="svd"), Ridge(), MAPRegression(), PCA(2), PCA(2, solver="svd")])
def test_numbers_whose_squares_are_lost_are_refused(model, scale):
    with pytest.raises(BadInput, match="whose squares a float64 cannot hold; rescale them"):
        model.fit(X * scale, Y)


@pytest.mark.parametrize("scale", [1e60, 1e-60])
def test_far_units_that_can_be_squared(scale):
    np.testing.assert_allclose(LeastSquares().fit(X * scale, Y).predict(X * scale), LinearRegression().fit(X, Y).predict(X), rtol=1e-9)
    close(Ridge().fit(X, Y, np.full(len(Y), 1e60)), LinearRegression().fit(X, Y))
    close(Ridge().fit(X, Y, 2.0), TheirRidge().fit(X, Y, 2.0))


def test_weights_and_targets_beyond_float64():
    for weight in (1e300, 1e307, 1e-300):
        with pytest.raises(BadInput, match="sample_weight has numbers of size"):
            Ridge().fit(X, Y, np.full(len(Y), weight))
    with np.errstate(all="ignore"), pytest.raises(BadInput, match="out of the range of float64"):
        LeastSquares().fit(X, Y * 1e305)


@pytest.mark.parametrize("alpha", [1e-30, 1e-24, 1e-18, 1e-12, 1e-6])
def test_a_tiny_penalty_shares_evenly_between_equal_columns(alpha):
    one = LinearRegression().fit(X[:, 2:3], Y).coef_[0]
    np.testing.assert_allclose(Ridge(alpha).fit(X[:, [2, 2]], Y).coef_, [one / 2, one / 2], rtol=1e-5)
    with pytest.raises(BadInput, match="singular"):
        Ridge(1e-24, solver="qr").fit(X[:, [2, 2]], Y)
