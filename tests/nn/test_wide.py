"""The kernel of infinitely wide nets, against SciPy's integrals, bivariate normal probabilities and sampled nets."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch import nn

from sonde.core.errors import BadInput
from sonde.nn import wide

K = torch.tensor([[1.3, 0.5, -0.2], [0.5, 0.8, 0.3], [-0.2, 0.3, 2.1]], dtype=torch.float64)


def integral(f, i, j):
    """E f(u) f(v) by adaptive quadrature, with (u, v) ~ N(0, K on i and j)."""
    root = np.linalg.cholesky(K[[i, j]][:, [i, j]].numpy())

    def over(b, a):
        return f(root[0, 0] * a) * f(root[1, 0] * a + root[1, 1] * b) * math.exp(-(a * a + b * b) / 2) / (2 * math.pi)

    return integrate.dblquad(over, -8, 8, -8, 8, epsabs=1e-8)[0]


@pytest.mark.parametrize(
    "name, function",
    [
        ("relu", lambda z: max(z, 0.0)),
        ("leaky_relu", lambda z: z if z > 0 else 0.01 * z),
        ("erf", math.erf),
        ("tanh", math.tanh),
        ("silu", lambda z: z / (1 + math.exp(-z))),
        ("identity", lambda z: z),
    ],
)
def test_pairs_against_an_integral(name, function):
    moments = wide.second_moment(K, name)
    for i, j in ((0, 1), (0, 2)):
        assert float(moments[i, j]) == float(moments[j, i]) == pytest.approx(integral(function, i, j), abs=1e-6)
    squares = [integrate.quad(lambda z, v=v: function(math.sqrt(v) * z) ** 2 * stats.norm.pdf(z), -8, 8)[0] for v in K.diagonal().tolist()]
    torch.testing.assert_close(moments.diagonal(), torch.tensor(squares, dtype=torch.float64), rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(wide.mean_square(K.diagonal(), name), moments.diagonal(), rtol=1e-9, atol=0)


def test_step_is_the_chance_that_both_are_positive():
    moments = wide.second_moment(K, "step")
    for i, j in ((0, 1), (1, 2)):
        assert float(moments[i, j]) == pytest.approx(stats.multivariate_normal.cdf([0, 0], cov=K[[i, j]][:, [i, j]].numpy()), abs=1e-6)
    torch.testing.assert_close(moments.diagonal(), torch.full((3,), 0.5, dtype=torch.float64))


def test_a_steep_function_of_the_user():
    exact = integrate.quad(lambda z: math.tanh(20 * z) ** 2 * stats.norm.pdf(z), -1, 1, epsabs=1e-12)[0] + 2 * stats.norm.sf(1)
    assert float(wide.mean_square(torch.tensor(4.0), lambda z: torch.tanh(10 * z))) == pytest.approx(exact, abs=1e-6)


def test_gain_against_known_numbers():
    k = torch.tensor([0.0, 0.7, 3.0], dtype=torch.float64)
    torch.testing.assert_close(wide.gain(k[1:], "relu", 2.0), torch.ones(2, dtype=torch.float64))
    exact = [integrate.quad(lambda z, v=v: (1 - math.tanh(math.sqrt(v) * z) ** 2) ** 2 * stats.norm.pdf(z), -9, 9)[0] for v in k.tolist()]
    torch.testing.assert_close(wide.gain(k, "tanh", 1.5), 1.5 * torch.tensor(exact, dtype=torch.float64), rtol=1e-7, atol=0)


def test_fixed_points():
    # erf: K = C_b + C_W 2/pi asin(2K / (1 + 2K)), solved by bisection.
    from scipy.optimize import brentq

    exact = brentq(lambda k: 0.1 + 2.0 * 2 / math.pi * math.asin(2 * k / (1 + 2 * k)) - k, 1e-6, 10)
    assert float(wide.fixed_point("erf", 2.0, 0.1)) == pytest.approx(exact, rel=1e-7)
    fixed_points = wide.fixed_point("relu", torch.tensor([1.0, 2.0, 2.5]), torch.tensor([0.0, 0.0, 0.0]))
    assert fixed_points[0] < 1e-8 and fixed_points[1] == pytest.approx(1) and fixed_points[2] == math.inf


@pytest.mark.parametrize("activation, module, weight, bias", [("relu", nn.ReLU(), 2.0, 0.1), ("tanh", nn.Tanh(), 1.5, 0.2)])
def test_kernel_of_sampled_nets(activation, module, weight, bias):
    """300 nets of width 200: values of one layer are nearly Gaussian, and their covariance is the kernel's."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(3, 5, generator=draw, dtype=torch.float64)
    exact = wide.kernel(x, 2, activation, weight, bias)
    assert exact.shape == (3, 3, 3)
    covariance = torch.zeros(3, 3, 3, dtype=torch.float64)
    for _ in range(300):
        h = x
        for layer, width in enumerate((200, 200, 200)):
            w = torch.randn(h.shape[1], width, generator=draw, dtype=torch.float64) * math.sqrt(weight / h.shape[1])
            z = h @ w + math.sqrt(bias) * torch.randn(width, generator=draw, dtype=torch.float64)
            covariance[layer] += z @ z.mT / width / 300
            h = module(z)
    torch.testing.assert_close(covariance, exact, rtol=0.03, atol=0.02)  # 60,000 values tell a covariance to about 1 %


def test_an_input_of_zeros_has_no_direction():
    assert wide.kernel(torch.tensor([[0.0, 0.0], [1.0, 0.0]]), 3, "relu").isfinite().all()


def test_bad_input_is_named():
    x = torch.ones(2, 3)
    for call, words in (
        (lambda: wide.kernel(x[0], 1), r"of shape \(N, d\)"),
        (lambda: wide.kernel(x / 0, 1), "finite"),
        (lambda: wide.kernel(x, 1, "rleu"), "no activation 'rleu'"),
    ):
        with pytest.raises(BadInput, match=words):
            call()
