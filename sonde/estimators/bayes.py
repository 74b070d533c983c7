"""MAP regression: ridge regression read as a posterior, so that a prediction comes with its spread.

    y = w.x + b + noise,  noise ~ N(0, sigma^2),  w ~ N(0, tau^2 I),  b unknown (flat)
    -log posterior = sum_i (y_i - w.x_i - b)^2 / (2 sigma^2) + norm(w)^2 / (2 tau^2) + constant

Times 2 sigma^2 this is ridge with lambda = sigma^2 / tau^2.  The posterior of w is Gaussian: its mean is the ridge
solution, its covariance sigma^2 (X^T X + lambda I)^-1 on centred rows.
"""

from __future__ import annotations

from typing import Any, final

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from sklearn.base import BaseEstimator, RegressorMixin

from ._base import features, number, weights, with_targets
from ._moments import Table
from .least_squares import solve


@final
class MAPRegression(RegressorMixin, BaseEstimator):
    """Linear regression with a Gaussian prior.  After `fit`: coef_, intercept_ (posterior mean), covariance_ of w, lambda_.

    tau: standard deviation of each weight before any data
    sigma: standard deviation of the noise on a target; a row of weight s has the variance sigma^2 / s
    fit_intercept: learn a bias, about which nothing is known beforehand
    """

    def __init__(self, tau: float = 1.0, sigma: float = 1.0, fit_intercept: bool = True) -> None:
        self.tau = tau
        self.sigma = sigma
        self.fit_intercept = fit_intercept

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> MAPRegression:
        """X (N, D), y (N,), and a weight for each row if some targets are measured better than others."""
        X, y = with_targets(self, X, y)
        noise = number("sigma", self.sigma, 0.0, open_=True) ** 2
        self.lambda_ = noise / number("tau", self.tau, 0.0, open_=True) ** 2
        table = Table(X, y[:, None], weights(sample_weight, X), centre=self.fit_intercept)
        self.coef_ = solve(table, self.lambda_).weights[:, 0]
        self.intercept_ = float(table.target[0] - self.coef_ @ table.mean)
        identity = np.eye(X.shape[1])
        self.covariance_ = noise * cho_solve(cho_factor(table.scatter + self.lambda_ * identity), identity)
        self._mean, self._level_variance = table.mean, noise / table.n if self.fit_intercept else 0.0
        return self

    def predict(self, X: Any, return_std: bool = False) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Mean of a new target for each row; with `return_std` also its standard deviation, noise included."""
        X = features(self, X)
        mean = X @ self.coef_ + self.intercept_
        if not return_std:
            return mean
        away = X - self._mean
        return mean, np.sqrt(self.sigma**2 + self._level_variance + np.einsum("nd,de,ne->n", away, self.covariance_, away, optimize=True))
