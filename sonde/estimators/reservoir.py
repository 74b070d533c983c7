"""Reservoir computing (echo state network): a fixed random recurrent net, of which only the readout is learned.

    h_t = (1 - leak) h_{t-1} + leak tanh(W_in x_t + W_hh h_{t-1} + b)        y_t = W_ho [x_t; h_t] + c

W_hh is random and scaled to a chosen spectral radius, so the influence of past inputs decays; W_ho is ridge regression in
closed form.  Jaeger, The "echo state" approach, 2001.

Rows of X are steps of one sequence, in order: a prediction depends on the rows before it.
"""

from __future__ import annotations

from typing import Annotated, Any, final

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin

from ..core.errors import BadInput
from ..core.options import Count, Range
from ._base import NonNegative, Positive, check_fitted, checked_arguments, finite, validate_features, validate_targets
from ._moments import MomentTable
from .least_squares import solve


@final
class Reservoir(MultiOutputMixin, RegressorMixin, BaseEstimator):
    """A sequence to a sequence of numbers.  After `fit`: coef_, intercept_, W_in_, W_, bias_.

    Args:
        units: width of the state
        radius: largest absolute eigenvalue of W_hh; below 1 the past fades, near 1 slowly
        alpha: penalty of the readout's weights, as in Ridge
        scale: size of the random input weights and biases
        leak: how much of the state is new at each step
        density: fraction of nonzero entries of W_hh; below 0.5 it is stored as a sparse matrix
        washout: first steps that the fit leaves out, because they depend on the zero initial state; at most half of all steps
        random_state: seed of the fixed weights
    """

    coef_: np.ndarray
    intercept_: Any

    def __init__(  # noqa: PLR0913 - the choices of a reservoir
        self,
        units: Count = 200,
        radius: NonNegative = 0.9,
        alpha: NonNegative = 1e-6,
        scale: Positive = 0.5,
        leak: Annotated[float, Range(above=0, most=1)] = 1.0,
        density: Annotated[float, Range(above=0, most=1)] = 1.0,
        washout: Annotated[int, Range(0)] = 50,
        random_state: int = 0,
    ) -> None:
        self.units = units
        self.radius = radius
        self.alpha = alpha
        self.scale = scale
        self.leak = leak
        self.density = density
        self.washout = washout
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True  # scikit-learn's only tag for predictions that depend on other rows
        return tags

    def fit(self, X: Any, y: Any) -> Reservoir:
        """X (T, D), y (T,) or (T, K): fit the readout that predicts y_t from the state after x_1 ... x_t."""
        X, y = validate_targets(self, X, y, multi_output=True)
        arguments = checked_arguments(self)
        self._draw(X.shape[1], arguments.units, arguments.radius, arguments.scale)
        skipped = min(arguments.washout, len(X) // 2)
        table = MomentTable(np.column_stack([X, self._states(X)])[skipped:], y.reshape(len(y), -1)[skipped:])
        W = solve(table, arguments.alpha).weights.T
        bias = table.target - W @ table.mean
        self.coef_, self.intercept_ = (W[0], float(bias[0])) if y.ndim == 1 else (W, bias)
        finite(self, "coef_", "intercept_")
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The prediction for each step of X, starting from a zero state."""
        X = validate_features(self, X)
        return self._read(X, self._states(X))

    def states(self, X: Any) -> np.ndarray:
        """(T, units) the state of the reservoir after each step of X."""
        return self._states(validate_features(self, X))

    def forecast(self, X: Any, steps: int) -> np.ndarray:
        """Forecast the steps after X: each prediction is the next input.  For a reservoir that was fitted to predict x_{t+1} from x_t."""
        check_fitted(self)
        X = validate_features(self, X)
        if np.atleast_2d(self.coef_).shape[0] != X.shape[1]:
            raise BadInput(f"outputs cannot be the next inputs: there are {X.shape[1]} inputs", fix="fit it with y = the next row of X")
        h = self._states(X)[-1:]
        x, predictions = self._read(X[-1:], h).reshape(1, -1), []
        for _ in range(steps):
            predictions.append(x[0])
            h = self._states(x, h[0])
            x = self._read(x, h).reshape(1, -1)
        return np.array(predictions).reshape(steps, *np.shape(self.intercept_))

    def _draw(self, inputs: int, units: int, radius: float, scale: float) -> None:
        """The fixed weights."""
        rng = np.random.default_rng(self.random_state)
        self.W_in_, self.bias_ = rng.uniform(-scale, scale, (units, inputs)), rng.uniform(-scale, scale, units)
        W = rng.standard_normal((units, units)) * (rng.random((units, units)) < self.density)
        largest = float(np.abs(np.linalg.eigvals(W)).max())
        if radius and largest < 1e-6 * float(np.abs(W).max(initial=0.0)) + 1e-300:
            raise BadInput(
                f"{units} units with density {self.density:g} have no cycle, so the spectral radius is 0", fix="raise units or density"
            )
        W *= radius / largest if radius else 0.0
        self.W_: Any = sparse.csr_array(W) if self.density < 0.5 else W

    def _states(self, X: np.ndarray, h: np.ndarray | None = None) -> np.ndarray:
        drive, states = X @ self.W_in_.T + self.bias_, np.empty((len(X), len(self.bias_)))
        h = np.zeros(len(self.bias_)) if h is None else h
        for t, now in enumerate(drive):
            h = (1 - self.leak) * h + self.leak * np.tanh(now + self.W_ @ h)
            states[t] = h
        return states

    def _read(self, X: np.ndarray, states: np.ndarray) -> np.ndarray:
        return np.column_stack([X, states]) @ self.coef_.T + self.intercept_
