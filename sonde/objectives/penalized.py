"""Regularized risk: any objective plus lambda * Omega(weights), each reported under its own name.

loss = data term + l2 * sum w^2 + l1 * sum |w|          over the weights of the model without its biases
"""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor, nn

from ..core.batch import Batch
from ..core.errors import BadInput
from ..core.options import checked
from ..core.terms import Term, Terms
from ._wrapper import PenaltyFactor, Wrapper
from .gaussian import Gaussian


@final
class Penalized(Wrapper):
    """The objective's own terms, and 'l2' and 'l1' where their factors are not 0; means are the bare penalties.

    Args:
        objective: what fits the data
        l2: factor of the sum of squares
        l1: factor of the sum of absolute values
        biases: whether vectors (biases, gains of norms) are penalized like matrices
    """

    @checked
    def __init__(self, objective: Any, l2: PenaltyFactor = 0.0, l1: PenaltyFactor = 0.0, biases: bool = False) -> None:
        self.objective, self.biases = objective, biases
        self.factors = {name: value for name, value in (("l2", l2), ("l1", l1)) if value}

    def __call__(self, model: nn.Module, batch: Batch) -> Terms:
        terms = self.objective(model, batch)
        if not self.factors:
            return terms
        weights = self.weights(model)
        return terms + Terms(**{name: Term(_OMEGA[name](weights), n, factor, n) for name, factor, n in self._parts(batch)})

    def weights(self, model: nn.Module) -> list[Tensor]:
        """What is penalized: trained matrices and filters, with `biases` every trained number."""
        if not hasattr(model, "named_parameters"):
            raise BadInput("a penalty on weights needs the model itself, not a function", where="penalized")
        weights: list[Tensor] = [p for _, p in model.named_parameters() if p.requires_grad and (self.biases or p.ndim > 1)]
        if not weights:
            raise BadInput("the model has no weights to penalize", where="penalized", fix="set l1 and l2 to 0, or biases=True")
        return weights

    def counts(self, batch: Batch) -> dict[str, float]:
        return {**self.objective.counts(batch), **{name: n for name, _, n in self._parts(batch)}}

    def _parts(self, batch: Batch) -> list[tuple[str, float, float]]:
        """Each penalty with its factor and its count.  Every example carries it once, so parts of a batch add up to the whole."""
        return [(name, factor, float(len(batch))) for name, factor in self.factors.items()]


_OMEGA = {
    "l2": lambda weights: torch.stack([w.square().sum() for w in weights]).sum(),
    "l1": lambda weights: torch.stack([w.abs().sum() for w in weights]).sum(),
}


def tiny() -> tuple[Penalized, nn.Module, Batch]:
    """A small working instance with input."""
    x = torch.linspace(-1, 1, 21).reshape(7, 3)
    return Penalized(Gaussian(), l2=0.1, l1=0.01), nn.Linear(3, 2), Batch(x=x, y=torch.sin(x[:, :2]))
