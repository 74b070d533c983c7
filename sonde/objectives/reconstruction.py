"""Reconstruction: an auto-encoder's target is its own input, or the clean input where it was given a corrupted one.

    loss = mean over examples of -log p(x; xhat)          Gaussian: 1/2 norm(xhat - x)^2

A batch with a field `clean` is one of a denoising auto-encoder: the model reads the corrupted x and must reconstruct `clean`.
With the corrupted x as target it would learn to copy the noise.
"""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor, nn

from ..core.batch import Batch, call_model
from ..core.errors import BadInput
from ..core.terms import Term, Terms
from . import _weight
from .bernoulli import Bernoulli
from .gaussian import Gaussian


@final
class Reconstruction:
    """Term 'nll', a sum over the values of an example and a mean over examples; 'squared_error' is the mean over values.

    Args:
        likelihood: what one value costs, Gaussian() or, for pixels in 0 ... 1, Bernoulli(); its constant is dropped
    """

    def __init__(self, likelihood: Any = None) -> None:
        self.likelihood = Gaussian() if likelihood is None else likelihood

    def __call__(self, model: nn.Module, batch: Batch) -> Terms:
        return self.terms(call_model(model, batch), batch)

    def terms(self, output: Tensor, batch: Batch) -> Terms:
        """The same from a given output."""
        term = self.likelihood.terms(output, self.own(batch))["nll"]
        return Terms(nll=Term(term.raw, _weight.count(batch), scale=term.scale))

    def counts(self, batch: Batch) -> dict[str, float]:
        return {"nll": float(_weight.count(batch))}

    def measures(self, output: Tensor, batch: Batch) -> Terms:
        return Gaussian().measures(self.predict(output), self.own(batch))

    def check(self, batch: Batch) -> None:
        self.likelihood.check(self.own(batch))

    def predict(self, output: Tensor) -> Tensor:
        """The mean of every value."""
        return self.likelihood.predict(output)

    def own(self, batch: Batch) -> Batch:
        """The batch as the likelihood sees it: x itself is the target.

        Pixels beyond 0 and 1 are refused here, at every step and not in `check` alone: an augmentation may have made them, and
        their Bernoulli cost has no lower bound.
        """
        others = {name: batch.fields[name] for name in ("weight", "ids") if name in batch}
        y = batch.get("clean", batch.x)
        if isinstance(self.likelihood, Bernoulli) and y.numel():
            low, high = (float(end) for end in y.aminmax())
            if low < 0 or high > 1:
                message = f"Bernoulli pixels must lie between 0 and 1, and these go from {low:g} to {high:g}"
                raise BadInput(message, fix="scale them to 0 ... 1, or use the likelihood Gaussian(variance)")
        return Batch(y=y, **others)


def tiny() -> tuple[Reconstruction, nn.Module, Batch]:
    """A small working instance with input."""
    x = torch.linspace(-1, 1, 21).reshape(7, 3)
    return Reconstruction(), nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 3)), Batch(x=torch.sin(3 * x), clean=x)
