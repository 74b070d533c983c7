"""Perceptrons trained by their own rule, with the history of their mistakes and a report on separability.

    two classes      w <- w + y x         where y w.x <= 0,  y = -1 or +1           (Rosenblatt 1958)
    more classes     W_y <- W_y + x,  W_k <- W_k - x      where the best wrong class k scores as high as the right one

All weights start at 0, the bias is the weight of a feature that is always 1, and a tie counts as a mistake, so the first
example always changes something.  On separable data the mistakes end (Novikoff 1962: after at most (R / margin)^2); on
other data they never do, and `max_epochs` ends the training with `converged_ = False`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, final

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import ConvergenceWarning

from ..core.errors import BadInput
from ..core.options import Count
from ._base import checked_arguments, validate_features, validate_labels

FIRST_LOOK = 16
"""rows scored at once after a mistake; twice as many each time none is found"""


AT_ONCE = 500
"""lines of the linear program that are added at a time"""
TINY = 1e-9
"""tolerance of the linear program: smaller gaps are not found"""
EXACT = 1e-13
"""rounding error of the sum that is 0 for inseparable classes"""


class Update(NamedTuple):
    """One correction: when, on which row, and all weights after it (bias last)."""

    epoch: int
    row: int
    weights: np.ndarray


@final
class Perceptron(ClassifierMixin, BaseEstimator):
    """The perceptron for two classes.

    Args:
        max_epochs: passes over the data after which training ends even if mistakes remain
        fit_intercept: learn a bias
        at_zero: class of a row exactly on the boundary: 1 the second one, 0 the first (of `classes_`)
        keep_updates: remember every correction with its weights in `updates_`

    After `fit`: coef_ (1, D), intercept_ (1,), converged_, n_iter_ epochs, mistakes_ in each epoch, updates_.
    """

    def __init__(self, max_epochs: Count = 200, fit_intercept: bool = True, at_zero: Literal[0, 1] = 1, keep_updates: bool = False) -> None:
        self.max_epochs = max_epochs
        self.fit_intercept = fit_intercept
        self.at_zero = at_zero
        self.keep_updates = keep_updates

    def fit(self, X: Any, y: Any) -> Perceptron:
        """Learn from rows X (N, D) and labels y (N,) of two classes, in the order given."""
        X, codes = validate_labels(self, X, y)
        if len(self.classes_) > 2:
            # The words scikit-learn's checks look for.
            what = f"Only binary classification is supported. The type of the target is multiclass, with {len(self.classes_)} classes"
            raise BadInput(what, fix="use MulticlassPerceptron")
        rows = _rows(X, self.fit_intercept)
        signed = rows * (2 * codes - 1)[:, None]

        def correct(w: np.ndarray, row: int) -> None:
            w += signed[row]

        w = _learn(self, np.zeros(rows.shape[1]), len(rows), lambda w, part: signed[part] @ w <= 0, correct)
        self.coef_, self.intercept_ = _separation(w[None], self.fit_intercept)
        return self

    def decision_function(self, X: Any) -> np.ndarray:
        """w.x + b for each row."""
        return validate_features(self, X) @ self.coef_[0] + self.intercept_[0]

    def predict(self, X: Any) -> np.ndarray:
        """The class on whose side of the boundary each row lies."""
        score = self.decision_function(X)
        return self.classes_[np.where(score == 0, self.at_zero, score > 0).astype(int)]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        tags.classifier_tags.poor_score = True  # it stops at any separating plane, and finds none where classes overlap
        return tags


@final
class MulticlassPerceptron(ClassifierMixin, BaseEstimator):
    """The perceptron for any number of classes, with one row of weights for each.

    Args:
        max_epochs: passes over the data after which training ends even if mistakes remain
        fit_intercept: learn a bias for each class
        keep_updates: remember every correction with its weights in `updates_`

    After `fit`: coef_ (C, D), intercept_ (C,), converged_, n_iter_ epochs, mistakes_ in each epoch, updates_.
    """

    def __init__(self, max_epochs: Count = 200, fit_intercept: bool = True, keep_updates: bool = False) -> None:
        self.max_epochs = max_epochs
        self.fit_intercept = fit_intercept
        self.keep_updates = keep_updates

    def fit(self, X: Any, y: Any) -> MulticlassPerceptron:
        """Learn from rows X (N, D) and labels y (N,), in the order given."""
        X, codes = validate_labels(self, X, y)
        rows = _rows(X, self.fit_intercept)

        right = np.arange(len(self.classes_)) == codes[:, None]

        def mistakes(W: np.ndarray, part: slice) -> np.ndarray:
            scores, own = rows[part] @ W.T, right[part]
            reached = scores[own]
            scores[own] = -np.inf
            return reached <= scores.max(1)

        def correct(W: np.ndarray, row: int) -> None:
            rivals = W @ rows[row]
            rivals[codes[row]] = -np.inf
            W[codes[row]] += rows[row]
            W[rivals.argmax()] -= rows[row]

        W = _learn(self, np.zeros((len(self.classes_), rows.shape[1])), len(rows), mistakes, correct)
        self.coef_, self.intercept_ = _separation(W, self.fit_intercept)
        return self

    def decision_function(self, X: Any) -> np.ndarray:
        """Scores (N, C), or for two classes by how much the second one leads (N,)."""
        scores = validate_features(self, X) @ self.coef_.T + self.intercept_
        return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores

    def predict(self, X: Any) -> np.ndarray:
        """The class with the highest score; the first one of a tie."""
        score = self.decision_function(X)
        return self.classes_[(score > 0).astype(int) if score.ndim == 1 else score.argmax(1)]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True
        return tags


def _learn(
    estimator: Any,
    weights: np.ndarray,
    n: int,
    wrong: Callable[[np.ndarray, slice], np.ndarray],
    correct: Callable[[np.ndarray, int], None],
) -> np.ndarray:
    """Pass over n rows repeatedly, correct the weights at each mistake, stop after an epoch without one."""
    last = checked_arguments(estimator).max_epochs
    estimator.mistakes_, estimator.updates_ = [], []
    estimator.converged_ = False
    for epoch in range(1, last + 1):
        mistakes = 0
        start, look = 0, FIRST_LOOK
        while start < n:  # between mistakes the weights stay, so rows are scored together
            part = slice(start, min(start + look, n))
            missed = wrong(weights, part)
            if not missed.any():
                start, look = part.stop, 2 * look
                continue
            row = start + int(missed.argmax())
            correct(weights, row)
            mistakes += 1
            start, look = row + 1, FIRST_LOOK
            if estimator.keep_updates:
                estimator.updates_.append(Update(epoch, row, weights.copy()))
        estimator.mistakes_.append(mistakes)
        estimator.n_iter_ = epoch
        if not mistakes:
            estimator.converged_ = True
            return weights
    name = type(estimator).__name__
    what = f"{name} still makes {mistakes} mistakes after max_epochs={last}; separability(X, y) shows whether more epochs could help"
    warnings.warn(what, ConvergenceWarning, stacklevel=3)
    return weights


def _rows(X: np.ndarray, intercept: bool) -> np.ndarray:
    return np.hstack([X, np.ones((len(X), 1))]) if intercept else X


def _separation(weights: np.ndarray, intercept: bool) -> tuple[np.ndarray, np.ndarray]:
    return (weights[:, :-1], weights[:, -1]) if intercept else (weights, np.zeros(len(weights)))


class Separability(NamedTuple):
    """Whether hyperplanes separate the classes, and the proof."""

    separable: bool
    margin: float
    """distance of the nearest row from the plane found, in the units of X; 0 where there is none.  The widest plane has at least this"""
    coef: np.ndarray
    """the plane found: (1, D) for two classes, else a row for each class (C, D)"""
    intercept: np.ndarray
    share: np.ndarray
    """weights of the rows (N,) that sum to 1; where two classes cannot be separated, both classes' weighted means are the same point"""

    def __str__(self) -> str:
        if self.separable:
            return f"separable, with a margin of at least {self.margin:.3g}"
        return f"not separable: {int((self.share > 1e-9).sum())} rows prove it"


