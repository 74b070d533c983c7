"""Autoregressive density of points: each coordinate given the ones before it, as a mixture of Gaussians.

    p(x) = p(x_1) p(x_2; x_1) ... p(x_D; x_1 .. x_D-1),   p(x_i; earlier) = sum_k w_k N(x_i; m_k, s_k)

One network outputs w, m and s for every coordinate: it reads the earlier ones and a one-hot index.  The chain rule holds
for any density, so only the order is a choice.  Uria, Murray and Larochelle, RNADE, 2013.

B batch, D coordinates of a point, K components of a mixture.
"""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor, nn

from ..core.batch import Batch
from ..core.options import Count, checked
from . import _shape
from .mlp import MLP


@final
class Autoregressive(nn.Module):
    """A density over points: `model(x)` is log p(x) (B,), `sample` draws from it, one coordinate after the other.

    Args:
        size: coordinates of a point
        parts: components of each mixture
        width: units of the hidden layers
        depth: hidden layers
    """

    @checked
    def __init__(self, size: Count = 2, parts: Count = 8, width: Count = 64, depth: Count = 2) -> None:
        super().__init__()
        self.shape, self.parts = (size,), parts
        self.net = MLP((2 * size, *(width,) * depth, 3 * parts), "silu")

    def forward(self, x: Tensor) -> Tensor:
        return self.log_prob(x)

    def log_prob(self, x: Tensor) -> Tensor:
        """log p(x), in nats, (B,)."""
        weights, means, log_scales = self.mixtures(x)
        distance = (x.unsqueeze(-1) - means) * (-log_scales).exp()
        each = weights - log_scales - 0.5 * distance.square()
        return (each.logsumexp(-1) - 0.5 * math.log(2 * math.pi)).sum(1)

    def mixtures(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logarithms of the weights, means, and logarithms of the scales, each (B, D, K), of every coordinate given the ones before it."""
        (size,) = self.shape
        earlier = _shape.check_shape(x, self.shape, "Autoregressive").unsqueeze(1) * torch.ones(
            size, size, device=x.device, dtype=x.dtype
        ).tril(-1)
        one_hot = torch.eye(size, device=x.device, dtype=x.dtype).expand(len(x), -1, -1)
        output = self.net(torch.cat([earlier, one_hot], -1).flatten(0, 1)).view(len(x), size, 3 * self.parts)
        weights, means, log_scales = output.chunk(3, -1)
        return weights.log_softmax(-1), means, log_scales

    @torch.no_grad()
    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """n points."""
        noise = _shape.noise(self, n, self.shape, generator)
        x = torch.zeros_like(noise)
        for i in range(x.shape[1]):
            weights, means, log_scales = (each[:, i] for each in self.mixtures(x))
            part = torch.multinomial(weights.exp(), 1, generator=generator)
            x[:, i] = (means.gather(1, part) + log_scales.gather(1, part).exp() * noise[:, i : i + 1]).squeeze(1)
        return x


def tiny() -> tuple[Autoregressive, Batch]:
    """A small working instance with input."""
    rng = torch.Generator().manual_seed(0)
    return Autoregressive(3, parts=2, width=6), Batch(x=torch.randn(5, 3, generator=rng))
