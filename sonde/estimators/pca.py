"""Principal components: the orthogonal directions along which the rows spread most.

    C = sum_i (x_i - mean)(x_i - mean)^T / (N - 1) = V diag(variance) V^T        z = V^T (x - mean)

Tall tables go through the eigenvectors of C, which costs one product of the table with itself; others through the
singular value decomposition of the centered rows, which does not square the condition.  The sign of a component is
free; here its entry of largest size is positive.

N rows, D features, M components; components are rows, (M, D).
"""

from __future__ import annotations

from typing import Any, Literal, final

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin

from ..core.errors import BadInput
from ._base import check_fitted, checked_arguments, to_numpy, validate_features
from ._moments import EPS, MomentTable


@final
class PCA(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """After `fit`: components_, explained_variance_, explained_variance_ratio_, mean_, n_components_, solver_.

    Args:
        n_components: how many to keep; None keeps all min(N, D); a fraction such as 0.95 keeps as many as explain that much of the variance
        whiten: scale the coordinates to variance 1
        center: subtract the mean first; without it the first direction follows the mean
        solver: 'covariance' or 'svd'; 'auto' picks by shape
    """

    def __init__(
        self,
        n_components: int | float | None = None,
        whiten: bool = False,
        center: bool = True,
        solver: Literal["auto", "covariance", "svd"] = "auto",
    ) -> None:
        self.n_components = n_components
        self.whiten = whiten
        self.center = center
        self.solver = solver

    def fit(self, X: Any, y: Any = None) -> PCA:
        """X (N, D); y is not looked at."""
        X = validate_features(self, X, fit=True, finite=not self.center)
        N, D = X.shape
        if N < 2:
            raise BadInput("PCA was given 1 sample, which has no variance", fix="give 2 rows or more")
        solver = checked_arguments(self).solver
        self.solver_ = solver if solver != "auto" else "covariance" if N >= 2 * D else "svd"
        table = MomentTable(X, center=self.center)
        self.mean_ = table.mean
        if not np.isfinite(self.mean_).all():  # the mean depends on every number, which saves a separate check
            validate_features(self, X)
            raise BadInput("X is too large to take its mean", fix="use smaller units")
        if self.solver_ == "covariance":
            values, vectors = np.linalg.eigh(table.scatter / (N - 1))
            variance, components = values[::-1].clip(0.0), vectors.T[::-1]
        else:
            _, values, components = np.linalg.svd(table.design, full_matrices=False)
            variance = values**2 / (N - 1)
        total = variance.sum()
        M = self.n_components_ = self._count(np.cumsum(variance) / (total or 1.0), min(N, D))
        self.explained_variance_ = variance[:M]
        self.explained_variance_ratio_ = variance[:M] / (total or 1.0)
        largest = np.take_along_axis(components[:M], np.abs(components[:M]).argmax(1)[:, None], 1)
        self.components_ = components[:M] * np.sign(largest)
        # A covariance is a sum over N rows, and each of them rounds it.
        floor = (max(N, D) if self.solver_ == "covariance" else D) * EPS * variance[0]
        if self.whiten and variance[M - 1] <= floor:
            rank = int((variance > floor).sum())
            raise BadInput(f"only {rank} of {M} components have any variance to whiten", fix=f"n_components={rank or 1} or fewer")
        return self

    def transform(self, X: Any) -> np.ndarray:
        """Coordinates (N, M) of the rows along the components."""
        return (validate_features(self, X) - self.mean_) @ self.components_.T / self._scale

    def inverse_transform(self, X: Any) -> np.ndarray:
        """Rows (N, D) back from coordinates (N, M): exact where nothing was dropped, else the nearest in the plane."""
        check_fitted(self)
        Z = np.asarray(to_numpy(X), dtype=np.float64)
        if Z.ndim != 2 or Z.shape[1] != self.n_components_:
            raise BadInput(f"coordinates have the shape {Z.shape}", fix=f"give rows of {self.n_components_} numbers, one per component")
        return Z * self._scale @ self.components_ + self.mean_

    @property
    def _n_features_out(self) -> int:
        return self.n_components_

    @property
    def _scale(self) -> np.ndarray | float:
        return np.sqrt(self.explained_variance_) if self.whiten else 1.0

    def _count(self, cumulative_ratio: np.ndarray, available: int) -> int:
        requested = self.n_components
        if requested is None:
            return available
        if isinstance(requested, float) and 0 < requested < 1:
            return min(int(np.searchsorted(cumulative_ratio, requested) + 1), available)
        if not isinstance(requested, int | np.integer) or isinstance(requested, bool) or not 1 <= requested <= available:
            raise BadInput(
                f"n_components={requested!r} does not fit a table that has {available}", fix="give a whole number, or a fraction below 1"
            )
        return int(requested)
