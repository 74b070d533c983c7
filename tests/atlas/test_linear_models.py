"""Chapter 1: mistakes made on purpose turn its exhibits red."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sonde.atlas import linear_models
from sonde.atlas.exhibit import run
from sonde.estimators import bayes, least_squares, logistic
from sonde.objectives import gaussian
from tests.atlas.mistakes import Mistakes

mistakes = Mistakes()

mistakes.add("FN-01", "a tenth of the rate", only="loss after 100 gradient steps, as a share of the first").replace(
    linear_models.torch.optim, "SGD", lambda right, parameters, lr: right(parameters, lr=lr / 10)
)
mistakes.add("FN-03", "a lost minus", red="gradient at (0, 0)").replace(linear_models, "_slope", lambda right, phi: -right(phi))
# C-04: sum or mean, with or without a half, are distinguished.
mistakes.add(
    "FN-03", "a half that is forgotten", red=("mean, half: gradient", "Gaussian likelihood"), green="sum: gradient at (0, 0)"
).replace(gaussian, "squared_error", lambda right, output, y, reduction="mean", half=False: right(output, y, reduction))
mistakes.add("FN-04", "a gradient that points down", red="least rise").replace(linear_models, "_slope", lambda right, phi: -right(phi))
mistakes.add("FN-04", "a slope that is not the gradient", red="gradient . tangent").replace(
    linear_models, "_slope", lambda right, phi: right(phi).flip(0)
)
mistakes.add("FN-05", "steps uphill", red="how it ended").replace(
    linear_models, "descend", lambda right, loss, phi, rate, eps, most=1000: right(loss, phi, -rate, eps, most)
)
mistakes.add("FN-06", "a small ridge", red="SciPy").replace(
    least_squares, "solve", lambda right, table, alpha, solver="auto": right(table, alpha + 1e-6, solver)
)
mistakes.add(
    "FN-07", "rows and columns swapped", red=("operations of X^T X against a counter", "inverse", "the whole solution: log-log slope in D")
).replace(least_squares, "flops", lambda right, rows, columns: right(columns, rows))
# An inverse of a matrix of rows, not of columns.
mistakes.add(
    "FN-07",
    "a solution that costs more than its product",
    red=("operations of the inverse", "the whole solution: log-log slope in N"),
    green="of X^T X",
).replace(least_squares, "flops", lambda right, rows, columns: {**right(rows, columns), "inverse": right(columns, rows)["inverse"]})
mistakes.add("FN-08", "silence about a singular table", red=("a column twice", "singular, rank")).replace(
    least_squares.FACTORIZATIONS, "svd", lambda right, table, *args: replace(right(table, *args), rank=table.X.shape[1])
)
mistakes.add("FN-09", "features that are the old ones", only="accuracy on (r, theta), each seed").replace(
    linear_models, "polar", lambda right, x: x if len(x) > 3 else right(x)
)
mistakes.add("FN-10", "a penalty nobody asked for", red="gradient where Newton ends").replace(
    logistic.Problem,
    "__init__",
    lambda right, self, X, codes, outputs, s, alpha, bias: right(self, X, codes, outputs, s, alpha + 0.1, bias),
)
mistakes.add("FN-11", "duels that go to the loser", red="one-vs-one: accuracy").replace(
    logistic, "_duels", lambda right, z, K: right(-z, K)
)


@mistakes.add("FN-02", "a bias that is not fitted", red="best affine fit to exclusive-or").replace(least_squares._Affine, "_fit")
def through_zero(right, self, *args, **kwargs):
    self.fit_intercept = False
    right(self, *args, **kwargs)


@mistakes.add("FN-08", "a bias that is shrunk", red="bias free").replace(least_squares._Affine, "_fit")
def shrunk(right, self, X, y, weight, alpha, **kwargs):
    right(self, X, y, weight, alpha, penalize_bias=alpha > 0)


@mistakes.add("FN-08", "prior and noise swapped", red="lambda").replace(bayes.MAPRegression, "fit")
def swapped(right, self, X, y):
    self.tau, self.sigma = self.sigma, self.tau
    return right(self, X, y)


@mistakes.add("FN-09", "arctan without quadrants", red="theta of (-1, 0)").replace(linear_models, "polar")
def printed(x):
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.column_stack([np.hypot(x[:, 0], x[:, 1]), np.nan_to_num(np.arctan(x[:, 1] / x[:, 0]))])


@mistakes.each
def test_notices(mistake, monkeypatch):
    mistake.assert_noticed(monkeypatch)


def test_fn_07_does_not_hang_on_the_clock(monkeypatch):
    """Whatever the machine's times are, the verdict is that of the counts."""
    monkeypatch.setattr(linear_models, "_seconds", lambda rows, columns, whole=False: 1e-9 * rows**2 / columns)
    assert run("FN-07").passed
