"""Logistic and softmax regression against scikit-learn at the same convex problem; separable classes; reductions."""

from __future__ import annotations

import warnings

import mpmath
import numpy as np
import pytest
import torch
from scipy.special import expit, softmax
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression as Theirs
from sklearn.multiclass import OneVsOneClassifier, OneVsRestClassifier

from sonde.core.errors import BadInput
from sonde.estimators import LogisticRegression, SoftmaxRegression, _canonical
from sonde.estimators._canonical import Problem
from tests.tolerance import distance, near, rounding

SETS = {load.__name__: load(return_X_y=True) for load in (load_iris, load_wine, load_breast_cancer, load_digits)}
solvers = pytest.mark.parametrize("solver", ["newton", "lbfgs"])


def standard(name):
    X, y = SETS[name]
    return (X - X.mean(0)) / np.maximum(X.std(0), 1e-9), y


def theirs(alpha=1.0, **options):
    return Theirs(C=1 / alpha, solver="newton-cg", tol=1e-12, max_iter=5000, **options)


def certificate(weights, X, codes, alpha=1.0, s=None, bias=True):
    """At weights (M, D + 1): how far the objective may lie above its minimum, from its plain definition, and the inverse Hessian.

    The excess is half of g^T H^-1 g, where rounding may hide a part of each entry of the gradient g.
    """
    s = np.ones(len(X)) if s is None else s
    rows = np.column_stack([X, np.full(len(X), float(bias))])
    M, P = weights.shape
    penalty = np.r_[np.full(P - 1, alpha), 0.0 if bias else 1.0]
    p = expit(rows @ weights.T) if M == 1 else softmax(rows @ weights.T, 1)
    wrong = p - ((codes[:, None] == np.arange(M)) if M > 1 else codes[:, None])
    gradient = (s[:, None] * wrong).T @ rows + penalty * weights
    hidden = rounding(1, len(X)) * ((s[:, None] * np.abs(wrong)).T @ np.abs(rows) + penalty * np.abs(weights))
    second = p[:, :, None] * (np.eye(M) - p[:, None, :])
    H = np.einsum("n,nkj,na,nb->kajb", s, second, rows, rows, optimize=True).reshape(M * P, M * P) + np.kron(np.eye(M), np.diag(penalty))
    H_inverse = np.linalg.inv(H + (np.kron(np.ones((M, M)), np.eye(P)) if M > 1 else 0))  # a common shift of all classes changes nothing
    return sum(g.ravel() @ np.abs(H_inverse) @ g.ravel() for g in (np.abs(gradient), hidden)), H_inverse


def fitted(model):
    return np.column_stack([model.coef_, model.intercept_])


def same_weights(ours, theirs, X, codes, tol, **case):
    """Both (M, D + 1) are at the minimum, to `tol` in whitened coordinates, and so near each other; by how much a score may differ (N,)."""
    if len(ours) > 1:  # a common shift of all biases changes no probability: ours add up to 0, theirs to anything
        theirs = theirs - np.r_[np.zeros(X.shape[1]), theirs[:, -1].mean()]
    (excess, H_inverse), (other, _) = (certificate(weights, X, codes, **case) for weights in (ours, theirs))
    assert max(excess, other) <= len(X) * ours.size * tol**2 / 2
    bound = distance(excess, 1 / H_inverse.diagonal()) + distance(other, 1 / H_inverse.diagonal())
    assert (np.abs(ours - theirs).ravel() <= bound).all()
    rows = np.column_stack([X, np.ones(len(X))])
    blocks = H_inverse.reshape(*ours.shape, *ours.shape)
    across = np.max([np.einsum("na,ab,nb->n", rows, blocks[k, :, k], rows) for k in range(len(blocks))], 0)
    return distance(excess, 1 / across) + distance(other, 1 / across)


def same_fit(ours, theirs, X, codes, tol, **case):
    """Weights, probabilities and, where no tie could break otherwise, predictions."""
    slack = 2 * same_weights(fitted(ours), fitted(theirs), X, codes, tol, **case)  # two scores may move against each other
    assert (np.abs(ours.predict_log_proba(X) - theirs.predict_log_proba(X)) <= slack[:, None]).all()
    np.testing.assert_allclose(ours.predict_proba(X), np.exp(ours.predict_log_proba(X)), rtol=0, atol=rounding(1, 10))
    first, second = np.sort(theirs.predict_log_proba(X), 1)[:, [-1, -2]].T
    clear = first - second > slack
    assert clear.mean() > 0.9 and (ours.predict(X) == theirs.predict(X))[clear].all()


