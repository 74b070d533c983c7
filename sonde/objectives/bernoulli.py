"""Bernoulli likelihood: binary cross-entropy on logits, for yes-or-no targets.

-log Pr(y; p) = -y log p - (1 - y) log(1 - p),  p = 1 / (1 + exp(-output))
"""

from __future__ import annotations

from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core.batch import Batch
from ._likelihood import Likelihood, align, expand_like


@final
class Bernoulli(Likelihood):
    """y is 0 or 1 (or a probability in between); output = log(p / (1 - p)), the logit.  Drops nothing."""

    name = "bernoulli"
    tasks = ("binary",)
    link = "sigmoid"
    repeatable = True

    def each(self, output: Tensor, y: Tensor, reduction: str = "none") -> Tensor:
        return F.binary_cross_entropy_with_logits(*align(output, y, self.name), reduction=reduction)

    def constant(self, y: Tensor) -> Tensor:
        return expand_like(y, 0.0)

    def predict(self, output: Tensor) -> Tensor:
        """The probability of 1."""
        return torch.sigmoid(output)

    def metrics(self, output: Tensor, y: Tensor) -> dict[str, Tensor]:
        output, y = align(output, y, self.name)
        return {"accuracy": ((output > 0) == (y > 0.5)).to(output.dtype)}

    def target_rule(self, y: Tensor) -> tuple[str, Tensor, str]:
        return "targets must lie between 0 and 1", (y < 0) | (y > 1), "code the two classes as 0 and 1, or use 'categorical'"


def tiny() -> tuple[Bernoulli, nn.Module, Batch]:
    """A small working instance with input."""
    x = torch.linspace(-1, 1, 21).reshape(7, 3)
    return Bernoulli(), nn.Linear(3, 1), Batch(x=x, y=(x[:, 0] > 0).float())