def separability(X: Any, y: Any) -> Separability:
    """Linear separability, decided by a linear program: the largest t with y_i (w.x_i + b) >= t and no weight beyond 1.

    t > 0 exactly where a plane separates the classes.  Where t = 0 the multipliers mix rows of both classes to one common
    point, which no plane can have on both its sides.  Several classes: (W_y - W_k).x_i >= t for every wrong class k.
    Either answer is checked on the rows, up to rounding, before it is given; a gap too small for both is refused.
    """
    X, codes = validate_labels(holder := _Holder(), X, y)
    classes = len(holder.classes_)
    peak = np.abs(X).max(0)
    least = int(np.frexp(peak[peak > 0])[1].min(initial=1024))
    powers = np.where(peak > 0, np.frexp(peak)[1], least)
    X = np.ldexp(X, -powers)  # exact, and squares of it neither overflow nor vanish
    # Separability does not depend on shift and scale of a feature; the tolerances of the linear program do.
    middle, scale = X.mean(0), X.std(0)
    scale[scale == 0] = 1.0
    rows = _rows((X - middle) / scale, True)
    lead, owner = _leads(rows, codes, classes)
    solved, used = _widest(lead)
    weights = solved.x[:-1].reshape(-1, rows.shape[1])
    share, left = _mix(lead[used], -solved.ineqlin.marginals)
    coef = weights[:, :-1] / scale
    intercept = weights[:, -1] - coef @ middle
    margin = _margin(X, codes, coef, intercept, np.ldexp(coef, least - powers))
    separable = margin > 0 and solved.x[-1] > TINY
    if not separable and left > EXACT * np.abs(lead).max():
        raise BadInput(f"the classes are too close to call: a gap between them is below {TINY:g} of their spread", fix="move them apart")
    with np.errstate(over="ignore"):
        margin, coef = float(np.ldexp(max(margin, 0.0), least)), np.ldexp(coef, -powers)
    if not np.isfinite(coef).all():
        raise BadInput(f"X has numbers of size {peak[peak > 0].min():.1e}, too small for the weights of a plane", fix="rescale them")
    return Separability(separable, margin, coef, intercept, np.bincount(owner[used], share, len(rows)))