@pytest.mark.parametrize("name", SETS)
def test_real_data(name):
    X, y = standard(name)
    model = LogisticRegression if len(set(y)) == 2 else SoftmaxRegression
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        expected = theirs().fit(X, y)
    same_fit(model(tol=1e-9).fit(X, y), expected, X, y, 1e-9)


@solvers
@pytest.mark.parametrize("bias", [True, False])
def test_raw_units_weights_and_bias(solver, bias):
    X, y = SETS["load_wine"]
    s = np.random.default_rng(0).integers(0, 3, len(y)).astype(float)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        expected = theirs(0.5, fit_intercept=bias).fit(X, y, s)
    ours = SoftmaxRegression(0.5, bias, solver=solver, tol=1e-10).fit(X, y, s)
    same_fit(ours, expected, X, y, 1e-10, alpha=0.5, s=s, bias=bias)
    # A bias is found at the mean row and moved to the origin: as many roundings as features, of that size.
    moved = np.abs(ours.coef_) @ np.abs(X).mean(0) + np.abs(ours.intercept_)
    assert ours.solver_ == solver and abs(ours.intercept_.sum()) <= rounding(1, X.shape[1] + 3) * moved.sum()


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("weighed", [False, True])
def test_derivatives(outputs, weighed):
    """Gradient and Hessian in whitened coordinates against autograd of the plain definition."""
    X, y = SETS["load_iris"]
    y = y if outputs == 3 else (y == 1).astype(int)
    s = np.linspace(0.1, 2, len(y)) if weighed else None
    problem = Problem(X, y, outputs, s, 0.7, bias=True)
    theta = torch.randn(outputs * 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    row_weights = torch.ones(len(y), dtype=torch.float64) if s is None else torch.tensor(s)

    def plain(theta):
        V, c = theta.reshape(outputs, 5).split([4, 1], 1)
        W = V @ problem.T.T
        z = torch.tensor(X) @ W.T + c[:, 0] - W @ problem.m
        z = torch.cat([torch.zeros_like(z), z], 1) if outputs == 1 else z
        nll = torch.nn.functional.cross_entropy(z, torch.tensor(y), reduction="none")
        return (row_weights * nll).sum() / row_weights.sum() + 0.7 / 2 * W.square().sum() / row_weights.sum()

    value, gradient = problem.value(theta.numpy())
    bound = rounding(torch.linalg.cond(problem.T), len(X))
    near(value, float(plain(theta)), bound)
    near(gradient, torch.func.grad(plain)(theta), bound)
    near(problem.hessian(theta.numpy()), torch.func.hessian(plain)(theta), bound)


@pytest.mark.parametrize("weighed", [False, True])
def test_first_steps_in_float32_end_at_the_same_minimum(monkeypatch, weighed):
    X, y = standard("load_wine")
    s = np.linspace(0.5, 2, len(y)) if weighed else None
    exact = SoftmaxRegression(solver="lbfgs", tol=1e-9).fit(X, y, s)
    kinds = []
    monkeypatch.setattr(_canonical, "LARGE", 1)
    monkeypatch.setattr(Problem, "value", lambda self, theta, real=Problem.value: kinds.append(self.X.dtype) or real(self, theta))
    rough = SoftmaxRegression(solver="lbfgs", tol=1e-9).fit(X, y, s)
    assert kinds.count(torch.float32) > 5 and kinds[-1] == torch.float64
    same_weights(fitted(rough), fitted(exact), X, y, 1e-9, s=s)


def test_many_rows_in_pieces():
    X, y = standard("load_iris")
    many, labels = np.tile(X, (67, 1)), np.tile(y, 67)  # more than one piece, the last one short
    ours, expected = SoftmaxRegression(67.0, tol=1e-9).fit(many, labels), SoftmaxRegression(1.0, tol=1e-9).fit(X, y)
    same_weights(fitted(ours), fitted(expected), X, y, 1e-9)


@pytest.mark.parametrize("reduction, outside", [("one-vs-rest", OneVsRestClassifier), ("one-vs-one", OneVsOneClassifier)])
def test_reductions(reduction, outside):
    X, y = standard("load_wine")
    ours, expected = LogisticRegression(reduction=reduction, tol=1e-9).fit(X, y), outside(theirs()).fit(X, y)
    pairs = [(0, 1), (0, 2), (1, 2)]
    games = [(y >= 0, y == k) for k in range(3)] if reduction == "one-vs-rest" else [(np.isin(y, pair), y == pair[1]) for pair in pairs]
    slack = np.zeros(len(y))
    for game, ((rows, codes), one) in enumerate(zip(games, expected.estimators_, strict=True)):
        slack[rows] += same_weights(fitted(ours)[game : game + 1], fitted(one), X[rows], codes[rows], 1e-9)
    slack = slack.max()  # a duel also judges rows of the third class, which lie no farther out than the others
    z = expected.decision_function(X)
    assert (np.abs(ours.decision_function(X) - z) <= slack).all()
    first, second = np.sort(z, 1)[:, [-1, -2]].T
    clear = first - second > 2 * slack
    assert clear.mean() > 0.9 and (ours.predict(X) == expected.predict(X))[clear].all()
    if reduction == "one-vs-rest":
        assert (np.abs(ours.predict_proba(X) - expected.predict_proba(X)) <= slack).all()
    else:
        assert not hasattr(ours, "predict_proba")


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


def test_nearest_reduction_is_named():
    with pytest.raises(BadInput, match="did you mean 'one-vs-one'"):
        LogisticRegression(reduction="one-v-one").fit(*SETS["load_iris"])


def test_dependent_and_constant_columns():
    X, y = standard("load_wine")
    table = np.column_stack([X, X[:, 0], np.full(len(X), 7.0)])
    for solver in ("newton", "lbfgs"):
        ours = SoftmaxRegression(solver=solver, tol=1e-9).fit(table, y)
        excess, _ = certificate(fitted(ours), table, y)
        assert excess <= len(X) * fitted(ours).size * 1e-18 / 2
        away = distance(excess, 1.0)  # the penalty's curvature
        near(ours.coef_[:, 0], ours.coef_[:, -2], 2 * away, scale=1)
        near(ours.coef_[:, -1], np.zeros(3), away, scale=1)


def far_row(size, draw, classes, label):
    """Rows from a linear model, and behind them one that is `size` times as far out, in any direction."""
    random = np.random.default_rng(draw)
    X = random.normal(size=(30, 3))
    codes = (X @ random.normal(size=(3, classes)) + random.gumbel(size=(30, classes))).argmax(1)
    codes[:classes] = range(classes)
    return np.r_[X, size * random.normal(size=(1, 3))], np.r_[codes, label]


def excess_in_50_digits(model, X, codes):
    """How far the objective at the fitted weights lies above its minimum, relative to it: Newton's method goes on from there."""
    with mpmath.workdps(50):
        number, exp = (np.vectorize(each, otypes=[object]) for each in (mpmath.mpf, mpmath.exp))
        rows, theta = number(np.column_stack([X, np.ones(len(X))])), number(fitted(model))
        M, P = theta.shape
        one = M == 1  # the class before it has the score 0
        penalty, target = np.r_[np.ones(P - 1, int), 0], np.eye(M + one, dtype=int)[codes]

        def at(theta):
            z = rows @ theta.T
            z = np.column_stack([0 * z, z]) if one else z
            z = z - z.max(1, keepdims=True)
            p = exp(z)
            total = p.sum(1)
            return sum(map(mpmath.log, total)) - (target * z).sum() + (penalty * theta**2).sum() / 2, (p / total[:, None])[:, one:]

        start, p = at(theta)
        value = start
        while True:
            gradient = (p - target[:, one:]).T @ rows + penalty * theta
            H = np.full((M, P, M, P), mpmath.mpf(0))
            for k, j in np.ndindex(M, M):
                H[k, :, j] = (rows * (p[:, k] * ((k == j) - p[:, j]))[:, None]).T @ rows + np.diag(penalty) * int(k == j)
                H[k, -1, j, -1] += int(not one)  # a common shift of all biases changes nothing
            move = mpmath.lu_solve(mpmath.matrix(H.reshape(M * P, M * P).tolist()), mpmath.matrix((-gradient).ravel().tolist()))
            move = np.array(move).reshape(M, P)
            slope, size = (gradient * move).sum(), mpmath.mpf(1)
            if -slope < mpmath.mpf(10) ** -30:
                return float((start - value) / value)
            while (there := at(theta + size * move))[0] > value + size * slope / 10_000:
                size /= 2
            theta, (value, p) = theta + size * move, there


SIZES = [1e2, 1e4, 1e6, 1e8, 1e10, 1e12]
REACHED = 12 * 1e-6**2 / 2 * 100
"""a gradient of 1e-6 in 4 or 12 whitened coordinates, in which the curvature is hardly below 1/100"""


@solvers
@pytest.mark.parametrize("model, classes", [(LogisticRegression, 2), (SoftmaxRegression, 3)])
@pytest.mark.parametrize("draw", range(20))
def test_a_row_far_from_all_others(draw, model, classes, solver):
    """The row may be on either side of the plane; where it is on the wrong one, the minimum lies in the bend of its loss."""
    X, codes = far_row(SIZES[draw % 6], draw, classes, label=draw % 2)
    assert excess_in_50_digits(model(solver=solver).fit(X, codes), X, codes) < REACHED


@pytest.mark.parametrize("rows", [1, 3])
def test_far_rows_outside_the_sample_and_beside_float32(monkeypatch, rows):
    """The cloud is known from some rows, of which these are none; the first steps are in float32, these rows are not."""
    monkeypatch.setattr(_canonical, "SAMPLE", 20)
    monkeypatch.setattr(_canonical, "LARGE", 1)
    X, codes = far_row(1e8, 0, 3, 1)
    X[[index for index in range(31) if index not in _canonical._sample_rows(31, 20)][:rows]] *= 1e7
    fit = SoftmaxRegression(solver="lbfgs").fit(X, codes)
    assert excess_in_50_digits(fit, X, codes) < REACHED


@solvers
@pytest.mark.parametrize("size", [1e16, 1e18, 1e24])
def test_an_end_that_is_no_minimum_is_said(solver, size):
    """Beside a number of more than 1 / eps, float64 cannot hold the others: what is not reached is said."""
    warned = []
    for model, classes, label in ((LogisticRegression, 2, 0), (LogisticRegression, 2, 1), (SoftmaxRegression, 3, 0)):
        X, codes = far_row(size, 0, classes, label)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            fit = model(solver=solver, max_iter=25).fit(X, codes)
        warned.append(any("no minimum" in str(one.message) and one.category is ConvergenceWarning for one in caught))
        assert warned[-1] or excess_in_50_digits(fit, X, codes) < REACHED
    assert warned[-1] or size < 1e18


def test_the_loss_has_no_jumps():
    """Along a line on which the score passes 20, where torch's softplus would round, f rises as its slope says."""
    problem = Problem(np.array([[1.0], [-1.0]]), np.array([0, 1]), 1, None, 0.0, bias=False)
    step = 1e-3 / float(problem.T)
    start = np.array([19.999, 0.0]) / np.array([float(problem.T), 1.0])
    (before, slope), (after, bent) = problem.value(start), problem.value(start + [2 * step, 0])
    assert after - before == pytest.approx(step * (slope[0] + bent[0]), abs=rounding(20, 4))


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
    both = np.column_stack([ours.coef_[:, 0], ours.coef_[:, 1] + 3 * ours.coef_[:, 2], ours.intercept_])
    same_weights(both, fitted(plain), X, y.astype(int), 1e-10, alpha=0.0)
    near(ours.coef_[:, 2], 3 * ours.coef_[:, 1], rounding(np.linalg.cond(X), len(X)))
    np.testing.assert_array_equal(ours.coef_[:, 3], 0)


def test_a_step_that_changes_nothing_is_the_last():
    X, y = standard("load_wine")
    assert LogisticRegression(tol=1e-30).fit(X, y == 1).n_iter_[0] < 20


@pytest.mark.parametrize("scale", [1e160, 1e-160])
@pytest.mark.parametrize("model", [LogisticRegression, SoftmaxRegression])
def test_numbers_whose_squares_are_lost_are_refused(model, scale):
    X, y = standard("load_iris")
    with pytest.raises(BadInput, match="whose squares a float64 cannot hold"):
        model().fit(X * scale, y)
