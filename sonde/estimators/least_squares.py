"""Least squares and ridge regression: the closed form, by the cheapest factorization that is exact enough for the data.

    min_{w,b}  sum_i s_i (y_i - w.x_i - b)^2 + alpha norm(w)^2        w = (X^T X + alpha I)^-1 X^T y  on centered rows

On centered rows the bias drops out, which is why it is not penalized.  The factorizations, from cheap to safe:

    cholesky   of X^T X + alpha I: half the work of the next, but it squares the condition number.  With fewer rows than
               columns, of X X^T + alpha I
    qr         of X (below it sqrt(alpha) I): keeps the condition number
    svd        of X: shows the rank, and of all solutions takes the one with the smallest weights

N rows, D features, K targets; weights are stored (K, D), a single target gives (D,).
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np
from scipy.linalg import lapack, qr, solve_triangular, svd
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin

from ..core.errors import BadInput
from ._base import NonNegative, checked_arguments, finite, validate_features, validate_targets, weights
from ._moments import EPS, MomentTable

SAFE = 1e-8
"""reciprocal condition of X^T X below which the next factorization is tried: half the digits of a float64 remain"""
LeastSquaresSolver = Literal["auto", "cholesky", "qr", "svd"]


class Singular(UserWarning):
    """The columns of X are linearly dependent, so many weights fit equally well."""


@final
@dataclass(frozen=True)
class Solution:
    """Weights (D, K) of the centered problem, and how they were found."""

    weights: np.ndarray
    solver: str
    rank: int
    factor: np.ndarray
    """a small matrix with the singular values of what was factorized"""

    @property
    def condition(self) -> float:
        values = np.linalg.svd(self.factor, compute_uv=False)
        return float(values[0] / values[-1]) if values[-1] > 0 else float("inf")


class _Affine(BaseEstimator):
    """y = W x + b by `solve`."""

    coef_: np.ndarray
    intercept_: Any

    def predict(self, X: Any) -> np.ndarray:
        """W x + b for each row."""
        return validate_features(self, X) @ self.coef_.T + self.intercept_

    @property
    def condition_(self) -> float:
        """Largest over smallest singular value of the centered, weighted and penalized X; infinite where that is singular."""
        return float("inf") if self.singular_ else self._solution.condition

    def _fit(self, X: Any, y: Any, sample_weight: Any, alpha: float, *, penalize_bias: bool = False) -> None:
        X, y = validate_targets(self, X, y, multi_output=True)
        s = weights(sample_weight, X)
        folded = self.fit_intercept and penalize_bias
        if folded:
            X = np.column_stack([X, np.ones(len(X))])
        table = MomentTable(X, y.reshape(len(y), -1), s, center=self.fit_intercept and not folded)
        self._solution = solve(table, alpha, self.solver)
        self.solver_, self.rank_ = self._solution.solver, self._solution.rank
        self.singular_ = self.rank_ < X.shape[1]
        W = self._solution.weights.T
        W, bias = (W[:, :-1], W[:, -1]) if folded else (W, table.target - W @ table.mean)
        self.coef_, self.intercept_ = (W[0], float(bias[0])) if y.ndim == 1 else (W, bias)
        finite(self, "coef_", "intercept_")


@final
class LeastSquares(MultiOutputMixin, RegressorMixin, _Affine):
    """Ordinary least squares.  After `fit`: coef_, intercept_, solver_, condition_, rank_, singular_.

    Args:
        fit_intercept: learn a bias
        solver: 'cholesky', 'qr' or 'svd'; 'auto' picks by shape and condition
        singular: where columns are linearly dependent, 'warn' and take the smallest weights that fit, or 'refuse'
    """

    def __init__(
        self, fit_intercept: bool = True, solver: LeastSquaresSolver = "auto", singular: Literal["warn", "refuse"] = "warn"
    ) -> None:
        self.fit_intercept = fit_intercept
        self.solver = solver
        self.singular = singular

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> LeastSquares:
        """X (N, D), y (N,) or (N, K), and a weight for each row if rows count differently."""
        checked_arguments(self)
        self._fit(X, y, sample_weight, 0.0)
        if self.singular_:
            what = f"X is singular: {self.n_features_in_} columns of rank {self.rank_}" + (" after centering" if self.fit_intercept else "")
            if self.singular == "refuse":
                raise BadInput(what, fix="drop columns that follow from others, or use Ridge")
            warnings.warn(f"{what}; of all solutions the smallest weights are taken", Singular, stacklevel=2)
        return self


@final
class Ridge(MultiOutputMixin, RegressorMixin, _Affine):
    """Least squares with a penalty alpha norm(w)^2.  After `fit`: coef_, intercept_, solver_, condition_, rank_, singular_.

    Args:
        alpha: weight of the penalty against the sum (not the mean) of squares; 0 is least squares
        fit_intercept: learn a bias
        penalize_bias: fold the bias into w as the weight of a constant 1, so that it is shrunk too
        solver: 'cholesky', 'qr' or 'svd'; 'auto' picks by shape and condition
    """

    def __init__(
        self, alpha: NonNegative = 1.0, fit_intercept: bool = True, penalize_bias: bool = False, solver: LeastSquaresSolver = "auto"
    ) -> None:
        self.alpha = alpha
        self.fit_intercept = fit_intercept
        self.penalize_bias = penalize_bias
        self.solver = solver

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Ridge:
        """X (N, D), y (N,) or (N, K), and a weight for each row if rows count differently."""
        self._fit(X, y, sample_weight, checked_arguments(self).alpha, penalize_bias=self.penalize_bias)
        return self


def solve(table: MomentTable, alpha: float, solver: str = "auto") -> Solution:
    """The centered problem by the named factorization, or by the first of the three that is exact enough."""
    if solver != "auto":
        solution = FACTORIZATIONS[solver](table, alpha, EPS * max(table.X.shape))
        if solution is None:
            raise BadInput(
                f"X is singular, and solver='{solver}' cannot determine its rank", fix="use solver='svd', or Ridge with alpha > 0"
            )
        return solution
    for factorize in FACTORIZATIONS.values():
        solution = factorize(table, alpha, SAFE)
        if solution is not None:
            return solution
    raise AssertionError("the SVD works for every matrix")


def _cholesky(table: MomentTable, alpha: float, min_rcond: float) -> Solution | None:
    """None where the reciprocal condition, with all columns scaled to length 1, is below `min_rcond`."""
    (N, D), wide = table.X.shape, table.X.shape[0] < table.X.shape[1]
    if wide and alpha == 0:
        return None
    square = table.design @ table.design.T if wide else table.scatter
    system = square + alpha * np.eye(min(N, D))
    scale = np.sqrt(system.diagonal())
    if not (scale > 0).all():
        return None
    factor, failed = lapack.dpotrf(system / np.outer(scale, scale), lower=1)
    if failed or lapack.dpocon(factor, 1.0, uplo="L")[0] < min_rcond:
        return None
    right = table.targets if wide else table.cross
    solved = lapack.dpotrs(factor, right / scale[:, None], lower=1)[0] / scale[:, None]
    return Solution(table.design.T @ solved if wide else solved, "cholesky", D, scale[:, None] * factor)


def _qr(table: MomentTable, alpha: float, min_rcond: float) -> Solution | None:
    """None where columns are linearly dependent up to rounding.  With a penalty, rounding errors grow with the condition squared."""
    N, D = table.X.shape
    if N < D and alpha == 0:
        return None
    below = np.sqrt(alpha) * np.eye(D if alpha else 0, D)
    Q, R = qr(np.vstack([table.design, below]), mode="economic")
    scale = np.linalg.norm(R, axis=0)
    if not (scale > 0).all() or lapack.dtrcon(R / scale)[0] < (np.sqrt(min_rcond) if alpha else EPS * max(N, D)):
        return None
    return Solution(solve_triangular(R, Q[:N].T @ table.targets), "qr", D, R)


def _svd(table: MomentTable, alpha: float, min_rcond: float) -> Solution | None:
    """Works for every matrix: directions with a singular value of 0 get no weight."""
    N, D = table.X.shape
    U, values, Vt = svd(table.design, full_matrices=False)
    nonzero = values > EPS * max(N, D) * values.max(initial=0.0)
    factors = np.divide(values, values**2 + alpha, out=np.zeros_like(values), where=nonzero)
    rank = D if alpha else int(nonzero.sum())
    return Solution(Vt.T @ (factors[:, None] * (U.T @ table.targets)), "svd", rank, np.diag(np.sqrt(values**2 + alpha)))


FACTORIZATIONS = {"cholesky": _cholesky, "qr": _qr, "svd": _svd}


def flops(rows: int, columns: int) -> dict[str, int]:
    """Operations of the textbook solution (X^T X)^-1 X^T y, term by term; a multiply-add counts as 2.

    The inverse is that of Gauss and Jordan: at each of D pivots one row is divided and D - 1 rows are reduced.
    """
    N, D = rows, columns
    return {"X^T X": 2 * N * D**2, "inverse": D * (D + (D - 1) * 2 * D), "X^T y": 2 * N * D}
