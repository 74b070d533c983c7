"""Newton's method, against the solution of a linear system and SciPy, and where the Hessian is not positive definite."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize, rosen
from torch import nn

from sonde.core.errors import BadInput, NumericalStop
from sonde.optim.build import optimizer
from sonde.optim.newton import Newton


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 9), st.floats(1, 1e5), st.integers(0, 10**6), st.sampled_from(["refuse", "damp"]))
def test_one_step_solves_any_positive_definite_quadratic(n, condition, seed, indefinite):
    draw = np.random.default_rng(seed)
    basis = np.linalg.qr(draw.normal(size=(n, n)))[0]
    a, b = basis @ np.diag(np.geomspace(1, condition, n)) @ basis.T, draw.normal(size=n)
    at, bt = torch.tensor(a), torch.tensor(b)
    w = torch.tensor(draw.normal(size=n), requires_grad=True)
    Newton([w], indefinite=indefinite).step(lambda: 0.5 * w @ at @ w - bt @ w)
    np.testing.assert_allclose(w.detach().numpy(), np.linalg.solve(a, b), rtol=1e-6, atol=1e-8)


def test_logistic_regression_ends_where_scipy_ends():
    """Weights in several tensors, a Hessian of eight rows."""
    draw = np.random.default_rng(3)
    x = draw.normal(size=(60, 3))
    y = (draw.random(size=(60, 2)) < 0.5).astype(float)
    model = nn.Linear(3, 2).double()
    xt, yt = torch.tensor(x), torch.tensor(y)
    optimizer = Newton(model.parameters())
    for _ in range(12):
        optimizer.step(lambda: nn.functional.binary_cross_entropy_with_logits(model(xt), yt))

    def loss(w):
        z = x @ w[:6].reshape(2, 3).T + w[6:]
        return np.mean(np.logaddexp(0, z) - y * z)

    theirs = minimize(loss, np.zeros(8), method="BFGS", options={"gtol": 1e-9})
    ours = torch.cat([p.detach().flatten() for p in model.parameters()]).numpy()
    np.testing.assert_allclose(ours, theirs.x, atol=1e-5)  # finite differences of SciPy
    assert optimizer.lowest > 0 and optimizer.shift == 0


def saddle(w):
    return 0.5 * (3 * w[0] ** 2 - 2 * w[1] ** 2) + 0.25 * w[1] ** 4


def test_an_indefinite_hessian_is_refused_by_name():
    w = torch.tensor([1.0, 0.1], dtype=torch.float64, requires_grad=True)
    with pytest.raises(NumericalStop, match="not positive definite: its smallest eigenvalue is -1.97"):
        Newton([w]).step(lambda: saddle(w))
    assert w.tolist() == [1.0, 0.1]


def test_damping_leaves_a_saddle_downhill_and_finds_the_minimum():
    w = torch.tensor([1.0, 0.1], dtype=torch.float64, requires_grad=True)
    optimizer = Newton([w], indefinite="damp")
    losses = [float(optimizer.step(lambda: saddle(w))) for _ in range(25)]
    assert all(after <= before + 1e-15 for before, after in zip(losses, losses[1:], strict=False))
    assert w.detach().numpy() == pytest.approx([0, 2**0.5], abs=1e-9) and losses[-1] == pytest.approx(-1, abs=1e-12)


def test_enough_damping_makes_an_indefinite_hessian_usable():
    w = torch.tensor([1.0, 0.1], dtype=torch.float64, requires_grad=True)
    optimizer = Newton([w], damping=5.0)
    optimizer.step(lambda: saddle(w))
    assert optimizer.shift == 5.0 and optimizer.lowest == pytest.approx(-1.97)
    # (H + 5 I)^-1 g by hand: 3 / (3 + 5), and (-2 * 0.1 + 0.001) / (-1.97 + 5)
    assert w.tolist() == pytest.approx([1 - 3 / 8, 0.1 + 0.199 / 3.03], abs=1e-14)


def test_rosenbrock_in_three_dimensions():
    w = torch.tensor([-1.2, 1.0, 0.7], dtype=torch.float64, requires_grad=True)
    optimizer = Newton([w], indefinite="damp")
    for _ in range(60):
        optimizer.step(lambda: (100 * (w[1:] - w[:-1] ** 2) ** 2 + (1 - w[:-1]) ** 2).sum())
    assert rosen(w.detach().numpy()) < 1e-20


def test_a_singular_hessian_is_refused_and_can_be_damped():
    w = torch.tensor([1.0, 2.0], dtype=torch.float64, requires_grad=True)
    with pytest.raises(NumericalStop, match="not positive definite"):
        Newton([w]).step(lambda: (w.sum() - 1) ** 2)
    Newton([w], damping=1e-9).step(lambda: (w.sum() - 1) ** 2)
    assert float(w.detach().sum()) == pytest.approx(1, abs=1e-8)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_stops(bad):
    w = torch.ones(2, requires_grad=True)
    with pytest.raises(NumericalStop, match="not finite"):
        Newton([w], indefinite="damp").step(lambda: (w * bad).square().sum())


def test_wrong_use_is_said_in_one_line():
    w = torch.ones(2, requires_grad=True)
    with pytest.raises(BadInput, match="called backward"):

        def closure():
            loss = w.square().sum()
            loss.backward()
            return loss

        Newton([w]).step(closure)
    with pytest.raises(BadInput, match="as a function"):
        Newton([w]).step()
    with pytest.raises(BadInput, match="one number"):
        Newton([w]).step(lambda: w * w)
    with pytest.raises(BadInput, match="5000 x 5000"):
        Newton([torch.ones(5000, requires_grad=True)])
    for options in ({"lr": 0.0}, {"damping": -1.0}, {"indefinite": "maybe"}):
        with pytest.raises(BadInput):
            Newton([w], **options)


def test_the_engine_is_told_where_these_live():
    with pytest.raises(BadInput, match="sonde.optim.newton"):
        optimizer("newton", lr=1.0)
    with pytest.raises(BadInput, match="sonde.optim.line_search"):
        optimizer("descent", lr=1.0)


def test_every_group_has_its_own_rate():
    """On (a^2 + b^2) / 2 the step is the weight itself, times the rate of its group."""
    a, b = (torch.full((2,), 4.0, dtype=torch.float64, requires_grad=True) for _ in range(2))
    Newton([{"params": [a]}, {"params": [b], "lr": 0.25}]).step(lambda: (a.square().sum() + b.square().sum()) / 2)
    assert a.tolist() == [0, 0] and b.tolist() == [3, 3]
    with pytest.raises(BadInput, match="differ in 'damping'"):
        Newton([{"params": [a]}, {"params": [b], "damping": 0.25}])
