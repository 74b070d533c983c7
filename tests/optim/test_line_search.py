"""Line searches, against the formula on quadratics, SciPy's Wolfe search and the conditions themselves."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import line_search, rosen, rosen_der

from sonde.core.errors import BadInput, NumericalStop
from sonde.optim.line_search import SEARCHES, Descent, armijo, exact, wolfe


def along(function, gradient, point, direction):
    """The line through a point as value and slope, and a list of the rates that were asked for."""
    rates: list[float] = []

    def line(rate):
        rates.append(rate)
        there = point + rate * direction
        return float(function(there)), float(gradient(there) @ direction)

    return line, rates


def quadratic(n, condition, seed):
    draw = np.random.default_rng(seed)
    basis = np.linalg.qr(draw.normal(size=(n, n)))[0]
    a = basis @ np.diag(np.geomspace(1, condition, n)) @ basis.T
    return a, draw.normal(size=n)


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 7), st.floats(1, 1e4), st.integers(0, 10**6), st.floats(1e-4, 1e3))
def test_exact_is_the_formula_on_a_quadratic(n, condition, seed, first):
    a, w = quadratic(n, condition, seed)
    g = a @ w
    line, _ = along(lambda v: 0.5 * v @ a @ v, lambda v: a @ v, w, -g)
    formula = g @ g / (g @ a @ g)
    assert exact(line, first).rate == pytest.approx(formula, rel=1e-8)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-3, 3), min_size=2, max_size=5), st.floats(1e-4, 10), st.sampled_from([0.1, 0.5, 0.9]))
def test_wolfe_meets_both_conditions_on_rosenbrock(point, first, c2):
    point = np.array(point)
    g = rosen_der(point)
    if np.linalg.norm(g) < 1e-3:
        return
    line, rates = along(rosen, rosen_der, point, -g)
    point = wolfe(line, first, c2=c2)
    value, slope = line(0.0)
    assert point.value <= value + 1e-4 * point.rate * slope and point.rate > 0
    assert abs(point.slope) <= c2 * abs(slope)
    assert len(rates) < 60


@pytest.mark.parametrize("seed", range(5))
def test_wolfe_takes_the_rate_scipy_takes_where_the_first_trial_will_do(seed):
    """SciPy tries 1 first, as we do, and along a Newton direction both accept it."""
    a, w = quadratic(4, 50, seed)
    g = a @ w
    line, _ = along(lambda v: 0.5 * v @ a @ v, lambda v: a @ v, w, -np.linalg.solve(a, g))
    assert wolfe(line).rate == line_search(lambda v: 0.5 * v @ a @ v, lambda v: a @ v, w, -np.linalg.solve(a, g))[0] == 1.0


@pytest.mark.parametrize("seed", range(5))
def test_wolfe_and_scipy_close_in_on_the_same_minimum(seed):
    """With c2 = 1e-4 the conditions hold only next to the minimum along the line, of which a convex loss has one."""
    scale = np.array([1.0, 2.0, 3.5])
    point = np.random.default_rng(seed).normal(size=3)

    def slope(v):
        return scale * np.sinh(scale * v)

    def loss(v):
        return np.cosh(scale * v).sum()

    direction = -slope(point) / np.linalg.norm(slope(point))
    theirs = line_search(loss, slope, point, direction, c1=1e-5, c2=1e-4, maxiter=50)[0]
    line, _ = along(loss, slope, point, direction)
    ours = wolfe(line, c1=1e-5, c2=1e-4).rate
    assert ours == pytest.approx(theirs, rel=1e-3) and ours == pytest.approx(exact(line).rate, rel=1e-3)


def test_armijo_halves_until_the_decrease_is_enough():
    line, rates = along(lambda v: 8 * v @ v, lambda v: 16 * v, np.array([1.0]), np.array([-16.0]))
    # phi(eta) = 8 (1 - 16 eta)^2 falls below 8 (1 - 2 * 16 c1 eta) only for eta < 1/8.
    assert armijo(line).rate == 1 / 16 and rates[1:] == [1, 1 / 2, 1 / 4, 1 / 8, 1 / 16]


@pytest.mark.parametrize("search", SEARCHES.values())
def test_standing_at_a_minimum_is_no_error(search):
    assert search(lambda rate: (3.0 + rate * rate, 2 * rate)).rate == 0.0


@pytest.mark.parametrize("search", SEARCHES.values())
def test_bad_lines_are_named(search):
    with pytest.raises(BadInput, match="uphill"):
        search(lambda rate: (rate, 1.0))
    with pytest.raises(NumericalStop, match="before the step"):
        search(lambda rate: (math.nan, -1.0))
    with pytest.raises(BadInput, match="first rate"):
        search(lambda rate: (-rate, -1.0), first=0.0)


@pytest.mark.parametrize("search", [exact, wolfe])
def test_a_loss_without_a_bottom_ends(search):
    with pytest.raises(NumericalStop, match="still falls"):
        search(lambda rate: (-rate, -1.0))


@pytest.mark.parametrize("search", SEARCHES.values())
def test_a_wall_of_infinity_is_stepped_back_from(search):
    """-log(1 - eta) - 2 eta is lowest at 1/2 and not a number from 1 on."""

    def line(rate):
        return (-math.log(1 - rate) - 2 * rate, 1 / (1 - rate) - 2) if rate < 1 else (math.nan, math.nan)

    point = search(line, first=64.0)
    assert 0 < point.rate < 0.8 and point.value < 0
    if search is exact:
        assert point.rate == pytest.approx(0.5, rel=1e-12)


@pytest.mark.parametrize("name", SEARCHES)
def test_descent_goes_down_every_step_on_a_network(name):
    torch.manual_seed(1)
    net = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2)).double()
    x, y = torch.randn(17, 3).double(), torch.randn(17, 2).double()
    optimizer = Descent(net.parameters(), search=name)

    def closure():
        optimizer.zero_grad()
        loss = (net(x) - y).square().mean()
        loss.backward()
        return loss

    losses, rates = [], []
    for _ in range(30):
        losses.append(float(optimizer.step(closure).detach()))
        rates.append(optimizer.rate)
    assert all(after < before for before, after in zip(losses, losses[1:], strict=False))
    assert len(set(rates)) > 1 and min(rates) > 0


def test_successive_gradients_of_exact_descent_are_orthogonal():
    a = torch.tensor([[3.0, 1.0, 0.2], [1.0, 2.0, 0.1], [0.2, 0.1, 9.0]], dtype=torch.float64)
    w = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64, requires_grad=True)
    optimizer = Descent([w], search="exact")
    gradients = []

    def closure():
        w.grad = (a @ w).detach()
        return (0.5 * w @ a @ w).detach()

    for _ in range(6):
        gradients.append((a @ w).detach())
        optimizer.step(closure)
    for g, h in zip(gradients, gradients[1:], strict=False):
        assert abs(float(g @ h)) < 1e-9 * float(g.norm() * h.norm())


def test_a_failed_search_leaves_the_weights():
    w = torch.tensor([1.0, 2.0], requires_grad=True)
    optimizer = Descent([w])

    def closure():
        optimizer.zero_grad()
        loss = w.sum()
        loss.backward()
        return loss

    with pytest.raises(NumericalStop, match="still falls"):
        optimizer.step(closure)
    assert w.tolist() == [1.0, 2.0]


def test_descent_refuses():
    w = torch.ones(2, requires_grad=True)
    with pytest.raises(BadInput, match="did you mean 'wolfe'"):
        Descent([w], search="wolf")
    with pytest.raises(BadInput, match="as a function"):
        Descent([w]).step()
    with pytest.raises(BadInput, match="c1 < c2"):
        wolfe(lambda rate: (-rate, -1.0), c1=0.9, c2=0.1)