def _mix(lead: np.ndarray, share: np.ndarray) -> tuple[np.ndarray, float]:
    """The program's shares of the lines, made exact, and the largest entry of the sum they mix to; 0 leaves room for no plane."""
    from scipy.optimize import nnls

    some = np.flatnonzero(share > 0)
    share = np.zeros(len(lead))
    share[some] = nnls(np.vstack([lead[some].T, np.ones(len(some))]), np.r_[np.zeros(lead.shape[1]), 1.0])[0]
    share /= share.sum()
    return share, float(np.abs(share @ lead).max())


def _widest(lead: np.ndarray) -> tuple[Any, np.ndarray]:
    """Maximize t under lead @ w >= t, |w| <= 1: the program's answer and the lines it was given.

    Few lines decide, so it starts with some of them and adds those that come off worst.
    """
    from scipy.optimize import linprog

    width = lead.shape[1]
    used = np.unique(np.linspace(0, len(lead) - 1, AT_ONCE).astype(int))
    while True:
        limits, zeros = np.c_[-lead[used], np.ones(len(used))], np.zeros(len(used))
        solved = linprog(np.r_[np.zeros(width), -1.0], limits, zeros, bounds=[(-1, 1)] * width + [(0, None)], method="highs-ipm")
        if solved.status:
            raise BadInput(f"the linear program of separability ended without an answer: {solved.message}", fix="scale the features")
        ahead = lead @ solved.x[:-1]
        # A plane with every row on its right side ends the search, and so do lines that have no plane among themselves.
        more = np.union1d(used, np.argsort(ahead)[:AT_ONCE])
        if solved.x[-1] <= TINY or ahead.min() > TINY or len(more) == len(used):
            return solved, used
        used = more


class _Holder(BaseEstimator):
    """Holds the attributes that input validation sets on an estimator."""


def _leads(rows: np.ndarray, codes: np.ndarray, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """One line per row and wrong class; times all weights it is the lead of the right class.  Also the row of each line."""
    if classes == 2:
        return rows * (2 * codes - 1)[:, None], np.arange(len(rows))
    owner, wrong = np.nonzero(np.arange(classes) != codes[:, None])
    sign = np.zeros((len(owner), classes))
    sign[np.arange(len(owner)), codes[owner]] = 1.0
    sign[np.arange(len(owner)), wrong] = -1.0
    return (sign[:, :, None] * rows[owner][:, None, :]).reshape(len(owner), -1), owner


def _margin(X: np.ndarray, codes: np.ndarray, coef: np.ndarray, intercept: np.ndarray, ruler: np.ndarray) -> float:
    """Smallest signed distance of a row from the planes between its class and the others; -inf where there is no plane.

    Args:
        ruler: the weights in the units that distances are measured in
    """
    if len(coef) == 1:
        coef, intercept, ruler = np.vstack([0 * coef, coef]), np.r_[0.0, intercept], np.vstack([0 * ruler, ruler])
    scores = X @ coef.T + intercept
    lead = np.take_along_axis(scores, codes[:, None], 1) - scores
    length = np.linalg.norm(ruler[codes][:, None] - ruler[None], axis=2)
    other = np.arange(len(coef)) != codes[:, None]
    return float((lead[other] / length[other]).min()) if (length[other] > 0).all() else -np.inf
