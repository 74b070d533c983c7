"""Feature maps of linear attention: phi(q) . phi(k) stands for a similarity of q and k.

    identity     x                                        q . k
    elu          elu(x) + 1                               positive (Katharopoulos et al., 2020)
    relu         max(x, 0)
    polynomial   all products x_i x_j                     (q . k)^2 exactly
    dpfp         products of max(x, 0) and max(-x, 0)     those of x and -x are orthogonal (Schlag et al., 2021)
    hedgehog     softmax of [2 W x, -2 W x], W learned    spiky like softmax attention (Zhang et al., 2024)
    Fourier      sines and cosines of random projections  exp(-|q - k|^2 / 2) on average (Rahimi and Recht, 2007)

A map takes (..., d) to (..., number of features).  B batch, H heads, L length, F random projections.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.options import checked

Feature = Callable[[Tensor], Tensor]
FeatureName = Literal["identity", "elu", "relu", "polynomial", "dpfp", "hedgehog"]


@checked
def feature(name: FeatureName, width: int) -> nn.Module:
    """A new feature map for vectors of `width` numbers."""
    return _MAPS[name](width)


@final
class Elu(nn.Module):
    """elu(x) + 1: x + 1 above zero, e^x below."""

    def forward(self, x: Tensor) -> Tensor:
        return F.elu(x) + 1


@final
class Polynomial(nn.Module):
    """x_i^2, and sqrt(2) x_i x_j for i < j: d (d + 1) / 2 features with phi(q) . phi(k) = (q . k)^2."""

    def forward(self, x: Tensor) -> Tensor:
        i, j = torch.triu_indices(x.shape[-1], x.shape[-1], device=x.device)
        return x[..., i] * x[..., j] * (1 + (i != j).to(x.dtype)).sqrt()


@final
class DPFP(nn.Module):
    """r_i r_{i - n} for n = 1 .. nu and r = [max(x, 0), max(-x, 0)], indices going round: 2 d nu features."""

    def __init__(self, nu: int = 3) -> None:
        super().__init__()
        self.nu = nu

    def forward(self, x: Tensor) -> Tensor:
        r = torch.cat([x.relu(), (-x).relu()], -1)
        return torch.cat([r * r.roll(n, -1) for n in range(1, self.nu + 1)], -1)


@final
class Hedgehog(nn.Module):
    """softmax([2 (W x + b), -2 (W x + b)]), W the identity at first: 2 d positive features that add up to 1."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        nn.init.eye_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        y = 2 * self.linear(x)
        return torch.cat([y, -y], -1).softmax(-1)


@final
class Fourier(nn.Module):
    """[sin(W x'), cos(W x')] / sqrt(F) with x' = x / |x| and W = sigma W0: W0 random and fixed, sigma learned.

    x is (B, H, L, d); every head has its own W, (F, d).
    """

    no_decay = ("sigma",)
    directions: Tensor

    def __init__(self, heads: int, width: int, count: int = 64) -> None:
        super().__init__()
        self.register_buffer("directions", torch.randn(heads, count, width))
        self.sigma = nn.Parameter(torch.ones(heads, 1, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x / (torch.linalg.vector_norm(x, dim=-1, keepdim=True) + 1e-3)  # a vector of zeros stays one
        angle = x @ (self.sigma * self.directions).mT
        return torch.cat([angle.sin(), angle.cos()], -1) * self.directions.shape[1] ** -0.5


_MAPS: dict[str, Callable[[int], nn.Module]] = {
    "identity": lambda width: nn.Identity(),
    "elu": lambda width: Elu(),
    "relu": lambda width: nn.ReLU(),
    "polynomial": lambda width: Polynomial(),
    "dpfp": lambda width: DPFP(),
    "hedgehog": Hedgehog,
}
