"""Every estimator in the folder keeps scikit-learn's contract: its own checks, pipelines, searches, tensors and tables."""

from __future__ import annotations

import inspect
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.datasets import load_diabetes, load_iris
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import sonde.estimators
from sonde.core.errors import BadInput
from sonde.core.options import constrained_arguments
from sonde.estimators.glove import GloVe
from sonde.estimators.word2vec import Word2Vec

pytestmark = pytest.mark.filterwarnings("ignore")  # the checks feed odd tables on purpose, and the estimators say so
names = pytest.mark.parametrize("name", sonde.estimators.homes())
SENTENCES = ["one word and another"] * 9


def make(name):
    return getattr(sonde.estimators, name)()


def table(model):
    """A real data set of its kind, standardized, a third of the rows."""
    X, y = load_iris(return_X_y=True) if is_classifier(model) else load_diabetes(return_X_y=True)
    X, y = X[::3], y[::3]
    if is_classifier(model) and not model.__sklearn_tags__().classifier_tags.multi_class:
        y = (y == 1).astype(int)
    return (X - X.mean(0)) / X.std(0), y


def answer(model, X):
    return model.predict(X) if hasattr(model, "predict") else model.transform(X)


def test_the_folder_is_found():
    assert {"LeastSquares", "Ridge", "MAPRegression", "LogisticRegression", "SoftmaxRegression", "PCA"} <= set(sonde.estimators.homes())
    assert set(sonde.estimators.homes()) <= set(dir(sonde.estimators))
    with pytest.raises(AttributeError, match="Rigde"):
        _ = sonde.estimators.Rigde


@names
def test_check_estimator(name):
    check_estimator(make(name))


@names
def test_every_argument_is_documented(name):
    cls = getattr(sonde.estimators, name)
    text = "".join(inspect.getdoc(base) or "" for base in cls.__mro__ if base.__module__.startswith("sonde."))
    missing = [argument for argument in make(name).get_params(deep=False) if f"{argument}:" not in text]
    assert not missing


@names
def test_clone_and_parameters(name):
    model = make(name)
    twin = clone(model)
    assert twin.get_params() == model.get_params()
    assert type(twin.set_params(**model.get_params())) is type(model)


@names
def test_tensors_and_tables_give_what_arrays_give(name):
    model = make(name)
    X, y = table(model)
    expected = answer(clone(model).fit(X, y), X)
    tensor = torch.tensor(X, requires_grad=True)
    np.testing.assert_array_equal(answer(clone(model).fit(tensor, torch.tensor(y)), tensor), expected)
    frame = pd.DataFrame(X, columns=[f"column {i}" for i in range(X.shape[1])])
    fitted = clone(model).fit(frame, pd.Series(y))
    np.testing.assert_array_equal(answer(fitted, frame), expected)
    assert list(fitted.feature_names_in_) == list(frame.columns)


@names
def test_pipeline_and_search(name):
    model = make(name)
    X, y = table(model)
    steps = make_pipeline(StandardScaler(), model)
    steps.fit(X, y)
    assert len(answer(steps, X)) == len(X)
    if not (is_classifier(model) or is_regressor(model)):
        return
    argument = next(key for key, value in model.get_params().items() if isinstance(value, bool | float | str))
    search = GridSearchCV(steps, {f"{type(model).__name__.lower()}__{argument}": [model.get_params()[argument]]}, cv=2)
    assert search.fit(X, y).best_score_ == pytest.approx(cross_val_score(steps, X, y, cv=2).mean())


@pytest.mark.parametrize("kind", [*(getattr(sonde.estimators, name) for name in sonde.estimators.homes()), Word2Vec, GloVe])
def test_arguments_are_held_to_their_ranges_in_fit(kind):
    X, y = (SENTENCES, None) if kind in (Word2Vec, GloVe) else table(kind())
    options = constrained_arguments(kind, kind.__name__)
    numbers = [
        name for name, value in kind().get_params().items() if type(value) in (int, float) and name not in ("random_state", "dropout")
    ]
    assert options and set(numbers) - {"valid"} <= options.keys()
    for name, option in options.items():
        for wrong in ("?", True, *([(-1,) if option.many else -1, np.float64("nan")] if option.range else [])):
            with pytest.raises(BadInput, match=f"^argument '{name}' of {kind.__name__} (must be|takes) "):
                kind(**{name: wrong}).fit(X, y)


@names
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_bad_features_are_bad_input(name, bad):
    model = make(name)
    X, y = table(model)
    fitted = clone(model).fit(X, y)
    X = X.copy()
    X[3, 1] = bad
    for call in (lambda: clone(model).fit(X, y), lambda: answer(fitted, X)):
        with pytest.raises(BadInput) as caught:
            call()
        assert isinstance(caught.value, ValueError) and "\n" not in caught.value.render()


@names
def test_use_before_fit_is_bad_input(name):
    with pytest.raises(BadInput) as caught:
        answer(make(name), np.ones((4, 3)))
    assert isinstance(caught.value, NotFittedError)


@names
def test_labels_and_targets(name):
    model = make(name)
    X, y = table(model)
    if is_classifier(model):
        for labels in (np.zeros(len(X), dtype=int), np.linspace(0, 1, len(X)), np.where(y == y[0], np.nan, 1.0)):
            with pytest.raises(BadInput):
                clone(model).fit(X, labels)
    elif is_regressor(model):
        with pytest.raises(BadInput):
            clone(model).fit(X, np.where(y == y[0], np.nan, y))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            clone(model).fit(X, np.full(len(X), 2.5))
        assert any("targets are equal" in str(one.message) for one in caught)
