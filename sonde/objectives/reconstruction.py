"""Reconstruction: an auto-encoder's target is its own input, or the clean input where it was given a corrupted one.

    loss = mean over examples of -log p(x; xhat)          Gaussian: 1/2 norm(xhat - x)^2

A batch with a field `clean` is one of a denoising auto-encoder: the model reads the corrupted x and is judged by `clean`.
Judged by the corrupted x it would learn to copy the noise.
"""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor, nn

from ..core.batch import Batch, ask
from ..core.terms import Term, Terms
from .gaussian import Gaussian


@final
class Reconstruction:
    """Term 'nll', a sum over the values of an example and a mean over examples; 'squared_error' is the mean over values.

    likelihood: what one value costs, Gaussian() or Bernoulli(); its constant is dropped
    """

    def __init__(self, likelihood: Any = None) -> None:
        self.likelihood = Gaussian() if likelihood is None else likelihood

    def __call__(self, model: nn.Module, batch: Batch) -> Terms:
        return self.terms(ask(model, batch), batch)

    def terms(self, output: Tensor, batch: Batch) -> Terms:
        """The same from an output that is already there."""
        found = self.likelihood.terms(output, self._own(batch))["nll"]
        return Terms(nll=Term(found.raw, self._examples(batch), scale=found.scale))

    def counts(self, batch: Batch) -> dict[str, float]:
        return {"nll": float(self._examples(batch))}

    def measures(self, output: Tensor, batch: Batch) -> Terms:
        return Gaussian().measures(self.predict(output), self._own(batch))

    def check(self, batch: Batch) -> None:
        self.likelihood.check(self._own(batch))

    def predict(self, output: Tensor) -> Tensor:
        """The mean of every value."""
        return self.likelihood.predict(output)

    @staticmethod
    def _own(batch: Batch) -> Batch:
        """The batch as the likelihood sees it: x itself is the target."""
        kept = {name: batch.fields[name] for name in ("weight", "ids") if name in batch}
        return Batch(y=batch.get("clean", batch.x), **kept)

    @staticmethod
    def _examples(batch: Batch) -> float | Tensor:
        return batch.weight.sum(dtype=torch.float64) if "weight" in batch else float(len(batch))


def tiny() -> tuple[Reconstruction, nn.Module, Batch]:
    """A small working instance with input."""
    x = torch.linspace(-1, 1, 21).reshape(7, 3)
    return Reconstruction(), nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 3)), Batch(x=torch.sin(3 * x), clean=x)
