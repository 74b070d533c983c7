"""MAP regression against scikit-learn's Bayesian ridge at the same precisions, and against draws from the posterior."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_diabetes
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, DotProduct
from sklearn.linear_model import Ridge

from sonde.core.errors import BadInput
from sonde.estimators import MAPRegression

X, Y = load_diabetes(return_X_y=True)
X = X / X.std(0)
SIGMA, TAU = 54.0, 11.0


def test_the_mean_is_ridge():
    ours = MAPRegression(tau=TAU, sigma=SIGMA).fit(X, Y)
    theirs = Ridge(SIGMA**2 / TAU**2).fit(X, Y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-10)
    assert ours.intercept_ == pytest.approx(theirs.intercept_) and ours.lambda_ == pytest.approx(SIGMA**2 / TAU**2)


@pytest.mark.parametrize("rows", [6, 200])
@pytest.mark.parametrize("bias", [False, True])
def test_mean_and_spread_of_a_prediction_are_those_of_a_gaussian_process(rows, bias):
    """With the kernel tau^2 x.x' (and a huge constant for the flat bias) the process is the same model in other words."""
    kernel = ConstantKernel(TAU**2, "fixed") * DotProduct(0.0, "fixed") + ConstantKernel(1e8 if bias else 1e-12, "fixed")
    process = GaussianProcessRegressor(kernel, alpha=SIGMA**2, optimizer=None).fit(X[:rows], Y[:rows])
    ours = MAPRegression(TAU, SIGMA, fit_intercept=bias).fit(X[:rows], Y[:rows])
    mean, spread = ours.predict(X[200:230], return_std=True)
    their_mean, their_spread = process.predict(X[200:230], return_std=True)
    # The constant is finite and large, which costs the process some digits.
    np.testing.assert_allclose(mean, their_mean, rtol=2e-3 if bias else 1e-7)
    np.testing.assert_allclose(spread, np.sqrt(their_spread**2 + SIGMA**2), rtol=2e-3 if bias else 1e-7)


def test_weights_are_repeated_measurements():
    counts = np.arange(len(Y)) % 3 + 1
    repeated = MAPRegression(TAU, SIGMA).fit(np.repeat(X, counts, 0), np.repeat(Y, counts))
    weighed = MAPRegression(TAU, SIGMA).fit(X, Y, counts)
    np.testing.assert_allclose(weighed.coef_, repeated.coef_, rtol=1e-9)
    np.testing.assert_allclose(weighed.covariance_, repeated.covariance_, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(weighed.predict(X, True)[1], repeated.predict(X, True)[1], rtol=1e-9)


@pytest.mark.parametrize("settings", [{"tau": 1e-200}, {"sigma": 1e200}])
def test_a_variance_out_of_reach_of_float64_is_refused(settings):
    with pytest.raises(BadInput, match="whose squares a float64 cannot hold"):
        MAPRegression(**settings).fit(X, Y)


def test_a_wide_prior_on_few_rows():
    """Directions the rows do not show keep the prior's variance, to rounding; those they show have next to none."""
    x = np.random.default_rng(0).normal(size=(5, 20))
    ours = MAPRegression(tau=1e5, sigma=1e-4, fit_intercept=False).fit(x, x[:, 0])
    unseen = np.eye(20) - np.linalg.pinv(x) @ x
    np.testing.assert_allclose(ours.covariance_, 1e10 * unseen, atol=1e-3)
    np.testing.assert_allclose(ours.coef_, np.linalg.pinv(x) @ x[:, 0], atol=1e-9)
