"""Ridge, softmax regression and PCA beside scikit-learn on 100,000 x 100: same data, same tolerance, same threads.

    OMP_NUM_THREADS=2 python benchmarks/estimators.py [rounds]
    python benchmarks/estimators.py agree     largest difference from scikit-learn on its bundled real data sets, as a table

Both sides take NumPy float64 and check it; a turn is one whole `fit`.  Softmax regression is timed on two tables, one of
independent features and one in which a third of them are mixtures of others; the objective each side ends at is printed,
and ours must not be the higher one.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from _clock import table, turns
from scipy.special import logsumexp
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_iris, load_wine, make_classification
from sklearn.decomposition import PCA as TheirPCA
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.linear_model import Ridge as TheirRidge
from sklearn.multiclass import OneVsOneClassifier, OneVsRestClassifier

from sonde.estimators import PCA, LeastSquares, MAPRegression, Ridge, SoftmaxRegression
from sonde.estimators import LogisticRegression as OurLogistic

ROWS, COLUMNS, CLASSES = 100_000, 100, 10
OURS, THEIRS = "sonde", "scikit-learn"


def rate(model: Any, *data: np.ndarray) -> Callable[[], float]:
    """Rows per second of one whole fit."""

    def measure() -> float:
        start = time.perf_counter()
        model.fit(*data)
        return ROWS / (time.perf_counter() - start)

    return measure


def pair(title: str, rounds: int, ours: Any, theirs: Any, *data: np.ndarray) -> bool:
    """Both in turns; met where ours is not slower."""
    print(f"{title}, {ROWS:,} x {COLUMNS}, {torch.get_num_threads()} thread(s)")
    best = turns({OURS: rate(ours, *data), THEIRS: rate(theirs, *data)}, rounds)
    return table(title, best, "rows/s", OURS, {THEIRS: 1.0})


def objective(X: np.ndarray, y: np.ndarray, model: Any) -> float:
    """Mean negative log-likelihood and penalty at alpha = 1."""
    z = X @ model.coef_.T + model.intercept_
    return float((logsumexp(z, 1) - z[np.arange(len(y)), y]).mean() + (model.coef_**2).sum() / 2 / len(y))


def main(rounds: int) -> int:
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1)))
    draw = np.random.default_rng(0)
    X = draw.normal(size=(ROWS, COLUMNS)) * draw.uniform(0.5, 2, COLUMNS) + draw.normal(size=COLUMNS)
    y = X @ draw.normal(size=COLUMNS) + draw.normal(size=ROWS)
    met = pair("Ridge", rounds, Ridge(1.0), TheirRidge(1.0), X, y)
    met &= pair("PCA, all components", rounds, PCA(), TheirPCA(), X)
    met &= pair("PCA, 10 components", rounds, PCA(10), TheirPCA(10), X)
    for words, informative, mixed in (("independent features", 30, 0), ("mixed features", 40, 30)):
        X, y = make_classification(ROWS, COLUMNS, n_informative=informative, n_redundant=mixed, n_classes=CLASSES, random_state=0)
        ours, theirs = SoftmaxRegression(1.0, tol=1e-4), LogisticRegression(C=1.0, tol=1e-4, max_iter=1000)
        met &= pair(f"Softmax regression, {CLASSES} classes, {words}, tol 1e-4", rounds, ours, theirs, X, y)
        ends = objective(X, y, ours), objective(X, y, theirs)
        parts = [f"{name} {end:.9f} ({m.n_iter_[0]} steps)" for name, end, m in zip((OURS, THEIRS), ends, (ours, theirs), strict=True)]
        print(f"  objective at the end: {', '.join(parts)}\n")
        met &= ends[0] <= ends[1] + 1e-6
    return 0 if met else 1


def agree() -> int:
    """Fit both sides on real data and print how far apart they end, relative to the largest number compared."""
    print("| model | data | compared | largest difference |\n|---|---|---|---|")
    worst = 0.0
    logistic = LogisticRegression(C=1.0, solver="newton-cg", tol=1e-12, max_iter=5000)
    regressions = [(LeastSquares(), LinearRegression()), (Ridge(0.5), TheirRidge(0.5)), (MAPRegression(1.0, 2.0), TheirRidge(4.0))]
    classifiers: list[tuple[Any, Any]] = [
        (SoftmaxRegression(1.0, tol=1e-9), logistic),
        (OurLogistic(1.0, tol=1e-9), OneVsRestClassifier(logistic)),
        (OurLogistic(1.0, reduction="one-vs-one", tol=1e-9), OneVsOneClassifier(logistic)),
    ]
    sets = (load_iris, load_wine, load_breast_cancer, load_digits)
    cases = [(*both, load_diabetes, "predict") for both in regressions] + [(PCA(4), TheirPCA(4), data, "transform") for data in sets]
    cases += [(*both, data, "decision_function") for both in classifiers for data in sets[:2] + sets[3:]]
    cases += [(OurLogistic(1.0, tol=1e-9), logistic, load_breast_cancer, "decision_function")]
    for ours, theirs, data, method in cases:
        X, y = data(return_X_y=True)
        X = (X - X.mean(0)) / np.maximum(X.std(0), 1e-9)
        a, b = (getattr(model.fit(X, y), method)(X) for model in (ours, theirs))
        gap = float(np.abs(a - b).max() / np.abs(b).max())
        worst = max(worst, gap)
        settings = f" ({ours.reduction})" if hasattr(ours, "reduction") and len(set(y)) > 2 else ""
        print(f"| {type(ours).__name__}{settings} | {data.__name__.removeprefix('load_')} | {method} | {gap:.1e} |", flush=True)
    return 0 if worst < 1e-6 else 1


if __name__ == "__main__":
    asked = sys.argv[1] if len(sys.argv) > 1 else "5"
    sys.exit(agree() if asked == "agree" else main(int(asked)))
