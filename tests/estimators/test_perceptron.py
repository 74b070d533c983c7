"""Perceptrons against scikit-learn's and plain loops, separability against known sets, ends of training, bad input."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import datasets, linear_model
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from sonde.core.errors import BadInput
from sonde.estimators.perceptron import MulticlassPerceptron, Perceptron, separability

SQUARE = np.array([[0, 0], [0, 1], [1, 0], [1, 1]], dtype=float)


@pytest.fixture(autouse=True)
def no_warning_for_overlap():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield


def overlapping(n=53, features=3, seed=0):
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(n, features))
    return x, (x @ np.arange(1, features + 1) + draw.normal(size=n) > 0).astype(int)


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("epochs", [1, 7])
def test_equals_scikit_learn(epochs, intercept):
    x, y = overlapping()
    ours = Perceptron(max_epochs=epochs, fit_intercept=intercept).fit(x, y)
    theirs = linear_model.Perceptron(shuffle=False, tol=None, max_iter=epochs, fit_intercept=intercept).fit(x, y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-10)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, atol=1e-10)
    np.testing.assert_array_equal(ours.predict(x), theirs.predict(x))
    np.testing.assert_allclose(ours.decision_function(x), theirs.decision_function(x), atol=1e-9)


def plain_loop(x, y, epochs):
    """The multi-class rule row by row."""
    rows = np.c_[x, np.ones(len(x))]
    weights, mistakes = np.zeros((y.max() + 1, rows.shape[1])), []
    for _ in range(epochs):
        mistakes.append(0)
        for row, label in zip(rows, y, strict=True):
            scores = weights @ row
            rival = max((k for k in range(len(weights)) if k != label), key=lambda k: scores[k])
            if scores[label] <= scores[rival]:
                weights[label] += row
                weights[rival] -= row
                mistakes[-1] += 1
    return weights, mistakes


@settings(max_examples=25)
@given(st.integers(2, 5), st.integers(1, 4), st.integers(5, 70), st.integers(0, 1000))
def test_multiclass_equals_a_plain_loop(classes, features, n, seed):
    draw = np.random.default_rng(seed)
    x = draw.integers(-5, 6, size=(n, features)).astype(float)
    y = np.r_[np.arange(classes), draw.integers(0, classes, size=max(n - classes, 0))][:n]
    fitted = MulticlassPerceptron(max_epochs=4).fit(x, y)
    weights, mistakes = plain_loop(x, y, fitted.n_iter_)
    np.testing.assert_array_equal(np.c_[fitted.coef_, fitted.intercept_], weights)
    assert fitted.mistakes_ == mistakes


@settings(max_examples=25)
@given(st.integers(4, 90), st.integers(1, 5), st.integers(0, 1000))
def test_two_classes_are_the_binary_rule_doubled(n, features, seed):
    draw = np.random.default_rng(seed)
    x = draw.integers(-3, 4, size=(n, features)).astype(float)
    y = np.r_[0, 1, draw.integers(0, 2, size=n - 2)]
    two, one = MulticlassPerceptron(max_epochs=6).fit(x, y), Perceptron(max_epochs=6).fit(x, y)
    np.testing.assert_array_equal(two.coef_[1] - two.coef_[0], 2 * one.coef_[0])
    np.testing.assert_array_equal(two.decision_function(x), 2 * one.decision_function(x))
    assert two.mistakes_ == one.mistakes_


def test_history_by_hand():
    fitted = Perceptron(keep_updates=True).fit(SQUARE, [-1, -1, -1, 1])
    first, second = fitted.updates_[:2]
    assert (first.epoch, first.row, first.weights.tolist()) == (1, 0, [0, 0, -1])
    assert (second.epoch, second.row, second.weights.tolist()) == (1, 3, [1, 1, 0])
    assert fitted.converged_ and fitted.mistakes_[-1] == 0 and sum(fitted.mistakes_) == len(fitted.updates_)
    np.testing.assert_array_equal(fitted.updates_[-1].weights, np.r_[fitted.coef_[0], fitted.intercept_])
    assert Perceptron().fit(SQUARE, [0, 0, 0, 1]).updates_ == []


@pytest.mark.parametrize("at_zero, expected", [(1, "yes"), (0, "no")])
def test_class_on_the_boundary(at_zero, expected):
    fitted = Perceptron(at_zero=at_zero, fit_intercept=False).fit([[1.0], [-1.0]], ["yes", "no"])
    assert fitted.predict([[0.0]]).tolist() == [expected]


@pytest.mark.parametrize("kind", [Perceptron, MulticlassPerceptron])
def test_xor_ends_with_a_warning(kind):
    with pytest.warns(ConvergenceWarning, match="4 mistakes after max_epochs=9"):
        fitted = kind(max_epochs=9).fit(SQUARE, [0, 1, 1, 0])
    assert not fitted.converged_ and fitted.n_iter_ == 9 and len(fitted.mistakes_) == 9


def test_separability_of_known_sets():
    assert separability(SQUARE, [0, 0, 0, 1]).separable
    report = separability(SQUARE, [0, 1, 1, 0])
    assert not report.separable and report.margin == 0 and "not separable: 4 rows" in str(report)
    np.testing.assert_allclose(report.share, [0.25] * 4, atol=1e-9)
    x, y = datasets.load_iris(return_X_y=True)
    assert separability(x, y == 0).separable  # setosa
    assert not separability(x, y == 1).separable
    assert not separability(x, y).separable
    assert separability(x[y != 2], y[y != 2]).separable


def test_the_plane_and_its_margin():
    x, y = datasets.load_iris(return_X_y=True)
    y = (y == 0).astype(int)
    report = separability(x, y)
    lead = (2 * y - 1) * (x @ report.coef[0] + report.intercept[0]) / np.linalg.norm(report.coef)
    assert report.margin == pytest.approx(lead.min(), rel=1e-9) and lead.min() > 0
    widest = 1 / np.linalg.norm(SVC(kernel="linear", C=1e8).fit(x, y).coef_)
    assert 0.3 * widest < report.margin <= widest * (1 + 1e-6)


def test_separability_of_several_classes():
    draw = np.random.default_rng(0)
    y = np.arange(60) % 3
    x = np.array([[0, 9], [-9, -6], [9, -6]])[y] + draw.normal(size=(60, 2))
    report = separability(x, y)
    assert report.separable and report.coef.shape == (3, 2)
    np.testing.assert_array_equal((x @ report.coef.T + report.intercept).argmax(1), y)


def test_separability_of_more_rows_than_are_looked_at_once():
    draw = np.random.default_rng(1)
    x = draw.normal(size=(3000, 4)) * [1, 100, 1e-3, 1] + [0, 5e3, 0, 0]
    score = (x / [1, 100, 1e-3, 1] - [0, 50, 0, 0]) @ [1, -1, 2, 0.5]
    x, score = x[np.abs(score) > 0.05], score[np.abs(score) > 0.05]
    assert separability(x, score > 0).separable
    spoilt = score > 0
    spoilt[np.argmax(score)] = False
    assert not separability(x, spoilt).separable


@pytest.mark.parametrize("scale", [1e160, 1e200, 1e-160, 1e-200, 1e300])
def test_separability_in_any_units(scale):
    x, y = datasets.load_iris(return_X_y=True)
    report = separability(x * scale, y == 0)
    assert report.separable and report.margin == pytest.approx(scale * separability(x, y == 0).margin, rel=1e-6)
    np.testing.assert_array_equal(x * scale @ report.coef[0] + report.intercept[0] > 0, y == 0)
    assert not separability(x * scale, y == 1).separable
    assert separability([[0.0, scale], [1 / scale, scale]], [0, 1]).separable


def test_no_proof_is_claimed_that_does_not_hold():
    for gap in (1e-10, 1e-12):
        with pytest.raises(BadInput, match="too close to call"):
            separability([[0.0], [1.0], [1 + gap], [2.0]], [0, 0, 1, 1])
    assert separability([[0.0], [1.0], [1 + 1e-7], [2.0]], [0, 0, 1, 1]).separable
    x, y = datasets.load_iris(return_X_y=True)
    share = separability(x, y == 1).share
    np.testing.assert_allclose(share[y == 1] @ x[y == 1], share[y != 1] @ x[y != 1], atol=1e-12)
    with pytest.raises(BadInput, match="too small for the weights"):
        separability([[0.0, 1e-315], [1.0, 2e-315]], [0, 1])


@settings(max_examples=20)
@given(st.integers(0, 10_000))
def test_a_perceptron_that_converges_is_a_proof(seed):
    draw = np.random.default_rng(seed)
    x, y = draw.normal(size=(9, 3)), np.arange(9) % 2
    if Perceptron(max_epochs=2000).fit(x, y).converged_:
        assert separability(x, y).separable


def test_tensors_pipelines_and_grids():
    x, y = datasets.load_breast_cancer(return_X_y=True)
    plain, tensor = Perceptron(max_epochs=5).fit(x, y), Perceptron(max_epochs=5).fit(torch.tensor(x), torch.tensor(y))
    np.testing.assert_array_equal(plain.coef_, tensor.coef_)
    search = GridSearchCV(make_pipeline(StandardScaler(), Perceptron()), {"perceptron__max_epochs": [5, 20]}, cv=3).fit(x, y)
    assert search.best_score_ > 0.93


@pytest.mark.parametrize("kind", [Perceptron, MulticlassPerceptron])
def test_a_perceptron_gives_no_probabilities(kind):
    assert not hasattr(kind(), "predict_proba")


def test_digits():
    x, y = datasets.load_digits(return_X_y=True)
    fitted = MulticlassPerceptron(max_epochs=200).fit(x, y)
    assert fitted.converged_ and fitted.score(x, y) == 1.0 and fitted.coef_.shape == (10, 64)


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: Perceptron().fit(SQUARE, [0, 1, 2, 1]), "use MulticlassPerceptron"),
        (lambda: Perceptron().fit(SQUARE, [0, 0, 0, 0]), "one class"),
        (lambda: Perceptron().fit(SQUARE * np.nan, [0, 0, 1, 1]), "NaN"),
        (lambda: Perceptron().predict(SQUARE), "not fitted"),
        (lambda: Perceptron().fit(SQUARE, [0, 0, 1, 1]).predict(SQUARE[:, :1]), "1 features"),
        (lambda: separability(SQUARE, [1, 1, 1, 1]), "one class"),
        (lambda: separability(SQUARE, [1, 0]), "inconsistent"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(BadInput, match=words) as caught:
        call()
    assert isinstance(caught.value, ValueError)
