"""Evidence lower bound: the objective of a variational auto-encoder, in nats per example.

    log p(x) >= ELBO = E_q log p(x; h) - KL(q(h; x), p(h)),    q = N(mean, diag(exp(log_variance))),  p(h) = N(0, I)
    KL = 1/2 sum (mean^2 + variance - 1 - log variance)        exact;  the expectation by one draw h = mean + deviation * noise

    log p(x) >= E log (1/K) sum_k p(x; h_k) p(h_k) / q(h_k; x)  tighter with K, for reports (Burda and others 2016)

Kingma and Welling 2014; a factor beta on the KL: Higgins and others 2017.
"""

from __future__ import annotations

import math
from typing import Any, final

import torch
from torch import Generator, Tensor, nn

from ..core.batch import Batch
from ..core.options import checked
from ..core.terms import Term, Terms
from . import _weight
from ._coder import Coder, examples
from ._noise import normal
from ._wrapper import PenaltyFactor, Wrapper
from .bernoulli import Bernoulli
from .gaussian import Gaussian
from .reconstruction import Reconstruction


@final
class Elbo(Wrapper):
    """Terms 'nll', -log p(x; h) with nothing dropped, and 'kl'; with beta 1 their sum is minus the ELBO, per example.

    The model has `encode(x) -> (mean, log_variance)` and `decode(h)`, the raw output of p(x; h).

    A Bernoulli is a distribution over 0 and 1 only.  Gray pixels are allowed, but the value is then not a log-probability: it can
    only compare two models on the same pixels.  Binarize the pixels for a bound on log p(x).

    Measures are those of the reconstruction through the mean code.  As there, a field `clean` is the target for a corrupted x.

    Args:
        likelihood: p(x; h), Bernoulli() for pixels that are 0 or 1, Gaussian(variance) for values
        beta: factor of the KL; below 1 for closer reconstructions, above 1 for simpler codes
    """

    @checked
    def __init__(self, likelihood: Any = None, beta: PenaltyFactor = 1.0) -> None:
        self.likelihood, self.beta = Bernoulli() if likelihood is None else likelihood, beta
        self.objective = Reconstruction(self.likelihood)

    def __call__(self, model: Any, batch: Batch) -> Terms:
        target, count = self.objective.own(batch).y, _weight.count(batch)
        mean, log_variance = model.encode(batch.x)
        h = mean + (log_variance / 2).exp() * normal(model, batch, mean.shape)
        nll, divergence = -self.log_p(model.decode(h), target), kl(mean, log_variance)
        return Terms(nll=Term(_weight.total(nll, batch), count), kl=Term(_weight.total(divergence, batch), count, self.beta))

    def counts(self, batch: Batch) -> dict[str, float]:
        return dict.fromkeys(("nll", "kl"), float(_weight.count(batch)))

    def log_p(self, output: Tensor, x: Tensor) -> Tensor:
        """log p(x; h) of each example (B,), from the raw output."""
        output = _wide(output)
        each = self.likelihood.factor * self.likelihood.each(output, x) + self.likelihood.constant(x)
        return -each.flatten(1).sum(1)

    @torch.no_grad()
    def log_likelihood(self, model: Any, x: Tensor, samples: int = 100, generator: Generator | None = None) -> Tensor:
        """The importance-weighted bound on log p(x) of each example (B,), from `samples` codes drawn from q."""
        mean, log_variance = model.encode(x)
        weights = []
        for _ in range(samples):
            noise = torch.randn(mean.shape, generator=generator, dtype=mean.dtype, device=mean.device)
            h = mean + (log_variance / 2).exp() * noise
            # log p(h) - log q(h; x): their log(2 pi) cancels
            ratio = 0.5 * (noise.square() - h.square() + log_variance).sum(1)
            weights.append(self.log_p(model.decode(h), x) + ratio)
        return torch.stack(weights).logsumexp(0) - math.log(samples)


def kl(mean: Tensor, log_variance: Tensor) -> Tensor:
    """KL(N(mean, diag(exp(log_variance))), N(0, I)) of each example (B,)."""
    mean, log_variance = _wide(mean), _wide(log_variance)
    return 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).flatten(1).sum(1)


def _wide(values: Tensor) -> Tensor:
    """In 32 bits at least: sums of logarithms, and of small differences, lose too much in 16."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def tiny() -> tuple[Elbo, nn.Module, Batch]:
    """A small working instance with input."""
    batch = examples()
    return Elbo(Gaussian(0.5)), Coder(drawn=True), batch.replace(noise=torch.linspace(-2, 2, 28).sin().reshape(7, 4))
