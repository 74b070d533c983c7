"""What objectives that wrap another objective share: targets, outputs and reports stay those of the wrapped one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor

from ..core.batch import Batch
from ..core.errors import BadInput
from ..core.terms import Terms


class Wrapper(ABC):
    """An objective that changes the inputs of another one, or adds terms to it."""

    objective: Any
    """the wrapped objective"""

    @abstractmethod
    def __call__(self, model: Any, batch: Batch) -> Terms: ...

    @abstractmethod
    def counts(self, batch: Batch) -> dict[str, float]: ...

    def measures(self, output: Tensor, batch: Batch) -> Terms:
        return self.objective.measures(output, batch)

    def check(self, batch: Batch) -> None:
        self.objective.check(batch)

    def predict(self, output: Tensor) -> Tensor:
        return self.objective.predict(output)

    def at(self, step: int) -> None:
        if hasattr(self.objective, "at"):
            self.objective.at(step)

    @property
    def phases(self) -> tuple[int, ...]:
        return self.objective.phases  # no such attribute here either, where the other has none

    def phase_of(self, name: str) -> int:
        return self.objective.phase_of(name)

    @property
    def phase(self) -> int | None:
        return self.objective.phase

    @phase.setter
    def phase(self, value: int | None) -> None:
        self.objective.phase = value


def factor(value: object, name: str, where: str, fix: str = "0 leaves it out") -> float:
    """A number >= 0 that a term of a loss is multiplied by, or an error that names it."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
        raise BadInput(f"{name} must be a number >= 0, not {value!r}", where=where, fix=fix)
    return float(value)
