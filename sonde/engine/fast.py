"""The one hook of the fast paths in `accelerate/`: what they cannot do, and all if the folder is gone, is done the ordinary way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import nn

from ..core.batch import Batch
from ..gradients.flat import Flat

Gradient = Callable[[Batch], float]


class FasterGradient(Protocol):
    """A gradient with the same bits as the ordinary one; None for batches that it cannot do."""

    possible: bool
    """False once it is known that it can do none"""

    def __call__(self, batch: Batch) -> float | None: ...


try:
    from .accelerate.quick import quick_step
    from .accelerate.replay import ReplayedGradient
except ModuleNotFoundError:
    quick_step = ReplayedGradient = None  # type: ignore[assignment, misc]


def faster_gradient(ordinary: Gradient, model: nn.Module, objective: Any, flat: Flat) -> FasterGradient | None:
    """A shortcut to the ordinary gradient; None where there is none."""
    return None if ReplayedGradient is None else ReplayedGradient(model, objective, flat, ordinary)


def faster_update(optimizer: torch.optim.Optimizer) -> Callable[[], None] | None:
    """What does the same as `optimizer.step()` after its first step; None where there is no shortcut."""
    return None if quick_step is None else quick_step(optimizer)
