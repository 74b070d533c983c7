"""What a step measures, for a stream that observes it: means of all terms, and notes about the examples."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..core.batch import Batch
from ..core.stream import Measured
from ..core.terms import Terms


class Observed:
    """An objective that remembers the terms of each shard.  The last call counts: an earlier one may only have counted examples."""

    repeatable = False

    def __init__(self, objective: Any) -> None:
        self.objective = objective
        self.shard = 0
        """the shard that is computed"""
        self._terms: dict[int, dict[str, Any]] = {}
        self._notes: dict[int, dict[str, Tensor]] = {}
        self._names: list[str] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.objective, name)

    def __call__(self, model: nn.Module, batch: Batch) -> Terms:
        terms = self.objective(model, batch)
        self._terms.setdefault(self.shard, {}).update(terms.detach().terms)
        self._notes.setdefault(self.shard, {}).update(terms.notes)
        return terms

    def take(self, loss: float, own: range, shards: int, world: Any) -> Measured:
        """What the step measured over all shards and processes, in shard order; then all is forgotten."""
        terms, notes = self._terms, self._notes
        self._terms, self._notes = {}, {}
        names = self._names
        if names is None:  # rank 0 has shard 0, which is never empty
            names = sorted(terms.get(0, {}))
            names = self._names = _names_of_rank_0(world, names)
        rows = {shard: [number for name in names for number in _numbers(terms.get(shard, {}).get(name))] for shard in own}
        total = world.ordered_sum({shard: torch.tensor(row, dtype=torch.float64) for shard, row in rows.items()}, shards).tolist()
        sums, counts = total[::2], total[1::2]
        means = {name: value / count if count else float("nan") for name, value, count in zip(names, sums, counts, strict=True)}
        return Measured(loss, means, notes)


def _names_of_rank_0(world: Any, names: list[str]) -> list[str]:
    """The names that rank 0 has."""
    return [name for name in world.broadcast_bytes("\n".join(names).encode()).decode().split("\n") if name]


def _numbers(term: Any) -> tuple[float, float]:
    return (0.0, 0.0) if term is None else (float(term.sum), float(term.count))
