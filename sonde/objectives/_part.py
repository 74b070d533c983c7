"""One part of a joint objective: which of the model's outputs, against which fields of the batch, and how much it counts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, final

from ..core.options import checked
from ._wrapper import PenaltyFactor
from .categorical import Categorical


@final
@checked
@dataclass(frozen=True)
class Part:
    """`weight` times the objective of one output."""

    y: str = "y"
    """field of the batch that holds the target"""
    mask: str | None = None
    """field that says where the target counts; none is everywhere"""
    weight: PenaltyFactor = 1.0
    objective: Any = field(default_factory=Categorical)
