"""Mixed examples: each is a mixture of two, and so is its cost.

cost = share * cost(output, y) + (1 - share) * cost(output, other)

Zhang et al., mixup, 2018; Yun et al., CutMix, 2019.  For cross-entropy this equals the cost of a mixed target, because it is
linear in the target; any other likelihood that knows weights can be mixed the same way.
"""

from __future__ import annotations

from typing import Any, final

import torch
from torch import nn

from ..core.batch import Batch, call_model
from ..core.terms import Terms
from ._wrapper import Wrapper
from .categorical import Categorical


@final
class Mixed(Wrapper):
    """Any likelihood, on batches of which some are mixed (fields `other` and `share`); others pass through as they are.

    Args:
        objective: the likelihood
    """

    def __init__(self, objective: Any) -> None:
        self.objective = objective

    def __call__(self, model: nn.Module, batch: Batch) -> Terms:
        if "share" not in batch:
            return self.objective(model, batch)
        output = call_model(model, batch)
        first, second = (self.objective.terms(output, part) for part in self._parts(batch))
        return first + second

    def counts(self, batch: Batch) -> dict[str, float]:
        if "share" not in batch:
            return self.objective.counts(batch)
        first, second = (self.objective.counts(part) for part in self._parts(batch))
        return {name: count + second[name] for name, count in first.items()}

    def _parts(self, batch: Batch) -> tuple[Batch, Batch]:
        """The batch as each of the two targets sees it: a target weighs as much as its share of the example."""
        share, weight = batch.share, batch.get("weight")
        weight = torch.ones_like(share) if weight is None else weight
        return batch.replace(weight=weight * share), batch.replace(y=batch.other, weight=weight * (1 - share))


def tiny() -> tuple[Mixed, nn.Module, Batch]:
    """A small working instance with input."""
    x, y = torch.linspace(-1, 1, 21).reshape(7, 3), torch.arange(7) % 4
    share = torch.linspace(0.25, 1, 7).double()
    return Mixed(Categorical(classes=4)), nn.Linear(3, 4), Batch(x=x, y=y, other=y.flip(0), share=share)
