"""Poisson likelihood: for counts of events.

-log Pr(y; r) = r - y log(r) + log(y!),  r = exp(output)
"""

from __future__ import annotations

from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core.batch import Batch
from ._likelihood import Likelihood, align, errors


@final
class Poisson(Likelihood):
    """y is 0, 1, 2, ...; rate = exp(output), so the output is a log-rate.  Drops log(y!)."""

    name = "poisson"
    tasks = ("counts",)
    link = "exponential"
    repeatable = True

    def each(self, output: Tensor, y: Tensor, reduction: str = "none") -> Tensor:
        return F.poisson_nll_loss(*align(output, y, self.name), log_input=True, full=False, reduction=reduction)

    def constant(self, y: Tensor) -> Tensor:
        return torch.lgamma(y + 1.0)

    def predict(self, output: Tensor) -> Tensor:
        """The expected count."""
        return torch.exp(output)

    def metrics(self, output: Tensor, y: Tensor) -> dict[str, Tensor]:
        return errors(*align(self.predict(output), y, self.name))

    def target_rule(self, y: Tensor) -> tuple[str, Tensor, str]:
        broken = (y < 0) | ~torch.isfinite(y) | (y != y.round()) if y.is_floating_point() else y < 0
        return "targets must be counts 0, 1, 2, ...", broken, "use 'gaussian' for values that are not counts"


def tiny() -> tuple[Poisson, nn.Module, Batch]:
    """A small working instance with input."""
    x = torch.linspace(-1, 1, 21).reshape(7, 3)
    return Poisson(), nn.Linear(3, 1), Batch(x=x, y=torch.arange(7) % 5)
