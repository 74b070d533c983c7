"""Infinitely wide networks: the covariance of their values over random weights, layer by layer.

With weights N(0, C_W / fan_in) and biases N(0, C_b) the values before each activation become a Gaussian field over the
inputs as the width grows, and its covariance follows from that of the layer before [neal1996, cho2009, poole2016]:

    K_1(x, x') = C_b + C_W x.x' / d          K_{l+1}(x, x') = C_b + C_W E[s(u) s(v)],   (u, v) ~ N(0, K_l on x and x')

identity, step, relu, leaky_relu and erf have closed forms (arc-cosine kernels and Williams'); every other activation, by
name or as a function, is integrated by the trapezoid rule, which against a Gaussian is exact up to rounding where the
function is smooth.

    N inputs, Q nodes
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Annotated, Any

import torch
from torch import Tensor

from ..core.errors import BadInput
from ..core.options import Range, checked
from .activations import activation as make_activation

Function = Callable[[Tensor], Tensor]
Variance = Annotated[float, Range(0)]
NODES = 240
"""points of the trapezoid rule on each of two axes; on one there are four times as many.  Even, so that none lies on a kink at 0"""


@checked
def kernel(
    x: Tensor, depth: Annotated[int, Range(0)], activation: str | Function = "relu", weight: Variance = 2.0, bias: Variance = 0.0
) -> Tensor:
    """Covariance between inputs x (N, d) before each of `depth` activations and at the output: (depth + 1, N, N).

    Args:
        x: inputs.
        depth: number of hidden layers.
        activation: by name, or a function of one number.
        weight: C_W, the variance of a weight times the width.
        bias: C_b, the variance of a bias.
    """
    if x.ndim != 2 or not bool(x.isfinite().all()):
        raise BadInput(f"inputs must be finite, of shape (N, d), not {tuple(x.shape)}", where="wide kernel")
    x = x.double()
    layers = [bias + weight * x @ x.mT / x.shape[1]]
    for _ in range(depth):
        layers.append(bias + weight * second_moment(layers[-1], activation))
    return torch.stack(layers)


def second_moment(k: Tensor, activation: str | Function = "relu") -> Tensor:
    """E[s(u) s(v)] for every pair of a zero-mean Gaussian vector with covariance k (N, N)."""
    k = k.double()
    spread = k.diagonal().clamp(min=0).sqrt()
    size = spread.unsqueeze(1) * spread
    # With a variance of 0 the angle is undefined; any value works, because it is multiplied by 0.
    cosine = torch.where(size > 0, k / size.clamp(min=torch.finfo(k.dtype).tiny), 1.0).clamp(-1, 1)
    form = _CLOSED.get(activation) if isinstance(activation, str) else None
    return form(k, size, cosine) if form else _quadrature(_function(activation), spread, cosine)


def mean_square(k: Tensor, activation: str | Function = "relu") -> Tensor:
    """E[s(z)^2], z ~ N(0, k), for variances k of any shape."""
    return _mean(lambda z: _function(activation)(z).square(), k)


def gain(k: Tensor, activation: str | Function = "relu", weight: float | Tensor = 2.0) -> Tensor:
    """chi = C_W E[s'(z)^2], z ~ N(0, k): the factor of a layer on the squared distance of nearby inputs, and on the squared gradient.

    At 1 a deep net is critical: below it all inputs converge, above it nearby inputs diverge (order and chaos).
    """

    def squared_slope(z: Tensor) -> Tensor:
        z = z.detach().requires_grad_()
        with torch.enable_grad():
            (slope,) = torch.autograd.grad(_function(activation)(z).sum(), z)
        return slope.square()

    return weight * _mean(squared_slope, k)


def fixed_point(
    activation: str | Function,
    weight: float | Tensor,
    bias: float | Tensor,
    start: float = 1.0,
    max_layers: int = 2000,
    tolerance: float = 1e-9,
) -> Tensor:
    """The fixed point of K <- C_b + C_W E[s(z)^2], for tensors of C_W and C_b; inf where it diverges.

    Args:
        activation: by name, or a function of one number.
        weight: C_W, the variance of a weight times the width.
        bias: C_b, the variance of a bias.
        start: variance at the first layer.
        max_layers: iterations; a critical net converges slowly and may be returned unconverged.
        tolerance: relative change below which an entry has converged.
    """
    variances = torch.broadcast_tensors(*(torch.as_tensor(value, dtype=torch.float64) for value in (weight, bias)))
    c_w, c_b = (values.flatten() for values in variances)
    k = torch.full_like(c_w, start)
    moving = torch.arange(len(k))
    for _ in range(max_layers):
        after = c_b[moving] + c_w[moving] * mean_square(k[moving], activation)
        settled = (after - k[moving]).abs() <= tolerance * (1 + after)
        k[moving] = torch.where(after < 1e12, after, torch.inf)
        moving = moving[~settled & (after < 1e12)]
        if not len(moving):
            break
    return k.reshape(variances[0].shape)


def _relu(k: Tensor, size: Tensor, cosine: Tensor) -> Tensor:
    """The arc-cosine kernel of order 1."""
    angle = cosine.arccos()
    return size * (angle.sin() + (math.pi - angle) * cosine) / (2 * math.pi)


def _leaky_relu(k: Tensor, size: Tensor, cosine: Tensor) -> Tensor:
    a = float(make_activation("leaky_relu").negative_slope)  # type: ignore[arg-type]
    return (1 - a) ** 2 * _relu(k, size, cosine) + a * k  # s(u) = a u + (1 - a) relu(u), and E[u relu(v)] = k / 2


def _step(k: Tensor, size: Tensor, cosine: Tensor) -> Tensor:
    """The arc-cosine kernel of order 0: the probability that both are positive."""
    return 0.5 - cosine.arccos() / (2 * math.pi)


def _erf(k: Tensor, size: Tensor, cosine: Tensor) -> Tensor:
    scale = (1 + 2 * k.diagonal()).sqrt()
    return torch.arcsin((2 * k / (scale.unsqueeze(1) * scale)).clamp(-1, 1)) * 2 / math.pi


_CLOSED: dict[str, Any] = {
    "identity": lambda k, size, cosine: k,
    "step": _step,
    "relu": _relu,
    "leaky_relu": _leaky_relu,
    "erf": _erf,
}


def _function(activation: str | Function) -> Function:
    if not isinstance(activation, str):
        return activation
    return torch.erf if activation == "erf" else make_activation(activation)


@lru_cache
def _nodes(count: int) -> tuple[Tensor, Tensor]:
    """Points and weights with  sum w f(z) = E f(z),  z ~ N(0, 1), out to 9 standard deviations."""
    points = torch.linspace(-9, 9, count, dtype=torch.float64)
    return points, torch.softmax(-points.square() / 2, 0)


def _mean(f: Function, k: Tensor) -> Tensor:
    points, weights = _nodes(4 * NODES)
    return f(torch.as_tensor(k, dtype=torch.float64).clamp(min=0).sqrt().unsqueeze(-1) * points) @ weights


def _quadrature(s: Function, spread: Tensor, cosine: Tensor) -> Tensor:
    """E[s(u) s(v)] with u = spread z1 and v = spread (c z1 + sqrt(1 - c^2) z2), one row at a time to save memory."""
    points, weights = _nodes(NODES)
    rows = []
    for first, c in zip(spread, cosine, strict=True):
        c = c.reshape(-1, 1, 1)
        v = spread.reshape(-1, 1, 1) * (c * points.unsqueeze(1) + (1 - c * c).sqrt() * points)  # (N, Q, Q)
        rows.append((s(v) @ weights) @ (weights * s(first * points)))
    expectation = torch.stack(rows)
    return (expectation + expectation.mT) / 2
