"""A table of rows, its means and its second moments: the statistics for least squares, MAP regression and PCA.

    n = sum_i s_i                                    mean = sum_i s_i x_i / n
    scatter = sum_i s_i (x_i - mean)(x_i - mean)^T   cross = sum_i s_i (x_i - mean)(y_i - ybar)^T

N rows, D features, K targets, s weights of the rows
"""

from __future__ import annotations

from functools import cached_property
from typing import final

import numpy as np

from ._base import REACH, check_magnitudes

EPS = float(np.finfo(np.float64).eps)
ROWS = 4096
"""rows that are centered at a time, so that they are still in the cache when they are multiplied"""
LOST = 1e3
"""X^T X - n mean mean^T may cost this factor in precision before rows are centered first"""


@final
class MomentTable:
    """Rows X (N, D) with targets Y (N, K) and weights s; results are computed once.  Without `center` means are 0."""

    def __init__(self, X: np.ndarray, Y: np.ndarray | None = None, s: np.ndarray | None = None, center: bool = True) -> None:
        self.X, self.s, self.center = X, s, center
        self.Y = np.zeros((len(X), 0)) if Y is None else Y
        self.n = float(len(X) if s is None else s.sum())
        self.mean, self.target = self._mean(X), self._mean(self.Y)

    @property
    def scatter(self) -> np.ndarray:
        """(D, D)."""
        return self._products[0]

    @property
    def cross(self) -> np.ndarray:
        """(D, K)."""
        return self._products[1]

    @cached_property
    def _products(self) -> tuple[np.ndarray, np.ndarray]:
        """X^T X in one piece with the mean taken off it; where that would cancel digits, rows are centered first, some at a time."""
        D, K = self.X.shape[1], self.Y.shape[1]
        if self.s is None:
            with np.errstate(over="ignore", invalid="ignore"):
                square = self.X.T @ self.X  # NumPy sees one array twice and does half the work
            diagonal = square.diagonal()
            check_magnitudes("X", self.X[:, ~((diagonal > 1 / REACH) & (diagonal < REACH))])
            if (square.diagonal() <= LOST * (square.diagonal() - self.n * self.mean**2)).all():
                square -= self.n * np.outer(self.mean, self.mean)
                return square, self.X.T @ self.targets
        else:
            check_magnitudes("X", self.X)
        square, cross, left = np.zeros((D, D)), np.zeros((D, K)), np.zeros(D)
        for start in range(0, len(self.X), ROWS):
            rows = slice(start, start + ROWS)
            A = self._root(self.X[rows] - self.mean, rows)
            square += A.T @ A
            cross += A.T @ self.targets[rows]
            left += self._root(A, rows).sum(0)
        if self.center:  # the mean is rounded; what it left behind counts where it is large beside the spread
            square -= np.outer(left, left) / self.n
            constant = square.diagonal() <= self.n * (len(self.X) * EPS * self.mean) ** 2
            square[constant], square[:, constant], cross[constant] = 0.0, 0.0, 0.0
        return square, cross

    @cached_property
    def design(self) -> np.ndarray:
        """(N, D): rows less their mean, times the root of their weight.  A column that is constant but for rounding is 0."""
        check_magnitudes("X", self.X)
        A = self.X - self.mean
        if self.center:
            A -= self._mean(A)
            A[:, np.abs(A).max(0, initial=0.0) <= len(A) * EPS * np.abs(self.mean)] = 0.0
        return self._root(A)

    @cached_property
    def targets(self) -> np.ndarray:
        """(N, K): the same of the targets."""
        return self._root(self.Y - self.target)

    def _mean(self, values: np.ndarray) -> np.ndarray:
        if not self.center:
            return np.zeros(values.shape[1])
        with np.errstate(over="ignore", invalid="ignore"):  # callers check the result
            return values.mean(0) if self.s is None else self.s @ values / self.n

    def _root(self, values: np.ndarray, rows: slice = slice(None)) -> np.ndarray:
        return values if self.s is None else values * np.sqrt(self.s[rows, None])
