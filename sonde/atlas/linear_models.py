"""Chapter 1, functions and linear models."""

from __future__ import annotations

import io
import math
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import grad, hessian

from ..core.batch import Batch
from ..core.reading import Lines, Plane, Subject, Table
from ..core.seeds import generator
from ..data.synthetic import blobs, rings
from ..estimators import bayes, least_squares, logistic
from ..lenses import cost as cost_lens
from ..models.mlp import MLP
from ..objectives import gaussian
from ..report.explain import explain_model
from .exhibit import Exhibit, spread

F64 = torch.float64
# Data of the worked example: y = 1 + 2 x.
X3, Y3 = torch.tensor([0.0, 1.0, 2.0], dtype=F64), torch.tensor([1.0, 3.0, 5.0], dtype=F64)


def fn_01(exhibit: Exhibit) -> str:
    """A network is modules in a row: its summary counts each, and calling it is calling them one after the other."""
    net = MLP((7, 5, 4, 3))
    x = torch.randn(6, 7, generator=exhibit.generator("composed"))
    cost = cost_lens.cost(net, (7,))
    layers = [row for row in cost.rows if row.weights]
    exhibit.expect("output size of each layer", [list(row.output) for row in layers], [[5], [4], [3]])
    exhibit.expect("parameters of each layer", [row.weights + row.biases for row in layers], [7 * 5 + 5, 5 * 4 + 4, 4 * 3 + 3])
    exhibit.expect("parameters in all", cost.weights + cost.biases, 79)
    printed = _render(explain_model(net, (7,), "A net of three layers"))
    lines = {row.name: next(line for line in printed.splitlines() if line.split()[:1] == [row.name]) for row in layers}
    shown = [all(f" {n} " in lines[row.name] for n in (row.output[0], row.weights, row.biases)) for row in layers]
    exhibit.expect("layers printed with size and counts", sum(shown), 3)
    y = x
    for part in _parts(net):
        y = part(y)
    exhibit.expect("composed call against nested calls", net(x).detach(), y.detach())
    target = torch.randn(6, 3, generator=exhibit.generator("targets"))
    losses = []
    rule = torch.optim.SGD(net.parameters(), lr=0.2)
    for _ in range(100):
        rule.zero_grad()
        loss = (net(x) - target).square().mean()
        loss.backward()
        losses.append(float(loss.detach()))
        rule.step()
    exhibit.expect("parameters that a gradient reaches", sum(p.numel() for p in net.parameters() if p.grad is not None), 79)
    exhibit.below("loss after 100 gradient steps, as a share of the first", losses[-1] / losses[0], 0.6)
    exhibit.show(cost_lens.read(Subject(model=net, batch=Batch(x=x))))
    return f"40 + 24 + 15 = {cost.weights + cost.biases} parameters, nested calls equal"


