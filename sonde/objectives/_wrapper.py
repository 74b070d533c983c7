"""The base class of objectives that wrap another one: targets, outputs and measures stay those of the wrapped one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Annotated, Any

from torch import Tensor

from ..core.batch import Batch
from ..core.options import Range
from ..core.terms import Terms

PenaltyFactor = Annotated[float, Range(0)]
"""what a term of a loss is multiplied by; 0 leaves it out"""


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
        return self.objective.phases  # AttributeError where the wrapped objective has none, as `hasattr` needs

    def phase_of(self, name: str) -> int:
        return self.objective.phase_of(name)

    @property
    def phase(self) -> int | None:
        return self.objective.phase

    @phase.setter
    def phase(self, value: int | None) -> None:
        self.objective.phase = value
