"""One part of a joint objective: an output of the model, its target in the batch and its weight."""

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
    """field with the mask of the target; None uses all of it"""
    weight: PenaltyFactor = 1.0
    objective: Any = field(default_factory=Categorical)
