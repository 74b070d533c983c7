"""The base class of update rules: gradients and state of the parameters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Annotated, Any

import torch
from torch import Tensor

from ...core.options import Range

Momentum = Annotated[float, Range(0, below=1)]
"""decay of a moving average"""


def evaluate_closure(closure: Callable[[], Any] | None) -> Any:
    """Call the closure of a step, if it has one, with gradients enabled; returns the loss."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


class OptimizerRule(torch.optim.Optimizer, ABC):
    """An elementwise rule; `update` does one step on a group of parameters."""

    elementwise = True

    @abstractmethod
    def update(self, params: list[Tensor], grads: list[Tensor], group: dict[str, Any]) -> None:
        """Move the parameters of a group in place."""

    @torch.no_grad()
    def step(self, closure=None):
        loss = evaluate_closure(closure)
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if params:
                self.update(params, [p.grad for p in params], group)
        return loss

    def moments(self, params: list[Tensor], name: str) -> list[Tensor]:
        """The state of that name for each parameter, 0 at first."""
        for p in params:
            if name not in self.state[p]:
                self.state[p][name] = torch.zeros_like(p, memory_format=torch.preserve_format)
        return [self.state[p][name] for p in params]
