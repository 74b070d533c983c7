"""Data parallel: gradients of the shards of a batch, computed by one process or many, are added in the order of the shards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

from torch import nn

from ...core.batch import Batch
from ...gradients import mean
from ..weights import Weights


class Ordered:
    """Every process holds all weights.  The sum has one order whoever computed its terms, so all copies stay identical."""

    def __init__(self, model: nn.Module, weights: Weights, world: Any, shards: int) -> None:
        self.model, self.weights, self.world, self.shards = model, weights, world, shards
        self.evaluation_world = world
        self.memory: dict[str, Any] = {}

    def gradient(self, objective: Any, batch: Mapping[int, Batch], seed: Callable[[int], None], phase: int = 0) -> float:
        loss = mean.accumulate_shards(self.model, objective, self.weights.flat, batch, self.shards, self.world, seed, self.memory)
        self.weights.rest(phase)
        return loss

    def apply(self, function: Callable[[nn.Module], Any]) -> Any:
        return function(self.model)

    def whole(self) -> nullcontext[None]:
        return nullcontext()
