"""SGD whose momentum is a rolling average: each gradient enters with weight 1 - beta, so the step keeps its size.

m_t     = beta m_{t-1} + (1 - beta) g_t          m_0 = 0
theta_t = theta_{t-1} - lr m_t

torch.optim.SGD adds up (m_t = beta m_{t-1} + g_t); its path at rate lr (1 - beta) is this one.  Its `dampening` is not this
average, for it leaves the first gradient undamped.
"""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor, nn

from ...core.options import checked
from ._rule import Momentum, OptimizerRule


@final
class EmaSGD(OptimizerRule):
    """SGD with an average of past gradients.  Weight decay adds weight_decay * theta to the gradient, as in torch.optim.SGD."""

    linear_in_lr = True
    """a step is proportional to lr"""
    also = ("sgd", "ema", True)
    """`optimizer("sgd", ema=True)` makes this one"""

    @checked
    def __init__(self, params, lr: float = 1e-2, momentum: Momentum = 0.9, weight_decay: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    def update(self, params: list[Tensor], grads: list[Tensor], group: dict[str, Any]) -> None:
        momenta = self.moments(params, "momentum")
        if group["weight_decay"]:
            grads = list(torch._foreach_add(grads, params, alpha=group["weight_decay"]))
        torch._foreach_lerp_(momenta, grads, 1 - group["momentum"])
        torch._foreach_add_(params, momenta, alpha=-group["lr"])


def tiny() -> tuple[EmaSGD, list[nn.Parameter]]:
    """A small working instance with its parameters."""
    params = [nn.Parameter(torch.linspace(-1, 1, 6).reshape(2, 3)), nn.Parameter(torch.ones(5))]
    return EmaSGD(params, lr=0.01), params
