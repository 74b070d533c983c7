"""Normalizing flow: invertible steps turn noise of a known density into data, so the density is exact.

    log p(x) = log N(z; 0, I) + log |det dz/dx|,   z = f(x)

Affine coupling (Dinh and others, Real NVP, 2017): some coordinates are kept and determine the scale and shift of the others,

    z_keep = x_keep,   z_rest = x_rest * exp(s(x_keep)) + t(x_keep),   log |det| = sum of s

so the inverse needs no inverse of s and t.  Step 2k keeps the coordinates whose index has bit k at 0, step 2k + 1 the others:
in a plane they alternate, in an image neighbors are separated first and halves last.  After 2 ceil(log2 D) steps, the default,
every two coordinates have been separated, so all of z depends on all of x.

Quantized images have no density.  Uniform dequantization noise makes them continuous, and the mean of the density over the
cell of an image is its probability times the number of cells, levels^D: that log-volume is subtracted.

B batch, D values of an example.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Annotated, final

import torch
from torch import Tensor, nn

from ..core.batch import Batch
from ..core.errors import BadInput
from ..core.options import Count, Range, checked
from . import _shape
from ._shape import Shape
from .mlp import MLP

EDGE = 0.02
"""margin of the unit interval on both sides, so that the logit of a pixel is finite"""
STEEP = 2.0
"""largest |s| of one step: a factor of e^2"""


@final
class Coupling(nn.Module):
    """One affine coupling: the coordinates where `mask` is true determine the scale and shift of the others."""

    mask: Tensor

    def __init__(self, mask: Tensor, width: int, depth: int) -> None:
        super().__init__()
        size = len(mask)
        self.register_buffer("mask", mask)
        self.net = MLP((size, *(width,) * depth, 2 * size), "relu")
        for weight in self.net.layers[-1].parameters():
            nn.init.zeros_(weight)  # a flow begins as the identity

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """z (B, D) and log |det dz/dx| (B,)."""
        s, t = self._scale_and_shift(x)
        return x * s.exp() + t, s.sum(1)

    def inverse(self, z: Tensor) -> Tensor:
        s, t = self._scale_and_shift(z)
        return (z - t) * (-s).exp()

    def _scale_and_shift(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """s and t of every coordinate; 0 where the mask is true."""
        s, t = self.net(x * self.mask).chunk(2, 1)
        return STEEP * torch.tanh(s / STEEP) * ~self.mask, t * ~self.mask


@final
class Flow(nn.Module):
    """A density over points or images: `model(x)` is log p(x) (B,), `sample` draws from it.

    Args:
        shape: of one example
        steps: number of couplings; by default 2 ceil(log2 D), at least 6
        width: width of the hidden layers of each coupling
        depth: number of hidden layers of each coupling
        levels: quantization levels of a pixel, for images with values 0, 1 / (levels - 1), ..., 1; 0 for continuous data
    """

    reads = ("x", "noise")

    @checked
    def __init__(
        self,
        shape: Annotated[Shape, Range(least=1)] = (2,),
        steps: Count | None = None,
        width: Count = 64,
        depth: Count = 2,
        levels: Annotated[int, Range(least=0)] = 0,
    ) -> None:
        super().__init__()
        size = _shape.numbers(shape, "Flow")
        if size < 2:
            raise BadInput("a coupling needs two numbers or more", where="Flow", fix="give shape=(2,) or larger")
        if levels == 1:
            raise BadInput(f"levels must be 0 or 2 or more, not {levels}", where="Flow", fix="pixels of 8 bits have levels=256")
        self.shape, self.levels = tuple(shape), levels
        bits, index = (size - 1).bit_length(), torch.arange(size)
        steps = max(2 * bits, 6) if steps is None else steps
        self.steps = nn.ModuleList(Coupling((index >> (i // 2 % bits)) % 2 == i % 2, width, depth) for i in range(steps))

    def forward(self, x: Tensor, noise: Tensor | None = None) -> Tensor:
        return self.log_prob(x, noise)

    def log_prob(self, x: Tensor, noise: Tensor | None = None) -> Tensor:
        """log p(x), in nats, (B,).  For images an unbiased sample of the probability over the dequantization noise, as a logarithm.

        Args:
            noise: standard normal noise like x for the dequantization; None takes the middle of each level
        """
        z, change = self.to_noise(self.within(x, noise) if self.levels else x)
        density = -0.5 * (z.square().flatten(1).sum(1) + z[0].numel() * math.log(2 * math.pi)) + change
        return density - z[0].numel() * math.log(self.levels) if self.levels else density

    def within(self, x: Tensor, noise: Tensor | None) -> Tensor:
        """Dequantize: pixel levels -> values in the unit interval, each inside the cell of its level."""
        offset = 0.5 if noise is None else torch.special.ndtr(noise)
        return (x * (self.levels - 1) + offset) / self.levels

    def to_noise(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """z like x, and log |det dz/dx| (B,); with levels, x lies in the unit interval."""
        h = _shape.check_shape(x, self.shape, "Flow").flatten(1)
        change = h.new_zeros(len(h))
        if self.levels:
            u = EDGE + (1 - 2 * EDGE) * h
            h = u.logit()
            change = (math.log(1 - 2 * EDGE) - u.log() - (-u).log1p()).sum(1)
        for step in self.steps:
            h, more = step(h)
            change = change + more
        return h.view_as(x), change

    def from_noise(self, z: Tensor) -> Tensor:
        """The inverse of `to_noise`."""
        h = z.flatten(1)
        for step in _backwards(self.steps):
            h = step.inverse(h)
        if self.levels:
            h = (h.sigmoid() - EDGE) / (1 - 2 * EDGE)
        return h.view_as(z)

    @torch.no_grad()
    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """n examples; images are quantized."""
        x = self.from_noise(_shape.noise(self, n, self.shape, generator))
        return (x * self.levels).floor().clamp(0, self.levels - 1) / (self.levels - 1) if self.levels else x


def _backwards(steps: Iterable[nn.Module]) -> list[Coupling]:
    return [step for step in reversed(list(steps)) if isinstance(step, Coupling)]


def tiny() -> tuple[Flow, Batch]:
    """A small working instance with input."""
    rng = torch.Generator().manual_seed(0)
    return Flow((4,), steps=2, width=6, depth=1), Batch(x=torch.randn(5, 4, generator=rng))
