"""Logistic and softmax regression: linear models of the probability of a class.

    logistic   p(y=1; x) = 1 / (1 + exp(-(w.x + b)))                    two classes; more by reduction to pairs of classes
    softmax    p(y=k; x) = exp(z_k) / sum_j exp(z_j),  z = W x + b      W is classes x features

    minimized:  sum_i s_i nll_i + alpha/2 norm(W)^2       (scikit-learn's C is 1/alpha; the bias is not penalized)

The problem is convex and has no closed form; `_canonical` solves it by Newton's method or L-BFGS.  Without a penalty,
classes that a plane can separate have no solution at all: larger weights always fit better.  This is detected and refused.

Reductions of K classes to two: one-vs-rest trains K models, each for its class against all others, and takes the
highest score; one-vs-one trains one model for each pair, and the class that wins most pairs is predicted.
"""

from __future__ import annotations

import warnings
from itertools import combinations
from typing import Any, Literal, final

import numpy as np
from scipy.special import expit, softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.metaestimators import available_if

from ..core.errors import BadInput
from ..core.options import Count
from ._base import NonNegative, Positive, checked_arguments, finite, validate_features, validate_labels, weights
from ._canonical import FLAT, Fit, Problem, minimize

LogisticSolver = Literal["auto", "newton", "lbfgs"]


class _Linear(BaseEstimator):
    """Scores W x + b; one row of W for each model."""

    coef_: np.ndarray
    intercept_: np.ndarray

    def _scores(self, X: Any) -> np.ndarray:
        return validate_features(self, X) @ self.coef_.T + self.intercept_

    def _keep(self, fits: list[Fit]) -> None:
        self.coef_, self.intercept_ = np.vstack([fit.W for fit in fits]), np.concatenate([fit.b for fit in fits])
        self.solver_, self.n_iter_ = fits[0].solver, np.array([fit.steps for fit in fits])
        finite(self, "coef_", "intercept_")

    def _solve_one(self, X: np.ndarray, codes: np.ndarray, outputs: int, s: np.ndarray | None) -> Fit:
        """Solve one convex problem; warn where it did not converge."""
        arguments = checked_arguments(self)
        alpha, tol, steps = arguments.alpha, arguments.tol, arguments.max_iter
        problem = Problem(X, codes, outputs, s, alpha, self.fit_intercept)
        fit = minimize(problem, self.solver, tol, steps)
        if alpha == 0 and (kind := separation(X if s is None else X[s > 0], codes if s is None else codes[s > 0], fit)):
            raise BadInput(f"a plane {kind} the classes, so without a penalty the weights run to infinity", fix="give alpha > 0")
        if fit.steps >= steps and fit.gradient > tol:
            what = f"no minimum after max_iter={steps} steps: the gradient is {fit.gradient:.2g}, tol is {tol:.2g}"
            warnings.warn(f"{what}; allow more steps or a larger tol", ConvergenceWarning, stacklevel=4)
        elif not fit.gradient <= max(tol, FLAT):
            what = f"no minimum: '{fit.solver}' could not lower the loss after {fit.steps} steps; the gradient is {fit.gradient:.2g}"
            warnings.warn(f"{what}; scale the features, or look for rows far from all others", ConvergenceWarning, stacklevel=4)
        return fit


@final
class SoftmaxRegression(ClassifierMixin, _Linear):
    """Softmax regression for two classes or more.  After `fit`: coef_ (K, D), intercept_ (K,), classes_, solver_, n_iter_.

    Args:
        alpha: weight of the penalty norm(W)^2 / 2 against the sum of negative log-likelihoods
        fit_intercept: learn a bias for each class
        solver: 'newton', or 'lbfgs', which Newton finishes where it gets stuck; 'auto' takes Newton while the Hessian is small
        tol: size of the gradient of the mean loss at which to stop, in whitened features
        max_iter: most steps
    """

    def __init__(
        self,
        alpha: NonNegative = 1.0,
        fit_intercept: bool = True,
        solver: LogisticSolver = "auto",
        tol: Positive = 1e-6,
        max_iter: Count = 1000,
    ) -> None:
        self.alpha = alpha
        self.fit_intercept = fit_intercept
        self.solver = solver
        self.tol = tol
        self.max_iter = max_iter

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> SoftmaxRegression:
        """X (N, D), labels y (N,) of any kind, and a weight for each row if rows count differently."""
        X, codes = validate_labels(self, X, y)
        self._keep([self._solve_one(X, codes, len(self.classes_), weights(sample_weight, X))])
        return self

    def decision_function(self, X: Any) -> np.ndarray:
        """Scores z (N, K); for two classes their difference (N,), positive where the second is likelier."""
        z = self._scores(X)
        return z[:, 1] - z[:, 0] if len(self.classes_) == 2 else z

    def predict(self, X: Any) -> np.ndarray:
        """The likeliest class of each row."""
        best = self._scores(X).argmax(1)
        return self.classes_[best]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probability (N, K) of each class."""
        return softmax(self._scores(X), axis=1)

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Its logarithm."""
        z = self._scores(X)
        z -= z.max(1, keepdims=True)
        return z - np.log(np.exp(z).sum(1, keepdims=True))