def fn_02(exhibit: Exhibit) -> str:
    """A linear map is a matrix with a row for each output, and no such map can answer exclusive-or."""
    layer = nn.Linear(3, 5, dtype=F64)
    exhibit.expect("shape of the weight of a map from 3 to 5 numbers", list(layer.weight.shape), [5, 3])
    x, other = torch.randn(2, 7, 3, dtype=F64, generator=exhibit.generator("linear"))
    A = layer.weight.detach()
    by_rows = torch.stack([torch.stack([(A[m] * row).sum() for m in range(5)]) for row in x])
    exhibit.expect("y = x W^T + b, entry by entry", layer(x).detach(), by_rows + layer.bias.detach(), within=1e-12)
    together, apart = (2 * x - 3 * other) @ A.T, 2 * x @ A.T - 3 * other @ A.T
    exhibit.expect("superposition, largest difference", float((together - apart).abs().max()), 0.0, within=1e-12)
    corners = np.array([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    truth = np.array([0.0, 1.0, 1.0, 0.0])
    fit = least_squares.LeastSquares().fit(corners, truth)
    exhibit.expect("best affine fit to exclusive-or", fit.predict(corners), np.full(4, 0.5), within=1e-12)
    error = float(np.square(fit.predict(corners) - truth).mean())
    exhibit.expect("its mean squared error", error, 0.25, within=1e-12)
    bent = least_squares.LeastSquares().fit(_with_product(corners), truth)
    exhibit.expect("with x1 x2 as a third feature it is exact", bent.predict(_with_product(corners)), truth, within=1e-12)
    side = np.linspace(-0.25, 1.25, 61)
    grid = np.stack(np.meshgrid(side, side), -1).reshape(-1, 2)
    planes = {"a x1 + b x2 + c": fit.predict(grid), "a x1 + b x2 + d x1 x2 + c": bent.predict(_with_product(grid))}
    exhibit.show(
        Plane(
            "The best fit to exclusive-or",
            {name: values.reshape(61, 61).round(12) for name, values in planes.items()},
            ["x1", "x2"],
            "Left: 0.5 everywhere. Right: the product bends the plane through all four corners.",
            x=side,
            y=side,
            levels=[0.25, 0.5, 0.75],
            points={"target 0": corners[[0, 3]], "target 1": corners[[1, 2]]},
        )
    )
    return f"0.5 at all four corners, mean squared error {error:.4g}"


def fn_03(exhibit: Exhibit) -> str:
    """The mean squared error of a line is a bowl with one lowest point, known in closed form."""
    start = torch.zeros(2, dtype=F64)
    exhibit.expect("gradient at (0, 0)", _slope(start), [-6.0, -26 / 3], within=1e-12)
    exhibit.expect("hand-written gradient against autograd, 20 points", *_both_gradients(20, exhibit.seed), within=1e-10)
    fit = least_squares.LeastSquares().fit(X3[:, None], Y3)
    line = [fit.intercept_, float(fit.coef_[0])]
    exhibit.expect("fitted (phi0, phi1)", line, [1.0, 2.0], within=1e-12)
    exhibit.expect("loss at the fit", float(_loss(torch.tensor(line, dtype=F64))), 0.0, within=1e-20)
    draw = exhibit.generator("line")
    x = 3 * torch.rand(23, generator=draw, dtype=F64)
    y = 0.7 - 0.4 * x + 0.3 * torch.randn(23, generator=draw, dtype=F64)
    noisy = least_squares.LeastSquares().fit(x[:, None], y)
    slope = float(torch.cov(torch.stack([x, y]))[0, 1] / x.var())
    formula = [float(y.mean() - slope * x.mean()), slope]
    exhibit.expect("noisy points: fit against cov(x,y)/var(x)", [noisy.intercept_, float(noisy.coef_[0])], formula, within=1e-10)
    X = torch.stack([torch.ones(3, dtype=F64), X3], 1)
    H = hessian(_loss)(start)
    exhibit.expect("Hessian against (2/N) X^T X", H, 2 / 3 * X.T @ X, within=1e-12)
    exhibit.above("smallest eigenvalue of the Hessian", torch.linalg.eigvalsh(H)[0], 0.0)
    for name, scale, gradient in (
        ("mean, half", {"half": True}, [-3.0, -13 / 3]),
        ("sum", {"reduction": "sum"}, [-18.0, -26.0]),
        ("sum, half", {"reduction": "sum", "half": True}, [-9.0, -13.0]),
    ):
        scaled = partial(_loss, **scale)
        exhibit.expect(f"{name}: gradient at (0, 0)", grad(scaled)(start), gradient, within=1e-12)
        newton = start - torch.linalg.solve(hessian(scaled)(start), grad(scaled)(start))  # exact for a bowl
        exhibit.expect(f"{name}: the same minimum", newton, [1.0, 2.0], within=1e-10)
    likely = gaussian.Gaussian().terms(torch.zeros(3, dtype=F64), Batch(x=X3, y=Y3)).loss()
    exhibit.expect("the Gaussian likelihood of the library is the mean with a half", likely, _loss(start, half=True).item(), within=1e-12)
    at = np.linspace(0, 3, 2)
    errors = np.stack([y.numpy(), noisy.predict(x[:, None]), np.full(23, np.nan)], 1).ravel()
    exhibit.show(
        Lines(
            "A line and its errors",
            {"fit": noisy.predict(at[:, None]), "error": errors},
            ["x", "y"],
            f"The sum of squared errors is smallest at phi0 = {formula[0]:.3f}, phi1 = {formula[1]:.3f}.",
            x={"fit": at, "error": np.repeat(x.numpy(), 3)},
        )
    )
    side0, side1 = np.linspace(-2, 4, 61), np.linspace(-0.5, 4.5, 61)
    bowl = [[float(_loss(torch.tensor([p, q], dtype=F64))) for p in side0] for q in side1]
    exhibit.show(
        Plane(
            "Mean squared error over the two weights",
            {"loss": bowl},
            ["phi0", "phi1"],
            "One bowl, one lowest point.",
            x=side0,
            y=side1,
            levels=[0.1, 0.5, 2, 5, 10, 20],
            points={"minimum": [line]},
        )
    )
    return f"fit ({line[0]:.3g}, {line[1]:.3g}), gradient at (0, 0) is (-6, {float(_slope(start)[1]):.4f})"


def fn_04(exhibit: Exhibit) -> str:
    """The gradient is orthogonal to the level set of the loss."""
    X = torch.stack([torch.ones(3, dtype=F64), X3], 1)
    lowest = torch.tensor([1.0, 2.0], dtype=F64)
    # L(lowest + d) = |X d|^2 / N, so d = R^-1 u with |u|^2 = N L walks along one level: R^T R = X^T X.
    R = torch.linalg.cholesky(X.T @ X).T

    def level(angle: Tensor, height: float = 1.5) -> Tensor:
        circle = math.sqrt(3 * height) * torch.stack([angle.cos(), angle.sin()])
        return lowest + torch.linalg.solve_triangular(R, circle[:, None], upper=True)[:, 0]

    angles = torch.arange(100, dtype=F64) * 2 * math.pi / 100
    points = torch.stack([level(a) for a in angles])
    tangents = torch.stack([torch.func.jvp(level, (a,), (torch.ones((), dtype=F64),))[1] for a in angles])
    gradients = torch.stack([_slope(p) for p in points])
    exhibit.expect("loss at 100 points of the ellipse", torch.stack([_loss(p) for p in points]), torch.full((100,), 1.5), within=1e-12)
    crossed = (gradients * tangents).sum(1).abs().max()
    exhibit.below("largest |gradient . tangent| of 100 points", crossed, 1e-8)
    exhibit.above("smallest |gradient| |tangent| of them", (gradients.norm(dim=1) * tangents.norm(dim=1)).min(), 0.1)
    ahead = torch.stack([_loss(p + 1e-3 * g / g.norm()) for p, g in zip(points, gradients, strict=True)])
    exhibit.above("a small step along the gradient, least rise", ahead.min() - 1.5, 0.0)
    side0, side1 = np.linspace(-2.5, 4.5, 61), np.linspace(-0.8, 4.8, 61)
    arrows = torch.cat([points, 0.12 * gradients], 1)[::10]
    exhibit.show(
        Plane(
            "Gradients on a line of equal loss",
            {"loss": [[float(_loss(torch.tensor([p, q], dtype=F64))) for p in side0] for q in side1]},
            ["phi0", "phi1"],
            "Every arrow leaves the ellipse at a right angle to it.",
            x=side0,
            y=side1,
            levels=[0.2, 0.6, 1.5, 4, 10],
            arrows=arrows,
            points={"minimum": [lowest]},
        )
    )
    return f"largest |gradient . tangent| {float(crossed):.1e} at 100 points"


class DescentPath(NamedTuple):
    """Where gradient descent ended: 'converged', 'diverged' or 'ran out' of steps, after this many."""

    fate: str
    steps: int
    phi: Tensor
    path: list[Tensor]


def descend(loss: Callable[[Tensor], Tensor], phi: Tensor, rate: float, eps: float, most: int = 100_000) -> DescentPath:
    """phi <- phi - rate grad L until |L_new - L_old| < eps; a loss that grows beyond all bounds is reported, never followed."""
    path = [phi]
    old = first = float(loss(phi))
    for step in range(1, most + 1):
        phi = phi - rate * grad(loss)(phi)
        path.append(phi)
        new = float(loss(phi))
        if not math.isfinite(new) or new > 1e6 * (1 + first):
            return DescentPath("diverged", step, phi, path)
        if abs(new - old) < eps:
            return DescentPath("converged", step, phi, path)
        old = new
    return DescentPath("ran out", most, phi, path)


def fn_05(exhibit: Exhibit) -> str:
    """Gradient descent with a stopping rule finds the closed-form solution, and reports divergence when the learning rate is too large."""
    start = torch.zeros(2, dtype=F64)
    curvature = float(torch.linalg.eigvalsh(hessian(_loss)(start))[-1])
    limit = 2 / curvature
    descent = descend(_loss, start, 0.9 * limit, 1e-16)
    fit = least_squares.LeastSquares().fit(X3[:, None], Y3)
    closed = [fit.intercept_, float(fit.coef_[0])]
    exhibit.expect("how it ended", descent.fate, "converged")
    exhibit.expect("weights against the closed form", descent.phi, closed, within=1e-6)
    # In the direction of least curvature the error shrinks by 1 - rate * least each step, and the loss by its square.
    least = float(torch.linalg.eigvalsh(hessian(_loss)(start))[0])
    foretold = math.log(1e-16) / (2 * math.log(1 - 0.9 * limit * least))
    exhibit.expect("steps it took, against log(eps) / 2 log(1 - rate h_min)", descent.steps, foretold, within=0.25 * foretold)
    for factor, fate in ((0.99, "converged"), (1.01, "diverged"), (10.0, "diverged")):
        exhibit.expect(f"rate {factor} times 2 / lambda_max", descend(_loss, start, factor * limit, 1e-16).fate, fate)
    too_fast = descend(_loss, start, 1.01 * limit, 1e-16)
    exhibit.below("steps before divergence is reported", too_fast.steps, 2000)
    exhibit.expect("a budget of 3 steps", descend(_loss, start, 0.1 * limit, 1e-16, most=3)[:2], ("ran out", 3))
    exhibit.expect("one step goes down the slope", descent.path[1], [6 * 0.9 * limit, 26 / 3 * 0.9 * limit], within=1e-12)
    side0, side1 = np.linspace(-0.5, 3.5, 61), np.linspace(-0.5, 4.5, 61)
    slow = descend(_loss, start, 0.2 * limit, 1e-16)
    exhibit.show(
        Plane(
            "Gradient descent on the bowl",
            {"loss": [[float(_loss(torch.tensor([p, q], dtype=F64))) for p in side0] for q in side1]},
            ["phi0", "phi1"],
            f"{slow.steps} steps at 0.2 and {descent.steps} at 0.9 of the largest stable rate 2 / lambda_max = {limit:.3f}.",
            x=side0,
            y=side1,
            levels=[0.05, 0.3, 1, 3, 8, 20],
            paths={"0.9 of the limit": torch.stack(descent.path[:60]), "0.2 of the limit": torch.stack(slow.path[:120])},
        )
    )
    return f"converged in {descent.steps} steps; 1.01 times the limit {limit:.4f} diverges"


def fn_06(exhibit: Exhibit) -> str:
    """The normal equations give the least-squares weights, and what is left is orthogonal to every column."""
    from scipy.linalg import lstsq

    draw = exhibit.generator("normal equations")
    X = torch.cat([torch.ones(41, 1, dtype=F64), 2 + torch.randn(41, 5, generator=draw, dtype=F64)], 1)
    y = X @ torch.randn(6, generator=draw, dtype=F64) + torch.randn(41, generator=draw, dtype=F64)
    fit = least_squares.LeastSquares(fit_intercept=False, solver="cholesky").fit(X, y)
    independent = lstsq(X.numpy(), y.numpy(), lapack_driver="gelsd")[0]
    written = torch.linalg.inv(X.T @ X) @ X.T @ y
    exhibit.expect("weights against SciPy's singular value solver", fit.coef_, independent, within=1e-10)
    exhibit.expect("weights against (X^T X)^-1 X^T y", fit.coef_, written, within=1e-10)
    residual = y.numpy() - fit.predict(X)
    across = float(np.abs(X.numpy().T @ residual).max())
    exhibit.expect("largest |column . residual|", across, 0.0, within=1e-10)
    exhibit.above("length of the residual", np.linalg.norm(residual), 1.0)
    split = least_squares.LeastSquares().fit(X[:, 1:], y)
    bias = [split.intercept_, *split.coef_]
    exhibit.expect("x_0 = 1 as a column against a bias of its own", fit.coef_, bias, within=1e-10)
    others = {name: least_squares.LeastSquares(False, solver=name).fit(X, y).coef_ for name in ("qr", "svd")}
    for name, weights in others.items():
        exhibit.expect(f"by {name}", weights, independent, within=1e-10)
    columns = {"weight": [f"w{i}" for i in range(6)], "cholesky": fit.coef_, **others, "SciPy gelsd": independent}
    exhibit.show(Table("Four methods, the same weights", columns, note=f"41 rows; largest |column . residual| is {across:.1e}."))
    return f"equal to SciPy to {np.abs(fit.coef_ - independent).max():.0e}, |X^T residual| {across:.0e}"


def fn_07(exhibit: Exhibit) -> str:
    """What the exact solution costs: N D^2 for X^T X, D^3 for the inverse, N D for X^T y."""
    from torch.utils.flop_counter import FlopCounterMode

    N, D = 57, 11
    terms = least_squares.flops(N, D)
    X, y = torch.randn(N, D), torch.randn(N, 1)
    for name, product in (("X^T X", lambda: X.T @ X), ("X^T y", lambda: X.T @ y)):
        with FlopCounterMode(display=False) as counter:
            product()
        exhibit.expect(f"operations of {name} against a counter", terms[name], counter.get_total_flops())
    _, counted = _gauss_jordan(np.random.default_rng(exhibit.seed).normal(size=(D, D)))
    exhibit.expect("operations of the inverse against a counted elimination", terms["inverse"], counted)
    exhibit.expect("N twice as large", _ratios(least_squares.flops(2 * N, D), terms), [2.0, 1.0, 2.0])
    big = _ratios(least_squares.flops(N, 20_000), least_squares.flops(N, 10_000))
    exhibit.expect("D twice as large, D >> 1", big, [4.0, 8.0, 2.0], within=1e-3)  # Gauss-Jordan is 2 D^3 - D^2
    widths, heights = (64, 128, 256, 512), (8_000, 16_000, 32_000, 64_000)
    counted_work = [least_squares.flops(12_000, width) for width in widths], [least_squares.flops(height, 96) for height in heights]
    products = [_log_slope(sizes, [terms["X^T X"] for terms in each]) for sizes, each in zip((widths, heights), counted_work, strict=True)]
    totals = [
        _log_slope(sizes, [sum(terms.values()) for terms in each]) for sizes, each in zip((widths, heights), counted_work, strict=True)
    ]
    exhibit.expect("operations of X^T X: log-log slope in D and in N", products, [2.0, 1.0], within=1e-9)
    # For N >> D; the inverse and X^T y are a few hundredths of the whole at these sizes.
    exhibit.expect("operations of the whole solution: log-log slope in D", totals[0], 2.0, within=0.05)
    exhibit.expect("operations of the whole solution: log-log slope in N", totals[1], 1.0, within=0.05)
    # Seconds are shown and not checked: wide products use a processor better than narrow ones, and how much depends on the processor.
    in_width = [_seconds(12_000, width) for width in widths]
    in_height = [_seconds(height, 96) for height in heights]
    whole = [_seconds(12_000, width, whole=True) for width in widths]
    slopes = [_log_slope(widths, in_width), _log_slope(heights, in_height)]
    scale = [in_width[0] * (width / widths[0]) ** 2 for width in widths]
    exhibit.show(
        Lines(
            "Time for 12 000 rows",
            {"X^T X": in_width, "whole solution": whole, "slope 2": scale},
            ["features D", "seconds"],
            f"Slope {slopes[0]:.2f} in D and {slopes[1]:.2f} in N; best of several, processor time.",
            x=widths,
            log=["x", "y"],
        )
    )
    return (
        f"counts exact, the whole solution as D^{totals[0]:.2f} and N^{totals[1]:.2f}; "
        f"here the time of X^T X grew as D^{slopes[0]:.2f} and N^{slopes[1]:.2f}"
    )


def fn_08(exhibit: Exhibit) -> str:
    """Ridge is least squares with a prior: it stays finite where least squares has no single answer."""
    from scipy.optimize import minimize

    draw = exhibit.generator("ridge")
    X = torch.randn(29, 4, generator=draw, dtype=F64)
    y = X @ torch.tensor([2.0, -2.0, 0.5, 3.0], dtype=F64) + 0.5 * torch.randn(29, generator=draw, dtype=F64) + 4
    doubled = torch.cat([X, X[:, :1]], 1)
    exhibit.refuses("least squares with a column twice", lambda: least_squares.LeastSquares(singular="refuse").fit(doubled, y))
    with warnings.catch_warnings(record=True) as records:
        warnings.simplefilter("always")
        plain = least_squares.LeastSquares().fit(doubled, y)
    exhibit.expect("told otherwise it warns", [w.category.__name__ for w in records], ["Singular"])
    exhibit.expect("singular, rank", [plain.singular_, plain.rank_], [True, 4])
    ridge = least_squares.Ridge(alpha=0.7).fit(doubled, y)
    exhibit.expect("ridge: weights of the two copies differ by", float(ridge.coef_[0] - ridge.coef_[4]), 0.0, within=1e-10)
    exhibit.below("ridge: largest weight", np.abs(ridge.coef_).max(), 3.5)

    sigma, tau = 0.6, 1.5
    alpha = sigma**2 / tau**2
    centered, level = X - X.mean(0), y - y.mean()
    answer = least_squares.Ridge(alpha=alpha, fit_intercept=False).fit(centered, level).coef_

    def minus_log_posterior(w: Tensor) -> Tensor:
        likelihood = torch.distributions.Normal(centered @ w, sigma).log_prob(level).sum()
        return -(likelihood + torch.distributions.Normal(0.0, tau).log_prob(w).sum())

    def with_gradient(w: np.ndarray) -> tuple[float, np.ndarray]:
        gradient, value = torch.func.grad_and_value(minus_log_posterior)(torch.from_numpy(w))
        return float(value), gradient.numpy()

    lowest = minimize(with_gradient, np.zeros(4), jac=True, method="BFGS", options={"gtol": 1e-10}).x
    exhibit.expect("argmin of -log posterior against ridge with sigma^2 / tau^2", answer, lowest, within=1e-6)
    stacked = np.vstack([centered.numpy(), math.sqrt(alpha) * np.eye(4)])
    rows = np.linalg.lstsq(stacked, np.concatenate([level.numpy(), np.zeros(4)]), rcond=None)[0]
    exhibit.expect("ridge against least squares on [X; sqrt(lambda) I]", answer, rows, within=1e-10)
    believed = bayes.MAPRegression(tau=tau, sigma=sigma).fit(X, y)
    exhibit.expect("MAP regression: weights", believed.coef_, lowest, within=1e-6)
    exhibit.expect("MAP regression: lambda", believed.lambda_, 0.16, within=1e-12)
    curvature = hessian(minus_log_posterior)(torch.zeros(4, dtype=F64))
    exhibit.expect("posterior covariance against the inverse Hessian", believed.covariance_, torch.linalg.inv(curvature), within=1e-10)

    moved = [least_squares.Ridge(2.0, penalize_bias=bias).fit(X, y + 100).coef_ for bias in (False, True)]
    still = [least_squares.Ridge(2.0, penalize_bias=bias).fit(X, y).coef_ for bias in (False, True)]
    exhibit.expect("y shifted by 100: change of w, bias free", moved[0] - still[0], np.zeros(4), within=1e-10)
    exhibit.above("the same, bias penalized, as a power of 10", np.log10(np.abs(moved[1] - still[1]).max()), -1.0)
    alphas = np.logspace(-2, 4, 40)
    path = np.array([least_squares.Ridge(alpha=a).fit(doubled, y).coef_ for a in alphas])
    names = ("w0", "w1", "w2", "w3", "copy of w0")
    exhibit.show(
        Lines(
            "Ridge weights against the penalty",
            {name: path[:, i] for i, name in enumerate(names)},
            ["lambda", "weight"],
            "Two equal columns share one weight; least squares could not say how.",
            x=alphas,
            log=["x"],
        )
    )
    return f"least squares: rank 4 of 5; ridge: {ridge.coef_[0]:.4f} for both copies; MAP equal to {np.abs(answer - lowest).max():.0e}"


def polar(x: np.ndarray) -> np.ndarray:
    """(x1, x2) -> (r, theta) with theta from atan2, which knows all four quadrants and x1 = 0."""
    return np.column_stack([np.hypot(x[:, 0], x[:, 1]), np.arctan2(x[:, 1], x[:, 0])])


def fn_09(exhibit: Exhibit) -> str:
    """A linear model of new features: two rings that no line separates are apart by their radius."""
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer

    exhibit.expect(
        "theta of (-1, 0), (0, 1), (0, -1)", polar(np.array([[-1.0, 0.0], [0, 1], [0, -1]]))[:, 1], np.pi * np.array([1, 0.5, -0.5])
    )
    flat, bent = [], []
    for seed in exhibit.seeds(3):
        data = rings(seed, n=1000, noise=0.05)
        (x, y), (test_x, test_y) = _arrays(data.train), _arrays(data.test)
        line = logistic.LogisticRegression().fit(x, y)
        ring = make_pipeline(FunctionTransformer(polar), logistic.LogisticRegression(alpha=1e-3)).fit(x, y)
        flat.append(line.score(test_x, test_y))
        bent.append(ring.score(test_x, test_y))
    # 150 test points: chance is 0.5 with a deviation of 0.04, the mean of three seeds of 0.024.
    exhibit.above("accuracy on (x1, x2) is near chance: at least", flat, 0.38, mean=True)
    exhibit.below("accuracy on (x1, x2) is near chance: at most", flat, 0.62, mean=True)
    exhibit.expect("accuracy on (r, theta), each seed", bent, [1.0] * len(bent))
    side = np.linspace(-2.6, 2.6, 121)
    grid = np.stack(np.meshgrid(side, side), -1).reshape(-1, 2)
    exhibit.show(
        Plane(
            "One linear classifier, two sets of features",
            {"on x1, x2": line.predict(grid).reshape(121, 121), "on r, theta": ring.predict(grid).reshape(121, 121)},
            ["x1", "x2"],
            f"Accuracy on new points {np.mean(flat):.0%} and {np.mean(bent):.0%}.",
            x=side,
            y=side,
            classes=["inner", "outer"],
            points={"inner ring": x[y == 0][:120], "outer ring": x[y == 1][:120]},
        )
    )
    return f"{spread(flat, '.1%')} on (x1, x2), {np.mean(bent):.0%} on (r, theta)"


def fn_10(exhibit: Exhibit) -> str:
    """Logistic regression has no closed form; full gradients, a few samples at a time and Newton meet at one minimum."""
    draw = exhibit.generator("logistic")
    x = torch.randn(120, 2, generator=draw, dtype=F64)
    y = (torch.rand(120, generator=draw, dtype=F64) < torch.sigmoid(1.5 * x[:, 0] - x[:, 1] + 0.5)).to(F64)
    X = torch.cat([torch.ones(120, 1, dtype=F64), x], 1)

    def loss(w: Tensor) -> Tensor:
        return -torch.distributions.Bernoulli(logits=X @ w).log_prob(y).mean()

    def gradient(w: Tensor, rows: Any = slice(None)) -> Tensor:
        return X[rows].T @ (torch.sigmoid(X[rows] @ w) - y[rows]) / len(X[rows])

    points = torch.randn(9, 3, generator=draw, dtype=F64)
    by_autograd = torch.stack([grad(loss)(w) for w in points])
    exhibit.expect("(1/N) X^T (p - y) against autograd", torch.stack([gradient(w) for w in points]), by_autograd, within=1e-10)
    bends = torch.stack([torch.linalg.eigvalsh(hessian(loss)(w)) for w in points])
    exhibit.expect("curvatures at 9 points that are not above 0: it is convex", int((bends <= 0).sum()), 0)
    newton = logistic.LogisticRegression(alpha=0.0, solver="newton").fit(x, y.long())
    best = np.concatenate([newton.intercept_, newton.coef_[0]])
    exhibit.expect("gradient where Newton ends", gradient(torch.from_numpy(best)), np.zeros(3), within=1e-10)
    w, full = torch.zeros(3, dtype=F64), []
    for _ in range(2000):
        w = w - 2.0 * gradient(w)
        full.append(float(loss(w)))
    exhibit.expect("gradient descent against Newton", w, best, within=1e-6)
    few, noisy = torch.zeros(3, dtype=F64), []
    for epoch in range(400):
        rate = 0.5 * 0.98**epoch
        for rows in torch.randperm(120, generator=draw).split(4):
            few = few - rate * gradient(few, rows)
        noisy.append(float(loss(few)))
    # A rate that shrinks to 1/6000 leaves the noise of four samples below this.
    exhibit.expect("four samples at a time against Newton", few, best, within=1e-3)
    quick = logistic.LogisticRegression(alpha=0.0, solver="lbfgs", tol=1e-9).fit(x, y.long())
    exhibit.expect("L-BFGS against Newton", np.concatenate([quick.intercept_, quick.coef_[0]]), best, within=1e-6)
    exhibit.refuses("separable classes without a penalty", lambda: logistic.LogisticRegression(alpha=0.0).fit(x, (x[:, 0] > 0).long()))
    side = np.linspace(-3, 3, 121)
    grid = np.stack(np.meshgrid(side, side), -1).reshape(-1, 2)
    exhibit.show(
        Plane(
            "Probability of the second class",
            {"p": newton.predict_proba(grid)[:, 1].reshape(121, 121)},
            ["x1", "x2"],
            f"The line p = 0.5: {best[0]:.2f} + {best[1]:.2f} x1 {best[2]:+.2f} x2 = 0.",
            x=side,
            y=side,
            levels=[0.1, 0.3, 0.5, 0.7, 0.9],
            points={"class 0": x[y == 0], "class 1": x[y == 1]},
        )
    )
    lowest = float(loss(torch.from_numpy(best)))
    exhibit.show(
        Lines(
            "Above the minimum",
            {"all rows": np.array(full[:400]) - lowest, "four at a time": np.array(noisy) - lowest},
            ["epoch", "loss - lowest"],
            f"Newton needs {int(newton.n_iter_[0])} steps.",
            log=["y"],
        )
    )
    far = [float((weights - torch.from_numpy(best)).abs().max()) for weights in (w, few)]
    return f"Newton {int(newton.n_iter_[0])} steps; GD within {far[0]:.0e}, SGD within {far[1]:.0e}"


def fn_11(exhibit: Exhibit) -> str:
    """Three classes: softmax regression and both reductions to two classes."""
    models = {
        "softmax": logistic.SoftmaxRegression(),
        "one-vs-rest": logistic.LogisticRegression(reduction="one-vs-rest"),
        "one-vs-one": logistic.LogisticRegression(reduction="one-vs-one"),
    }
    scores: dict[str, list[float]] = {name: [] for name in models}
    agreed = []
    for seed in exhibit.seeds(3):
        (x, y), (test_x, test_y) = (_clouds(seed, part) for part in ("train", "test"))
        answers = {name: model.fit(x, y).predict(test_x) for name, model in models.items()}
        for name, answer in answers.items():
            scores[name].append(float((answer == test_y).mean()))
        core = np.linalg.norm(test_x - CENTERS[test_y], axis=1) < 1.0
        agreed.append(np.mean([len({answer[i] for answer in answers.values()}) == 1 for i in np.flatnonzero(core)]))
    for name, values in scores.items():
        exhibit.above(f"{name}: accuracy", values, 0.97)
    exhibit.expect("share of points near a center on which all agree, each seed", agreed, [1.0] * len(agreed))
    W = models["softmax"].coef_
    exhibit.expect("W is classes x features", list(W.shape), [3, 2])
    z = test_x @ W.T + models["softmax"].intercept_
    exhibit.expect("argmax_y (W x + b)_y is what it predicts", models["softmax"].predict(test_x), z.argmax(1))
    four = blobs(exhibit.seed + 1, n=400, classes=4, features=5)
    x4, y4 = _arrays(four.train)
    counts = [len(logistic.LogisticRegression(reduction=kind).fit(x4, y4).coef_) for kind in ("one-vs-rest", "one-vs-one")]
    exhibit.expect("4 classes: models of one-vs-rest and one-vs-one", counts, [4, 6])
    side = np.linspace(-6, 6, 121)
    grid = np.stack(np.meshgrid(side, side), -1).reshape(-1, 2)
    exhibit.show(
        Plane(
            "Three classes, three methods",
            {name: model.predict(grid).reshape(121, 121) for name, model in models.items()},
            ["x1", "x2"],
            "They differ only far from the data, where nobody knows.",
            x=side,
            y=side,
            classes=["first", "second", "third"],
            points={f"cloud {k + 1}": test_x[test_y == k][:60] for k in range(3)},
        )
    )
    return ", ".join(f"{name} {spread(values, '.1%')}" for name, values in scores.items())


CENTERS = np.array([[0.0, 3.0], [-3.0, -2.0], [3.0, -2.0]])


def _clouds(seed: int, part: str) -> tuple[np.ndarray, np.ndarray]:
    """150 points of each of three Gaussian clouds, five deviations apart."""
    label = np.arange(450) % 3
    return CENTERS[label] + torch.randn(450, 2, generator=generator(seed, "clouds", part), dtype=F64).numpy(), label


def _loss(phi: Tensor, **scale: Any) -> Tensor:
    """L = (1/N) sum_i r_i^2, r_i = phi0 + phi1 x_i - y_i; or in another scale."""
    return gaussian.squared_error(phi[0] + phi[1] * X3, Y3, **scale)


def _slope(phi: Tensor) -> Tensor:
    """Its gradient: (2/N) sum_i r_i and (2/N) sum_i r_i x_i."""
    r = phi[0] + phi[1] * X3 - Y3
    return 2 / len(X3) * torch.stack([r.sum(), (r * X3).sum()])


def _both_gradients(count: int, seed: int) -> tuple[Tensor, Tensor]:
    points = torch.randn(count, 2, generator=generator(seed, "points"), dtype=F64)
    return torch.stack([_slope(p) for p in points]), torch.stack([grad(_loss)(p) for p in points])


def _with_product(x: np.ndarray) -> np.ndarray:
    return np.column_stack([x, x[:, 0] * x[:, 1]])


def _arrays(source: Any) -> tuple[np.ndarray, np.ndarray]:
    return source.fields["x"].double().numpy(), source.fields["y"].numpy()


def _parts(net: nn.Module) -> list[nn.Module]:
    """The modules of a chain, in the order they are called."""
    return [module for module in net.modules() if not list(module.children())]


def _render(what: Any) -> str:
    from rich.console import Console

    paper = io.StringIO()
    Console(file=paper, width=120).print(what)
    return paper.getvalue()


def _log_slope(sizes: Sequence[int], values: Sequence[float]) -> float:
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def _ratios(new: dict[str, int], old: dict[str, int]) -> list[float]:
    return [new[name] / old[name] for name in old]


def _seconds(rows: int, columns: int, whole: bool = False) -> float:
    """Processor time of X^T X or of the whole solution by normal equations, best of several: others on the machine do not count."""
    X = np.random.default_rng(0).normal(size=(rows, columns))
    fit = least_squares.LeastSquares(fit_intercept=False, solver="cholesky").fit
    spent = []
    for _ in range(2 if whole else 5):
        start = time.process_time()
        fit(X, X[:, 0] + 1) if whole else X.T @ X
        spent.append(time.process_time() - start)
    return min(spent)


def _gauss_jordan(A: np.ndarray) -> tuple[np.ndarray, int]:
    """Inverse in place by elimination, and how many operations it took."""
    A, count = A.copy(), 0
    for p in range(len(A)):
        pivot = A[p, p]
        A[p, p] = 1.0
        A[p] /= pivot
        count += len(A)
        for row in set(range(len(A))) - {p}:
            factor, A[row, p] = A[row, p], 0.0
            A[row] -= factor * A[p]
            count += 2 * len(A)
    return A, count
