"""Logistic and softmax regression against scikit-learn at the same convex problem; separable classes; reductions."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression as Theirs
from sklearn.multiclass import OneVsOneClassifier, OneVsRestClassifier

from sonde.core.errors import BadInput
from sonde.estimators import LogisticRegression, SoftmaxRegression, _canonical
from sonde.estimators._canonical import Problem

SETS = {load.__name__: load(return_X_y=True) for load in (load_iris, load_wine, load_breast_cancer, load_digits)}
solvers = pytest.mark.parametrize("solver", ["newton", "lbfgs"])


def standard(name):
    X, y = SETS[name]
    return (X - X.mean(0)) / np.maximum(X.std(0), 1e-9), y


def theirs(alpha=1.0, **options):
    return Theirs(C=1 / alpha, solver="newton-cg", tol=1e-12, max_iter=5000, **options)


@pytest.mark.parametrize("name", SETS)
def test_real_data(name):
    X, y = standard(name)
    model = LogisticRegression if len(set(y)) == 2 else SoftmaxRegression
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        expected = theirs().fit(X, y)
    ours = model(tol=1e-9).fit(X, y)
    np.testing.assert_allclose(ours.coef_, expected.coef_, atol=1e-6)
    np.testing.assert_allclose(ours.predict_proba(X), expected.predict_proba(X), atol=1e-6)
    np.testing.assert_allclose(ours.predict_log_proba(X), expected.predict_log_proba(X), atol=1e-5)
    assert (ours.predict(X) == expected.predict(X)).all()


@solvers
@pytest.mark.parametrize("bias", [True, False])
def test_raw_units_weights_and_bias(solver, bias):
    X, y = SETS["load_wine"]
    s = np.random.default_rng(0).integers(0, 3, len(y)).astype(float)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        expected = theirs(0.5, fit_intercept=bias).fit(X, y, s)
    ours = SoftmaxRegression(0.5, bias, solver=solver, tol=1e-10).fit(X, y, s)
    np.testing.assert_allclose(ours.predict_proba(X), expected.predict_proba(X), atol=1e-6)
    assert ours.solver_ == solver and abs(ours.intercept_.sum()) < 1e-6


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("weighed", [False, True])
def test_derivatives(outputs, weighed):
    """Gradient and Hessian in whitened coordinates against autograd of the plain definition."""
    X, y = SETS["load_iris"]
    y = y if outputs == 3 else (y == 1).astype(int)
    s = np.linspace(0.1, 2, len(y)) if weighed else None
    problem = Problem(X, y, outputs, s, 0.7, bias=True)
    theta = torch.randn(outputs * 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    share = torch.ones(len(y), dtype=torch.float64) if s is None else torch.tensor(s)

    def plain(theta):
        V, c = theta.reshape(outputs, 5).split([4, 1], 1)
        W = V @ problem.T.T
        z = torch.tensor(X) @ W.T + c[:, 0] - W @ problem.m
        z = torch.cat([torch.zeros_like(z), z], 1) if outputs == 1 else z
        nll = torch.nn.functional.cross_entropy(z, torch.tensor(y), reduction="none")
        return (share * nll).sum() / share.sum() + 0.7 / 2 * W.square().sum() / share.sum()

    value, gradient = problem.value(theta.numpy())
    assert value == pytest.approx(float(plain(theta)), abs=1e-12)
    np.testing.assert_allclose(gradient, torch.func.grad(plain)(theta), atol=1e-12)
    np.testing.assert_allclose(problem.hessian(theta.numpy()), torch.func.hessian(plain)(theta), atol=1e-12)


def test_first_steps_in_float32_end_at_the_same_minimum(monkeypatch):
    X, y = standard("load_wine")
    exact = SoftmaxRegression(solver="lbfgs", tol=1e-9).fit(X, y)
    monkeypatch.setattr(_canonical, "LARGE", 1)
    rough = SoftmaxRegression(solver="lbfgs", tol=1e-9).fit(X, y)
    assert not np.array_equal(rough.coef_, exact.coef_)
    np.testing.assert_allclose(rough.coef_, exact.coef_, atol=1e-6)


def test_many_rows_in_pieces():
    X, y = standard("load_iris")
    many, labels = np.tile(X, (67, 1)), np.tile(y, 67)  # more than one piece, the last one short
    ours, expected = SoftmaxRegression(67.0, tol=1e-9).fit(many, labels), SoftmaxRegression(1.0, tol=1e-9).fit(X, y)
    np.testing.assert_allclose(ours.coef_, expected.coef_, atol=1e-7)


@pytest.mark.parametrize("reduction, outside", [("one-vs-rest", OneVsRestClassifier), ("one-vs-one", OneVsOneClassifier)])
def test_reductions(reduction, outside):
    X, y = standard("load_wine")
    ours, expected = LogisticRegression(reduction=reduction, tol=1e-9).fit(X, y), outside(theirs()).fit(X, y)
    np.testing.assert_allclose(ours.coef_, np.vstack([one.coef_ for one in expected.estimators_]), atol=1e-6)
    assert (ours.predict(X) == expected.predict(X)).all()
    if reduction == "one-vs-rest":
        np.testing.assert_allclose(ours.predict_proba(X), expected.predict_proba(X), atol=1e-6)
    else:
        assert not hasattr(ours, "predict_proba")
        np.testing.assert_allclose(ours.decision_function(X), expected.decision_function(X), atol=1e-6)


def test_names_of_classes():
    X, y = standard("load_iris")
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    for model in (SoftmaxRegression(), LogisticRegression(), LogisticRegression(reduction="one-vs-one")):
        assert set(model.fit(X, names).predict(X)) == set(names)


@solvers
@pytest.mark.parametrize("model", [LogisticRegression, SoftmaxRegression])
def test_separable_classes_are_named(model, solver):
    X, y = standard("load_iris")
    with pytest.raises(BadInput, match="a plane separates the classes.*infinity; give alpha > 0"):
        model(0.0, solver=solver).fit(X, y == 0)
    assert model(1e-3, solver=solver).fit(X, y == 0).score(X, y == 0) == 1
    model(0.0, solver=solver).fit(X, y == 1)


@solvers
def test_almost_separable_classes_are_named(solver):
    """One value has both classes; beyond it each side has one, so the slope still runs away."""
    x = np.array([[0.0], [1.0], [1.0], [2.0]])
    with pytest.raises(BadInput, match="almost separates"):
        LogisticRegression(0.0, solver=solver).fit(x, [0, 0, 1, 1])
    LogisticRegression(0.0, solver=solver).fit(np.array([[0.0], [1.0], [0.5], [2.0]]), [0, 1, 1, 0])


def test_a_limit_that_is_hit_is_said():
    X, y = standard("load_digits")
    for solver in ("newton", "lbfgs"):
        with pytest.warns(ConvergenceWarning, match="max_iter=2"):
            assert (SoftmaxRegression(solver=solver, max_iter=2).fit(X[:300], y[:300]).n_iter_ == 2).all()


@pytest.mark.parametrize("settings", [{"alpha": -1.0}, {"solver": "sgd"}, {"tol": 0.0}, {"max_iter": 0}])
def test_wrong_settings(settings):
    for model in (SoftmaxRegression, LogisticRegression):
        with pytest.raises(BadInput):
            model(**settings).fit(*SETS["load_iris"])
    with pytest.raises(BadInput, match="did you mean 'one-vs-one'"):
        LogisticRegression(reduction="one-v-one").fit(*SETS["load_iris"])


def test_dependent_and_constant_columns():
    X, y = standard("load_wine")
    table = np.column_stack([X, X[:, 0], np.full(len(X), 7.0)])
    for solver in ("newton", "lbfgs"):
        ours = SoftmaxRegression(solver=solver, tol=1e-9).fit(table, y)
        np.testing.assert_allclose(ours.coef_[:, 0], ours.coef_[:, -2], atol=1e-5)
        np.testing.assert_allclose(ours.coef_[:, -1], 0, atol=1e-6)


def far_row(size):
    draw = np.random.default_rng(0)
    X = draw.normal(size=(50, 4))
    y = X @ [1, 2, 3, 4] + draw.normal(size=50) > 0
    return np.r_[X, np.full((1, 4), size)], np.r_[y, True]


def objective(model, X, y):
    z = X @ model.coef_[0] + model.intercept_[0]
    return np.logaddexp(0, np.where(y, -z, z)).sum() + model.coef_[0] @ model.coef_[0] / 2


@solvers
@pytest.mark.parametrize("size", [1e2, 1e6, 1e8, 1e12])
def test_a_row_far_from_all_others(size, solver):
    X, y = far_row(size)
    expected = Theirs(solver="newton-cholesky", tol=1e-12).fit(X, y)
    assert objective(LogisticRegression(solver=solver).fit(X, y), X, y) == pytest.approx(objective(expected, X, y), rel=1e-6)


def test_an_end_that_is_no_minimum_is_said(monkeypatch):
    """Where the problem is too large for Newton to finish what L-BFGS cannot."""
    monkeypatch.setattr(_canonical, "FINISH", 0.0)
    with pytest.warns(ConvergenceWarning, match="no minimum"):
        LogisticRegression(solver="lbfgs").fit(*far_row(1e12))


@solvers
@pytest.mark.parametrize("model", [LogisticRegression, SoftmaxRegression])
def test_columns_without_any_spread(model, solver):
    fitted = model(0.0, fit_intercept=False, solver=solver).fit(np.zeros((6, 2)), [0, 1] * 3)
    assert not fitted.coef_.any()
    np.testing.assert_allclose(fitted.predict_proba(np.ones((1, 2))), 0.5)


@solvers
@pytest.mark.parametrize("model", [LogisticRegression, SoftmaxRegression])
def test_without_a_penalty_the_smallest_weights_are_taken(model, solver):
    """A column that is there twice in other units, and a constant one, against the fit without them."""
    X, y = standard("load_iris")
    y, X = y == 1, X[:, :2]
    plain = model(0.0, solver=solver, tol=1e-10).fit(X, y)
    ours = model(0.0, solver=solver, tol=1e-10).fit(np.column_stack([X, 3 * X[:, 1], np.full(len(X), 3.7)]), y)
    np.testing.assert_allclose(ours.coef_[:, 0], plain.coef_[:, 0], rtol=1e-6)
    np.testing.assert_allclose(ours.coef_[:, 1:3], plain.coef_[:, 1:] * [0.1, 0.3], rtol=1e-6)
    np.testing.assert_array_equal(ours.coef_[:, 3], 0)
    np.testing.assert_allclose(ours.intercept_, plain.intercept_, rtol=1e-6)


def test_a_step_that_changes_nothing_is_the_last():
    X, y = standard("load_wine")
    assert LogisticRegression(tol=1e-30).fit(X, y == 1).n_iter_[0] < 20


@pytest.mark.parametrize("scale", [1e160, 1e-160])
@pytest.mark.parametrize("model", [LogisticRegression, SoftmaxRegression])
def test_numbers_whose_squares_are_lost_are_refused(model, scale):
    X, y = standard("load_iris")
    with pytest.raises(BadInput, match="whose squares a float64 cannot hold"):
        model().fit(X * scale, y)