def _gives_probabilities(model: LogisticRegression) -> bool:
    return model.reduction == "one-vs-rest"


@final
class LogisticRegression(ClassifierMixin, _Linear):
    """Logistic regression; more than two classes by reduction.  After `fit`: coef_, intercept_, classes_, solver_, n_iter_.

    Args:
        alpha: weight of the penalty norm(w)^2 / 2 against the sum of negative log-likelihoods
        fit_intercept: learn a bias
        reduction: how three classes or more become two, 'one-vs-rest' (K models) or 'one-vs-one' (K (K-1)/2 models)
        solver: 'newton', or 'lbfgs', which Newton finishes where it gets stuck; 'auto' takes Newton while the Hessian is small
        tol: size of the gradient of the mean loss at which to stop, in whitened features
        max_iter: most steps
    """

    def __init__(
        self,
        alpha: NonNegative = 1.0,
        fit_intercept: bool = True,
        reduction: Literal["one-vs-rest", "one-vs-one"] = "one-vs-rest",
        solver: LogisticSolver = "auto",
        tol: Positive = 1e-6,
        max_iter: Count = 1000,
    ) -> None:
        self.alpha = alpha
        self.fit_intercept = fit_intercept
        self.reduction = reduction
        self.solver = solver
        self.tol = tol
        self.max_iter = max_iter

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> LogisticRegression:
        """X (N, D), labels y (N,) of any kind, and a weight for each row if rows count differently."""
        X, codes = validate_labels(self, X, y)
        s = weights(sample_weight, X)
        K = len(self.classes_)
        if K == 2:
            self._keep([self._solve_one(X, codes, 1, s)])
        elif self.reduction == "one-vs-rest":
            self._keep([self._solve_one(X, codes == k, 1, s) for k in range(K)])
        else:
            duels = [(np.isin(codes, pair), pair[1]) for pair in combinations(range(K), 2)]
            self._keep([self._solve_one(X[rows], codes[rows] == winner, 1, None if s is None else s[rows]) for rows, winner in duels])
        return self

    def decision_function(self, X: Any) -> np.ndarray:
        """Two classes: the score (N,).  More: (N, K), scores of one-vs-rest, or duels won with the margins to break ties."""
        z, K = self._scores(X), len(self.classes_)
        if K == 2:
            return z[:, 0]
        return z if self.reduction == "one-vs-rest" else _duels(z, K)

    def predict(self, X: Any) -> np.ndarray:
        """The class of each row."""
        z = self.decision_function(X)
        return self.classes_[(z > 0).astype(int) if z.ndim == 1 else z.argmax(1)]

    @available_if(_gives_probabilities)
    def predict_proba(self, X: Any) -> np.ndarray:
        """Probability (N, K) of each class; from one-vs-rest the K answers, made to sum to 1."""
        p = expit(self._scores(X))
        if len(self.classes_) == 2:
            return np.column_stack([1 - p[:, 0], p[:, 0]])
        total = p.sum(1, keepdims=True)
        return np.divide(p, total, out=np.full_like(p, 1 / p.shape[1]), where=total > 0)

    @available_if(_gives_probabilities)
    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Its logarithm."""
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X))


def _duels(z: np.ndarray, K: int) -> np.ndarray:
    """(N, K) from the scores of all pairs: duels won, plus the sum of margins squeezed below a third of a duel."""
    won, margin = np.zeros((len(z), K)), np.zeros((len(z), K))
    for score, (first, second) in zip(z.T, combinations(range(K), 2), strict=True):
        won[:, second] += score > 0
        won[:, first] += score <= 0
        margin[:, second] += score
        margin[:, first] -= score
    return won + margin / (3 * (np.abs(margin) + 1))


def separation(X: np.ndarray, codes: np.ndarray, fit: Fit) -> str:
    """'separates' or 'almost separates' (some rows lie on it) where a plane does so, else ''; exact for the first.

    Where every row lies on its side of the fitted plane, that is the proof.  Where some scores have run far, a linear
    program looks for a direction along which no row loses and some win.
    """
    z = X @ fit.W.T + fit.b
    z = np.column_stack([np.zeros(len(z)), z]) if z.shape[1] == 1 else z
    K = z.shape[1]
    others = np.arange(K)[None] != codes[:, None].astype(int)
    margins = (np.take_along_axis(z, codes[:, None].astype(int), 1) - z)[others].reshape(len(z), K - 1)
    if margins.min() > 0:
        return "separates"
    if margins.max() < 10 or margins.size * X.shape[1] * K > 5_000_000:
        return ""
    from scipy.optimize import linprog

    spread = X.std(0)
    A = np.column_stack([(X - X.mean(0)) / np.where(spread > 0, spread, 1.0), np.ones(len(X))])
    gains = np.zeros((len(z), K, K, A.shape[1]))  # how much row i gains on class k when output j moves along a feature
    rows = np.arange(len(z))
    for k in range(K):
        gains[rows, k, codes.astype(int)] += A
        gains[rows, k, k] -= A
    G = gains[others].reshape(len(z) * (K - 1), -1)
    best = linprog(-G.sum(0), A_ub=-G, b_ub=np.zeros(len(G)), bounds=(-1, 1))
    return "almost separates" if best.status == 0 and -best.fun > 1e-6 else ""
