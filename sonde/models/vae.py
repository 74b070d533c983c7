"""Variational auto-encoder: the code is a distribution, and new examples are decoded from codes of the prior.

    prior p(h) = N(0, I)     q(h; x) = N(mean(x), diag(exp(log_variance(x))))     p(x; h) of Bernoulli pixels or Gaussian values

Kingma and Welling, Auto-Encoding Variational Bayes, 2014.  It is trained by `objectives.elbo`.

K dimension of the code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Generator, Tensor, nn

from ..core.batch import Batch
from ..core.errors import BadInput
from .autoencoder import conv_decoder, conv_encoder, dense_decoder, dense_encoder


@final
class VAE(nn.Module):
    """An encoder to the 2 K parameters of q(h; x), and a decoder from a code to the raw output of p(x; h).

    Args:
        encoder: module from x to (B, 2 K): all means, then all log-variances
        decoder: module from a code (B, K) to logits of Bernoulli pixels or means of Gaussian values, shaped like x
        code: K
        variance: of the Gaussian values; None is Bernoulli pixels
    """

    def __init__(self, encoder: nn.Module, decoder: nn.Module, code: int, variance: float | None = None) -> None:
        super().__init__()
        if variance is not None and not 0 < variance < float("inf"):
            raise BadInput(f"variance must be a number > 0, not {variance!r}", where="VAE", fix="leave it out for Bernoulli pixels")
        self.encoder, self.decoder, self.code, self.variance = encoder, decoder, code, variance

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log-variance (B, K) of q(h; x)."""
        output = self.encoder(x)
        if output.shape[-1] != 2 * self.code:
            message = f"the encoder gives {output.shape[-1]} numbers, a code of {self.code} needs {2 * self.code}"
            raise BadInput(message, where="VAE", fix="let it end in twice the width of the code")
        mean, log_variance = output.chunk(2, -1)
        return mean, log_variance

    def decode(self, h: Tensor) -> Tensor:
        """The raw output of p(x; h): logits or means."""
        return self.decoder(h)

    def forward(self, x: Tensor) -> Tensor:
        """The raw output for the mean code of x; deterministic."""
        return self.decode(self.encode(x)[0])

    def mean(self, h: Tensor) -> Tensor:
        """The mean of p(x; h): probabilities of pixels, or values."""
        output = self.decode(h)
        return torch.sigmoid(output) if self.variance is None else output

    @torch.no_grad()
    def sample(self, n: int, generator: Generator | None = None) -> Tensor:
        """n new examples: codes from the prior, then x from p(x; h)."""
        mean = self.mean(self.codes(n, generator))
        if self.variance is None:
            return torch.bernoulli(mean, generator=generator)
        return mean + self.variance**0.5 * torch.randn(mean.shape, generator=generator, dtype=mean.dtype, device=mean.device)

    def codes(self, n: int, generator: Generator | None = None) -> Tensor:
        """n codes (n, K) from the prior."""
        like = next(self.parameters())
        return torch.randn(n, self.code, generator=generator, dtype=like.dtype, device=like.device)


def dense(shape: Sequence[int], hidden: Sequence[int] = (256,), code: int = 8, variance: float | None = None) -> VAE:
    """A VAE of dense layers with ReLU.

    Args:
        shape: of one example
        hidden: widths of the hidden layers of the encoder; the decoder mirrors them
        code: dimension of the code
        variance: of Gaussian values; None is Bernoulli pixels
    """
    return VAE(dense_encoder(shape, (*hidden, 2 * code)), dense_decoder(shape, (*hidden, code)), code, variance)


def convolutional(image: Sequence[int], channels: Sequence[int] = (32, 64), code: int = 8, variance: float | None = None) -> VAE:
    """A VAE of convolutions; see models.autoencoder.convolutional.

    Args:
        image: channels, height and width
        channels: channels of each convolution
        code: dimension of the code
        variance: of Gaussian values; None is Bernoulli pixels
    """
    return VAE(conv_encoder(image, channels, 2 * code), conv_decoder(image, channels, code), code, variance)


def tiny() -> tuple[VAE, Batch]:
    """A small working instance with input."""
    rng = torch.Generator().manual_seed(0)
    return dense((1, 4, 4), (6,), 2), Batch(x=torch.rand(5, 1, 4, 4, generator=rng))
