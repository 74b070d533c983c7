"""Lion: every coordinate moves by the learning rate, along the sign of a short-memory momentum (Chen et al. 2023).

u_t     = sign(b1 m_{t-1} + (1 - b1) g_t) + wd theta_{t-1}
theta_t = theta_{t-1} - lr u_t
m_t     = b2 m_{t-1} + (1 - b2) g_t
"""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor, nn

from ...core.options import checked
from ._rule import Momentum, OptimizerRule


@final
class Lion(OptimizerRule):
    """One state tensor per parameter, half of Adam's; use a third to a tenth of Adam's learning rate."""

    linear_in_lr = True

    @checked
    def __init__(self, params, lr: float = 1e-4, betas: tuple[Momentum, Momentum] = (0.9, 0.99), weight_decay: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    def update(self, params: list[Tensor], grads: list[Tensor], group: dict[str, Any]) -> None:
        momenta = self.moments(params, "momentum")
        short, long = group["betas"]
        moves = torch._foreach_lerp(momenta, grads, 1 - short)
        torch._foreach_sign_(moves)
        if group["weight_decay"]:
            torch._foreach_add_(moves, params, alpha=group["weight_decay"])
        torch._foreach_add_(params, moves, alpha=-group["lr"])
        torch._foreach_lerp_(momenta, grads, 1 - long)


def tiny() -> tuple[Lion, list[nn.Parameter]]:
    """A small working instance with its parameters."""
    params = [nn.Parameter(torch.linspace(-1, 1, 6).reshape(2, 3)), nn.Parameter(torch.ones(5))]
    return Lion(params, lr=0.01), params
