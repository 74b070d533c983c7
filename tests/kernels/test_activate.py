"""The curves of neurons against their formulas in NumPy and SciPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import expit
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from sonde.kernels import available, why_not
from sonde.kernels.activate import _Activate, activate
from sonde.nn.block import FeedForward

pytestmark = pytest.mark.skipif(not available(), reason=why_not() or "kernels serve")
KINDS = ("silu", "gelu_tanh")
ROOT = np.sqrt(2 / np.pi)


@pytest.fixture(autouse=True)
def every_size(monkeypatch):
    """The kernel serves also where torch's is faster."""
    monkeypatch.setattr("sonde.kernels.activate.LEAST", 0)


def formula(kind: str, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Value and slope."""
    if kind == "silu":
        return x * expit(x), expit(x) * (1 + x * expit(-x))
    t, inner = np.tanh(ROOT * (x + 0.044715 * x**3)), ROOT * (1 + 3 * 0.044715 * x**2)
    return x * (1 + t) / 2, (1 + t) / 2 + x * (1 - t**2) * inner / 2


def spread(n: int, seed: int) -> Tensor:
    """Numbers of all the sizes that matter: around 0, and out to where the curves are flat."""
    x = torch.randn(n, generator=torch.Generator().manual_seed(seed)) * 4
    x[::7] *= 1e-3
    return x


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(1,), (7,), (3, 5), (8,), (2, 3, 11), (1031,)])
def test_value_and_slope(kind, shape):
    x = spread(torch.Size(shape).numel(), len(shape)).reshape(shape).requires_grad_()
    dy = torch.randn(shape, generator=torch.Generator().manual_seed(5))
    value, slope = formula(kind, x.detach().double().numpy())
    y = activate(x, kind)
    (dx,) = torch.autograd.grad(y, x, dy)
    assert y.shape == dx.shape == x.shape
    assert np.allclose(y.detach().numpy(), value, rtol=1e-6, atol=3e-7)
    assert np.allclose(dx.numpy(), slope * dy.double().numpy(), rtol=3e-6, atol=3e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(1,), (4, 3), (5, 13), (2, 517)])
def test_gate(kind, shape):
    n = torch.Size(shape).numel()
    x, up = spread(n, 1).reshape(shape).requires_grad_(), spread(n, 2).reshape(shape).requires_grad_()
    dy = torch.randn(shape, generator=torch.Generator().manual_seed(3))
    value, slope = formula(kind, x.detach().double().numpy())
    y = activate(x, kind, up)
    dx, dup = torch.autograd.grad(y, (x, up), dy)
    u, d = up.detach().double().numpy(), dy.double().numpy()
    assert np.allclose(y.detach().numpy(), value * u, rtol=2e-6, atol=3e-6)
    assert np.allclose(dx.numpy(), slope * u * d, rtol=3e-6, atol=1e-5)
    assert np.allclose(dup.numpy(), value * d, rtol=2e-6, atol=3e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_strange_numbers(kind):
    x = torch.tensor([float("nan"), float("inf"), 1e30, -1e30, 88.0, -88.0, 0.0, -0.0, 1e-40]).repeat(3)
    y = activate(x, kind).unflatten(0, (3, 9))
    assert y[:, 0].isnan().all() and (y[:, 1] == float("inf")).all() and (y[:, 2] == 1e30).all() and (y[:, 4] == 88).all()
    assert (y[:, 3].abs() == 0).all() and (y[:, 5].abs() < 1e-30).all() and (y[:, 6:8] == 0).all() and (y[:, 8].abs() < 1e-38).all()


@pytest.mark.parametrize("kind", KINDS)
def test_double(kind):
    x = torch.linspace(-9, 9, 37, dtype=torch.float64, requires_grad=True)
    up = torch.linspace(2, -1, 37, dtype=torch.float64, requires_grad=True)
    assert "_Activate" in type(activate(x, kind, up).grad_fn).__name__
    assert torch.autograd.gradcheck(lambda *args: activate(args[0], kind, args[1]), (x, up))
    assert np.allclose(activate(x, kind).detach().numpy(), formula(kind, x.detach().numpy())[0], rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("kind", KINDS)
def test_second_derivative(kind):
    x = torch.tensor([-1.3, 0.2, 0.9, 2.1] * 3, requires_grad=True)
    (first,) = torch.autograd.grad(activate(x, kind).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    at, h = x.detach().double().numpy(), 1e-6
    assert np.allclose(second.numpy(), (formula(kind, at + h)[1] - formula(kind, at - h)[1]) / (2 * h), atol=1e-5)


def test_only_one_of_the_two_wants_a_gradient():
    x, up = torch.randn(9, generator=torch.Generator().manual_seed(0)), torch.ones(9, requires_grad=True)
    (dup,) = torch.autograd.grad(activate(x, "silu", up).sum(), up, create_graph=True)
    assert np.allclose(dup.detach().numpy(), formula("silu", x.double().numpy())[0], atol=3e-7)


def test_who_watches_sees_operations_of_torch():
    x = torch.randn(6, 4, requires_grad=True)
    assert type(activate(x, "gelu_tanh").grad_fn).__name__ == f"{_Activate.__name__}Backward"
    with FlopCounterMode(display=False):
        assert "Gelu" in type(activate(x, "gelu_tanh").grad_fn).__name__
    assert "Gelu" in type(activate(x.T, "gelu_tanh").grad_fn).__name__, "columns are for torch"
    assert torch.func.vmap(lambda row: activate(row, "silu"))(x).shape == x.shape


@pytest.mark.parametrize("kind", ["swiglu", "geglu", "gelu_tanh"])
def test_feed_forward_is_the_same_without_kernels(kind, monkeypatch):
    torch.manual_seed(0)
    net, x = FeedForward(12, kind=kind), torch.randn(5, 7, 12)
    outputs = [net(x), *torch.autograd.grad(net(x).square().sum(), list(net.parameters()))]
    monkeypatch.setattr("sonde.kernels.activate._can_run", lambda *_: False)
    plain = [net(x), *torch.autograd.grad(net(x).square().sum(), list(net.parameters()))]
    for a, b in zip(outputs, plain, strict=True):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-5)
