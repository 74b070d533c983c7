"""Laplace likelihood: least absolute error, with a scale that is fixed or given by the model.

-log Pr(y; m, b) = |y - m| / b + log(b) + log(2)
"""

from __future__ import annotations

import math
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core.batch import Batch
from ..core.options import checked
from ._likelihood import Likelihood, PositiveOrLearned, align, errors, expand_like, halves, real_targets, reduce


@final
class Laplace(Likelihood):
    """y is any real number; m = output, b fixed.  Drops log(2 b).

    Args:
        scale: the fixed scale, or 'learned': the model then gives two numbers per target, all m first and then all log(b),
            and only log(2) is dropped
    """

    name = "laplace"
    tasks = ("real", "positive")
    link = "identity"
    repeatable = True

    @checked
    def __init__(self, scale: PositiveOrLearned = 1.0) -> None:
        self.scale = None if scale == "learned" else scale
        self.factor = 1.0 if self.scale is None else 1.0 / self.scale

    def each(self, output: Tensor, y: Tensor, reduction: str = "none") -> Tensor:
        if self.scale is not None:
            return F.l1_loss(*align(output, y, self.name), reduction=reduction)
        middle, log_scale, y = halves(output, y, self.name)
        return reduce(log_scale + (y - middle).abs() * torch.exp(-log_scale), reduction)

    def constant(self, y: Tensor) -> Tensor:
        return expand_like(y, math.log(2 * (1.0 if self.scale is None else self.scale)))

    def predict(self, output: Tensor) -> Tensor:
        """The median, which is also the mean."""
        return output if self.scale is not None else output.chunk(2, -1)[0]

    def metrics(self, output: Tensor, y: Tensor) -> dict[str, Tensor]:
        return errors(*align(self.predict(output), y, self.name))

    def target_rule(self, y: Tensor) -> tuple[str, Tensor, str]:
        return real_targets(y)


def tiny() -> tuple[Laplace, nn.Module, Batch]:
    """A small working instance with input."""
    x = torch.linspace(-1, 1, 21).reshape(7, 3)
    return Laplace(), nn.Linear(3, 1), Batch(x=x, y=torch.sin(x[:, 0]))
