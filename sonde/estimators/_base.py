"""Input validation of all estimators: NumPy arrays, torch tensors and DataFrames, with errors that name the mistake.

An estimator is a final class on scikit-learn's `BaseEstimator` and mixins.  It checks its input only through here:

    def fit(self, X, y, sample_weight=None):
        X, y = with_labels(self, X, y)          # float64 rows; codes 0..K-1; sets n_features_in_, feature_names_in_, classes_
        ...
        return self

    def predict(self, X):
        X = features(self, X)                   # refuses an estimator that is not fitted, other columns, NaN
        return self.classes_[...]

What comes out is always a NumPy array.  All errors are `BadInput` and at the same time what scikit-learn's users and
its `check_estimator` expect: ValueError, TypeError or NotFittedError.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Annotated, Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, check_is_fitted, validate_data

from ..core.errors import BadInput
from ..core.options import Range, constrained_arguments
from ..core.reading import plain

Positive = Annotated[float, Range(above=0)]
NonNegative = Annotated[float, Range(0)]
REACH = 1e70
"""numbers between 1 / REACH and REACH can be squared and weighted safely in float64"""


class BadKind(BadInput, TypeError):
    """A value of the wrong type: both BadInput and TypeError, which scikit-learn expects."""


class ConstantTarget(UserWarning):
    """Every target of a regression is the same number."""


class NotFitted(BadInput, NotFittedError):
    """An estimator used before `fit`."""


def validate_features(estimator: BaseEstimator, X: Any, *, fit: bool = False, finite: bool = True) -> np.ndarray:
    """Rows of finite float64 features, row after row in memory.

    `fit=True` stores number and names of the columns; otherwise they must be the same.  `finite=False` leaves the check for
    NaN and infinity to the caller.
    """
    if not fit:
        check_fitted(estimator)
    with _translate_errors():
        return validate_data(estimator, to_numpy(X), dtype=np.float64, order="C", reset=fit, ensure_all_finite=finite)


def check_fitted(estimator: BaseEstimator) -> None:
    """Refuse an estimator that has not seen data."""
    with _translate_errors():
        check_is_fitted(estimator)


def validate_targets(estimator: BaseEstimator, X: Any, y: Any, *, multi_output: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """For `fit`: features and finite float64 targets, (N,) or with `multi_output` also (N, K)."""
    with _translate_errors():
        X, y = validate_data(estimator, to_numpy(X), to_numpy(y), dtype=np.float64, order="C", y_numeric=True, multi_output=multi_output)
    y = np.asarray(y, dtype=np.float64)
    if len(y) > 1 and (y == y[0]).all():
        warnings.warn(f"all {len(y)} targets are equal, so no feature can matter", ConstantTarget, stacklevel=3)
    return X, y


def validate_labels(estimator: BaseEstimator, X: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
    """For `fit`: features and labels as codes 0..K-1; `estimator.classes_` keeps their sorted names.  One class is refused."""
    with _translate_errors():
        X, y = validate_data(estimator, to_numpy(X), to_numpy(y), dtype=np.float64, order="C")
        check_classification_targets(y)
    estimator.classes_, codes = np.unique(y, return_inverse=True)
    if len(estimator.classes_) < 2:
        raise BadInput(f"all {len(y)} labels are of one class, '{estimator.classes_[0]}'", fix="give rows of two classes or more")
    return X, codes


def weights(sample_weight: Any, X: np.ndarray) -> np.ndarray | None:
    """A weight for each row of X, or None; a single number weighs all rows.  Weights are not negative and not all zero."""
    if sample_weight is None:
        return None
    w = to_numpy(sample_weight)
    with _translate_errors():
        w = check_array(np.full(len(X), w) if np.isscalar(w) else w, dtype=np.float64, ensure_2d=False, input_name="sample_weight")
    if w.shape != (len(X),):
        raise BadInput(f"sample_weight has the shape {w.shape}, and X has {len(X)} rows", fix="give one weight for each row")
    if (w < 0).any():
        raise BadInput(f"sample_weight has {int((w < 0).sum())} negative weights", fix="weights are 0 or more")
    if not w.any():
        raise BadInput("sample_weight is zero in every row", fix="at least one weight must be above zero")
    check_magnitudes("sample_weight", w.reshape(-1, 1))
    return w


def check_magnitudes(name: str, values: np.ndarray) -> np.ndarray:
    """The largest size in each column; refuse one so large or so small that its square would be lost."""
    peak = np.maximum(values.max(0, initial=0.0), -values.min(0, initial=0.0))
    far = peak[(peak > REACH) | ((peak > 0) & (peak < 1 / REACH))]
    if len(far):
        raise BadInput(f"{name} has numbers of size {far[0]:.1e}, whose squares a float64 cannot hold", fix="rescale them")
    return peak


def finite(estimator: BaseEstimator, *names: str) -> None:
    """Refuse a fit whose result is out of the range of float64."""
    for name in names:
        if not np.isfinite(getattr(estimator, name)).all():
            raise BadInput(
                f"{name} of {type(estimator).__name__} is out of the range of float64", fix="scale features, targets and weights"
            )


def to_numpy(value: Any) -> Any:
    """A tensor as a NumPy array, from any device and with or without gradients; other values unchanged."""
    if not isinstance(value, torch.Tensor):
        return value
    value = value.detach().cpu()
    return (value.float() if value.dtype == torch.bfloat16 else value).numpy()


def checked_arguments(estimator: BaseEstimator) -> Any:
    """The arguments of an estimator that have a `Range` or a `Literal` in their annotation, checked and in their own types.

    scikit-learn checks in `fit`, not in the constructor: a search sets arguments without calling it, often to NumPy's numbers.
    """
    kind: Any = type(estimator)
    options = constrained_arguments(kind, kind.__name__)
    return SimpleNamespace(**{name: option.check(plain(getattr(estimator, name))) for name, option in options.items()})


@contextmanager
def _translate_errors() -> Iterator[None]:
    """scikit-learn's errors as ours: one line in `what`; `str()` keeps the original text for scikit-learn's own checks."""
    try:
        yield
    except BadInput:
        raise
    except (ValueError, TypeError) as raised:
        kind = NotFitted if isinstance(raised, NotFittedError) else BadKind if isinstance(raised, TypeError) else BadInput
        error = kind(" ".join(str(raised).split()))
        error.args = (str(raised),)
        raise error from None
