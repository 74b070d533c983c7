"""MAP regression: ridge regression read as a posterior, so that a prediction comes with its spread.

    y = w.x + b + noise,  noise ~ N(0, sigma^2),  w ~ N(0, tau^2 I),  b unknown (flat)
    -log posterior = sum_i (y_i - w.x_i - b)^2 / (2 sigma^2) + norm(w)^2 / (2 tau^2) + constant

Times 2 sigma^2 this is ridge with lambda = sigma^2 / tau^2.  The posterior of w is Gaussian: its mean is the ridge
solution, its covariance sigma^2 (X^T X + lambda I)^-1 on centered rows.
"""

from __future__ import annotations

from typing import Any, final

import numpy as np
from scipy.linalg import cho_solve
from sklearn.base import BaseEstimator, RegressorMixin

from ._base import Positive, check_magnitudes, checked_arguments, finite, validate_features, validate_targets, weights
from ._moments import EPS, MomentTable
from .least_squares import Solution, solve


@final
class MAPRegression(RegressorMixin, BaseEstimator):
    """Linear regression with a Gaussian prior.  After `fit`: coef_, intercept_ (posterior mean), covariance_ of w, lambda_.

    Args:
        tau: standard deviation of each weight before any data
        sigma: standard deviation of the noise on a target; a row of weight s has the variance sigma^2 / s
        fit_intercept: learn a bias, about which nothing is known beforehand
    """

    def __init__(self, tau: Positive = 1.0, sigma: Positive = 1.0, fit_intercept: bool = True) -> None:
        self.tau = tau
        self.sigma = sigma
        self.fit_intercept = fit_intercept

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> MAPRegression:
        """X (N, D), y (N,), and a weight for each row if some targets are measured better than others."""
        X, y = validate_targets(self, X, y)
        arguments = checked_arguments(self)
        for name in ("sigma", "tau"):
            check_magnitudes(name, np.array([[getattr(arguments, name)]]))
        noise = arguments.sigma**2
        self.lambda_ = noise / arguments.tau**2
        table = MomentTable(X, y[:, None], weights(sample_weight, X), center=self.fit_intercept)
        solution = solve(table, self.lambda_)
        self.coef_ = solution.weights[:, 0]
        self.intercept_ = float(table.target[0] - self.coef_ @ table.mean)
        self.covariance_ = noise * _inverse(table, self.lambda_, solution)
        self._mean, self._level_variance = table.mean, noise / table.n if self.fit_intercept else 0.0
        finite(self, "coef_", "intercept_", "covariance_")
        return self

    def predict(self, X: Any, return_std: bool = False) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Mean of a new target for each row; with `return_std` also its standard deviation, noise included."""
        X = validate_features(self, X)
        mean = X @ self.coef_ + self.intercept_
        if not return_std:
            return mean
        away = X - self._mean
        return mean, np.sqrt(self.sigma**2 + self._level_variance + np.einsum("nd,de,ne->n", away, self.covariance_, away, optimize=True))


def _inverse(table: MomentTable, penalty: float, solution: Solution) -> np.ndarray:
    """(X^T X + penalty I)^-1, from the factor that is there, else by singular values, which a tiny penalty is not lost beside."""
    N, D = table.X.shape
    if solution.solver == "cholesky" and N >= D:
        return cho_solve((solution.factor, True), np.eye(D))
    _, values, Vt = np.linalg.svd(np.vstack([table.design, np.zeros((max(D - N, 0), D))]), full_matrices=False)
    return Vt.T / (np.where(values > EPS * max(N, D) * values[0], values, 0.0) ** 2 + penalty) @ Vt
