"""Generative adversarial network: a generator maps noise to examples, a discriminator classifies them as real or generated.

    min over G, max over D of   E_x log D(x) + E_z log(1 - D(G(z))),   D(x) = sigmoid(logit of x)

For a fixed G the best D is p(x) / (p(x) + q(x)) with p the density of the data and q that of G(z): 1/2 everywhere once they
are the same.  The density itself is not available, only samples.  Goodfellow and others, Generative Adversarial Nets, 2014.

Trained by `objectives.adversarial`, which alternates between the two.
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from ..core.batch import Batch
from ..core.options import Count, checked
from ._shape import Shape, check_shape, noise, quarters
from .mlp import MLP


@final
class GAN(nn.Module):
    """Generator and discriminator as one model: `model(x)` is the logit of "x is real" (B,), `generate` and `sample` make examples.

    Args:
        generator: noise (B, latent) -> examples (B, *shape)
        discriminator: examples -> (B, 1)
        latent: dimension of the noise
        shape: of one example
    """

    @checked
    def __init__(self, generator: nn.Module, discriminator: nn.Module, latent: Count, shape: Shape) -> None:
        super().__init__()
        self.generator, self.discriminator = generator, discriminator
        self.latent, self.shape = latent, tuple(shape)

    def forward(self, x: Tensor) -> Tensor:
        return self.discriminator(check_shape(x, self.shape, "GAN")).flatten()

    def generate(self, noise: Tensor) -> Tensor:
        """Examples of noise (B, latent)."""
        return self.generator(noise)

    @torch.no_grad()
    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """n examples."""
        return self.generate(noise(self, n, (self.latent,), generator))


def points(size: Count = 2, latent: Count = 2, width: Count = 64, depth: Count = 2) -> GAN:
    """For points with `size` coordinates: generator and discriminator are MLPs."""
    hidden = (width,) * depth
    generator, discriminator = MLP((latent, *hidden, size), "silu"), MLP((size, *hidden, 1), "silu")
    return GAN(generator, discriminator, latent, (size,))


def images(shape: Shape = (1, 8, 8), latent: Count = 32, width: Count = 32) -> GAN:
    """For images with values in 0..1 and sides that are multiples of 4: two convolutions halve the image, two others double it.

    Args:
        width: channels at the full size; twice as many at half of it
    """
    channels, high, wide = quarters(shape, "gan.images")
    generator = nn.Sequential(
        nn.Linear(latent, 4 * width * high * wide),
        nn.SiLU(),
        nn.Unflatten(1, (4 * width, high, wide)),
        nn.ConvTranspose2d(4 * width, 2 * width, 4, 2, 1),
        nn.SiLU(),
        nn.ConvTranspose2d(2 * width, width, 4, 2, 1),
        nn.SiLU(),
        nn.Conv2d(width, channels, 3, padding=1),
        nn.Sigmoid(),
    )
    discriminator = nn.Sequential(
        nn.Conv2d(channels, width, 4, 2, 1),
        nn.SiLU(),
        nn.Conv2d(width, 2 * width, 4, 2, 1),
        nn.SiLU(),
        nn.Flatten(),
        nn.Linear(2 * width * high * wide, 1),
    )
    return GAN(generator, discriminator, latent, shape)


def tiny() -> tuple[GAN, Batch]:
    """A small working instance with input."""
    rng = torch.Generator().manual_seed(0)
    return points(3, latent=2, width=6, depth=1), Batch(x=torch.randn(5, 3, generator=rng))
