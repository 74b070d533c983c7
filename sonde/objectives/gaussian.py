"""Gaussian likelihood: least squares, with a variance that is fixed or given by the model.

-log N(y; m, v) = (y - m)^2 / 2v + log(v) / 2 + log(2 pi) / 2
"""

from __future__ import annotations

import math
from typing import Literal, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core.batch import Batch
from ..core.options import checked
from ._likelihood import Likelihood, PositiveOrLearned, align, errors, expand_like, halves, real_targets, reduce


@final
class Gaussian(Likelihood):
    """y is any real number; m = output, v fixed.  Drops log(2 pi v) / 2, so with v = 1 it is half the mean square.

    Args:
        variance: the fixed variance, or 'learned': the model then gives two numbers per target, all m first and then all
            log(v), and only log(2 pi) / 2 is dropped
    """

    name = "gaussian"
    tasks = ("real", "positive")
    link = "identity"
    repeatable = True

    @checked
    def __init__(self, variance: PositiveOrLearned = 1.0) -> None:
        self.variance = None if variance == "learned" else variance
        self.factor = 0.5 if self.variance is None else 0.5 / self.variance

    def each(self, output: Tensor, y: Tensor, reduction: str = "none") -> Tensor:
        if self.variance is not None:
            return F.mse_loss(*align(output, y, self.name), reduction=reduction)
        mean, log_variance, y = halves(output, y, self.name)
        return reduce(log_variance + (y - mean).square() * torch.exp(-log_variance), reduction)

    def constant(self, y: Tensor) -> Tensor:
        return expand_like(y, 0.5 * math.log(2 * math.pi * (1.0 if self.variance is None else self.variance)))

    def predict(self, output: Tensor) -> Tensor:
        """The mean."""
        return output if self.variance is not None else output.chunk(2, -1)[0]

    def metrics(self, output: Tensor, y: Tensor) -> dict[str, Tensor]:
        return errors(*align(self.predict(output), y, self.name))

    def target_rule(self, y: Tensor) -> tuple[str, Tensor, str]:
        return real_targets(y)


@checked
def squared_error(output: Tensor, y: Tensor, reduction: Literal["mean", "sum"] = "mean", half: bool = False) -> Tensor:
    """The squares (output - y)^2 as books print them: their mean or their sum, with or without a half before them.

    All four have the same minimum; `reduction='mean', half=True` is the loss of `Gaussian()`.
    """
    loss = F.mse_loss(*align(output, y, "squared error"), reduction=reduction)
    return loss / 2 if half else loss


def tiny() -> tuple[Gaussian, nn.Module, Batch]:
    """A small working instance with input."""
    x = torch.linspace(-1, 1, 21).reshape(7, 3)
    return Gaussian(), nn.Linear(3, 2), Batch(x=x, y=torch.sin(x[:, :2]))
