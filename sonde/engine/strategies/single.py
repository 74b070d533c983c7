"""One process and an undivided batch: the textbook step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any

from torch import nn

from ...core.batch import Batch
from ...gradients import mean
from ..fast import FasterGradient, faster_gradient
from ..weights import Weights


class Single:
    """Forward and backward pass over the whole batch.

    Args:
        steady: only the optimizer changes the model, so a step may be replayed.
    """

    def __init__(self, model: nn.Module, weights: Weights, world: Any, steady: bool = False) -> None:
        self.model, self.weights, self.evaluation_world, self.steady = model, weights, world, steady
        self._faster: FasterGradient | None = None

    def gradient(self, objective: Any, batch: Mapping[int, Batch], seed: Callable[[int], None], phase: int = 0) -> float:
        seed(0)
        if self.steady:
            self.steady = False
            ordinary = partial(mean.full_batch, self.model, objective, self.weights.flat)
            self._faster = faster_gradient(ordinary, self.model, objective, self.weights.flat)
        loss = self._faster(batch[0]) if self._faster is not None and self._faster.possible else None
        if loss is None:
            loss = mean.full_batch(self.model, objective, self.weights.flat, batch[0])
        self.weights.rest(phase)
        return loss

    def apply(self, function: Callable[[nn.Module], Any]) -> Any:
        return function(self.model)

    def whole(self) -> nullcontext[None]:
        return nullcontext()
