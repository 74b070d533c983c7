"""What objectives around another objective share: it goes on judging targets, outputs and reports as it did alone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor

from ..core.batch import Batch
from ..core.terms import Terms


class Around(ABC):
    """An objective that changes what another one is given, or adds to what it says."""

    objective: Any
    """the other one"""

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
