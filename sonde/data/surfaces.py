"""Test functions for optimizers: losses over two weights that can be plotted, each with a start and a target loss.

Every function takes weights (..., 2) and returns losses (...), so one call evaluates a point or a whole grid.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, final

import torch
from torch import Tensor

from ..core.errors import BadInput, nearest
from ..core.options import checked
from ..core.seeds import generator


@final
@dataclass(frozen=True)
class Surface:
    """A loss over the plane, with a start and a target for optimizers."""

    name: str
    loss: Callable[[Tensor], Tensor]
    start: tuple[float, float]
    target: float
    """a loss that counts as converged"""
    box: tuple[float, float, float, float]
    """the region to plot: x from, x to, y from, y to"""

    def grid(self, n: int = 61) -> tuple[Tensor, Tensor, Tensor]:
        """x (n,), y (n,) and the loss (n, n) over the box, rows along y."""
        left, right, low, high = self.box
        x, y = torch.linspace(left, right, n, dtype=torch.float64), torch.linspace(low, high, n, dtype=torch.float64)
        return x, y, self.loss(torch.stack(torch.meshgrid(x, y, indexing="xy"), -1))


def surface(name: str) -> Surface:
    """A surface by its name."""
    if name not in SURFACES:
        raise BadInput(f"no surface '{name}'", fix=nearest(name, SURFACES))
    return SURFACES[name]()


def quadratic(condition: float = 10.0) -> Surface:
    """Half of x^2 + k y^2; steepest descent from (k, 1) is as slow as the condition number k allows."""
    curvatures = torch.tensor([1.0, condition], dtype=torch.float64)
    reach, high = 1.1 * condition, max(1.6, condition / 5.5)
    return Surface("quadratic", lambda w: 0.5 * (curvatures * w.square()).sum(-1), (condition, 1.0), 1e-6, (-reach / 4, reach, -high, high))


def rosenbrock() -> Surface:
    """(1 - x)^2 + 100 (y - x^2)^2: a curved valley, easy to enter and slow to follow; minimum 0 at (1, 1)."""
    return Surface(
        "rosenbrock", lambda w: (1 - w[..., 0]) ** 2 + 100 * (w[..., 1] - w[..., 0] ** 2) ** 2, (-1.2, 1.0), 1e-4, (-2, 2, -1, 3)
    )


def saddle() -> Surface:
    """Half of x^2 - y^2, plus y^4 / 4: the origin is stationary but not a minimum; the minima are -1/4 at (0, +-1)."""
    return Surface(
        "saddle",
        lambda w: 0.5 * (w[..., 0] ** 2 - w[..., 1] ** 2) + 0.25 * w[..., 1] ** 4,
        (1.0, 1e-3),
        -0.25 + 1e-6,
        (-1.5, 1.5, -1.7, 1.7),
    )


def gabor() -> Surface:
    """Squared error of the Gabor model on 28 noisy examples: several minima, saddles and plateaus."""
    x, y = gabor_data()
    return Surface("gabor", lambda w: gabor_loss(w, x, y), (-2.5, 8.5), 1.1 * float(gabor_loss(GABOR_TRUTH, x, y)), (-10, 10, 2.5, 22.5))


GABOR_TRUTH = torch.tensor([0.0, 16.6], dtype=torch.float64)
"""the weights that made the data of `gabor_data`"""


@checked
def gabor_model(weights: Tensor, x: Tensor, kind: Literal["notes", "textbook"] = "textbook") -> Tensor:
    """A sine under a Gaussian, outputs (..., N) for weights (..., 1 + D) and inputs (N, D).  It is not linear in its weights.

    notes      sin(w_0 + sum_i w_i x_i) exp(-sum_i w_i^2 x_i^2)
    textbook   sin(a) exp(-a^2 / 32)  with  a = w_0 + 0.06 w_1 x,  one input
    """
    if kind == "notes":
        slopes = weights[..., None, 1:]
        return torch.sin(weights[..., :1] + (slopes * x).sum(-1)) * torch.exp(-(slopes * x).square().sum(-1))
    if x.shape[-1] != 1:
        raise BadInput(f"the textbook Gabor model has one input, not {x.shape[-1]}", fix="use kind='notes'")
    angle = weights[..., :1] + 0.06 * weights[..., 1:] * x[:, 0]
    return torch.sin(angle) * torch.exp(-angle.square() / 32)


def gabor_data(n: int = 28, noise: float = 0.3, seed: int = 0) -> tuple[Tensor, Tensor]:
    """x (n, 1) in [-15, 15] and y (n,): the textbook model at GABOR_TRUTH with noise."""
    rng = generator(seed, "gabor")
    x = 30 * torch.rand(n, 1, generator=rng, dtype=torch.float64) - 15
    return x, gabor_model(GABOR_TRUTH, x) + noise * torch.randn(n, generator=rng, dtype=torch.float64)


def gabor_loss(weights: Tensor, x: Tensor, y: Tensor, kind: Literal["notes", "textbook"] = "textbook") -> Tensor:
    """Mean squared error of the Gabor model, (...) for weights (..., 2)."""
    return (gabor_model(weights, x, kind) - y).square().mean(-1)


SURFACES: dict[str, Callable[[], Surface]] = {"quadratic": quadratic, "rosenbrock": rosenbrock, "saddle": saddle, "gabor": gabor}
