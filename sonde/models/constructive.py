"""Networks constructed instead of trained: universal approximation, its cost, and the curse of dimensionality.

interpolant      ReLU network through given points; error <= h^2 max|f''| / 8 at spacing h
sigmoid_steps    one sigmoid per step of a staircase, smooth enough to blend into each other; error of order h^2
zigzag, folded   the map that folds [-1, 1] onto itself three times, and its K-fold composition with 3^K pieces
barron_units     step units drawn from a function's Fourier transform; mean squared error <= (2 r C)^2 / n
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from ..core.errors import BadInput
from ..core.options import Count, checked
from .mlp import MLP
from .piecewise import from_layers, merge


def interpolant(knots: Any, values: Any) -> MLP:
    """The ReLU network with one hidden unit per interval that passes through (knots, values) and is straight between them."""
    x, y = np.asarray(knots, dtype=float), np.asarray(values, dtype=float)
    if x.ndim != 1 or x.shape != y.shape or len(x) < 2 or not (np.diff(x) > 0).all() or not np.isfinite(y).all():
        raise BadInput(
            "knots must be increasing, with a finite value each", where="interpolant", fix="sort them and drop repeats; two at least"
        )
    slopes = np.diff(y) / np.diff(x)
    bends = np.diff(slopes, prepend=0.0)  # each unit adds the change of slope at its own knot
    return from_layers([(np.ones((len(bends), 1)), -x[:-1]), (bends[None], y[:1])])


def sigmoid_steps(f: Callable[[Any], Any], low: float, high: float, units: int, steepness: float = 3.0) -> MLP:
    """One sigmoid per step of a staircase that follows f, each rising by f's change over one spacing h.

    Args:
        steepness: slope of a sigmoid times h; about 3 lets neighbors blend to second order, a large one gives the bare staircase

    Four steps lie beyond either end, where their tails still matter: f must have values there.
    """
    beyond = 4
    if units <= 2 * beyond or not low < high:
        raise BadInput(
            f"{units} units between {low:g} and {high:g}", where="sigmoid_steps", fix=f"more than {2 * beyond} units, low < high"
        )
    h = (high - low) / (units - 2 * beyond)
    knots = low + h * np.arange(-beyond, units - beyond + 1)
    y = np.asarray(f(knots), dtype=float)
    slope = np.full((units, 1), steepness / h)
    return from_layers([(slope, -slope[:, 0] * (knots[:-1] + knots[1:]) / 2), (np.diff(y)[None], y[:1])], activation="sigmoid")


def zigzag() -> MLP:
    """-1 + 3 r(x+1) - 6 r(x+1/3) + 6 r(x-1/3): up, down and up again between -1 and 1."""
    return from_layers([(np.ones((3, 1)), [1.0, 1 / 3, -1 / 3]), ([[3.0, -6.0, 6.0]], [-1.0])])


@checked
def fold_zigzag(times: Count) -> MLP:
    """The zig-zag applied `times` times as one deep network of 3 units a layer: 3^times pieces on [-1, 1]."""
    net = zigzag()
    for _ in range(times - 1):
        net = merge(net, zigzag())
    return net


# What approximation costs


def barron_bound(radius: float, norm: float, units: int) -> float:
    """(2 r C)^2 / n: squared error that n learned units reach on a ball of radius r, C the mean frequency of f's Fourier transform."""
    return (2 * radius * norm) ** 2 / units


def fixed_units(error: float, inputs: int) -> float:
    """Fixed basis functions needed for a squared error of the order (1/n)^(2/d): n = error^(-d/2)."""
    return error ** (-inputs / 2)


def gaussian_barron_norm(inputs: int) -> float:
    """C of f(x) = exp(-|x|^2 / 2): the mean length of a standard normal frequency."""
    return math.sqrt(2) * math.exp(math.lgamma((inputs + 1) / 2) - math.lgamma(inputs / 2))


def barron_units(inputs: int, radius: float, units: int, draw: Generator) -> Callable[[Tensor], Tensor]:
    """A network of step units for exp(-|x|^2 / 2), drawn in the way of Barron's proof; right on average on the ball.

    cos(s) = 1 - int_0^R sin(t) [s > t] + sin(t) [-s > t] dt writes each wave of the Fourier transform as steps.  Drawing
    the frequency w in proportion to |w| and t evenly up to |w| r makes every unit weigh at most 2 r C.
    """
    norm = gaussian_barron_norm(inputs)
    direction = torch.nn.functional.normalize(torch.randn(units, inputs, generator=draw, dtype=torch.float64), dim=1)
    length = torch.randn(units, inputs + 1, generator=draw, dtype=torch.float64).norm(dim=1)  # |w|^(d-1) |w| exp(-|w|^2/2)
    threshold = radius * torch.rand(units, generator=draw, dtype=torch.float64)
    weight = -2 * radius * norm * torch.sin(length * threshold) / units
    return lambda x: 1.0 + (x @ direction.T > threshold).double() @ weight


def monomials(inputs: int, order: int) -> int:
    """Distinct monomials of a polynomial in `inputs` variables up to `order`: C(D + M, M)."""
    return math.comb(inputs + order, order)


def tensor_entries(inputs: int, order: int) -> int:
    """Coefficients when every order m keeps its full tensor of D^m entries, equal monomials counted again and again."""
    return sum(inputs**m for m in range(order + 1))
