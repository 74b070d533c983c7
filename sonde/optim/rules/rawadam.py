"""Adam without bias correction: its averages start at 0 and are used as they are, so the first steps are too large.

v_t     = b1 v_{t-1} + (1 - b1) g_t              v_0 = 0
s_t     = b2 s_{t-1} + (1 - b2) g_t^2            s_0 = 0
theta_t = theta_{t-1} - lr v_t / (sqrt(s_t) + eps)

The first step is lr (1 - b1) / sqrt(1 - b2), 3.16 lr with the usual betas, where the corrected method moves by lr.
"""

from __future__ import annotations

from typing import Annotated, Any, final

import torch
from torch import Tensor, nn

from ...core.options import Range, checked
from ._rule import Momentum, OptimizerRule


@final
class RawAdam(OptimizerRule):
    """Also `optimizer("adam", bias_correction=False)`.  Weight decay adds wd theta to the gradient, as in torch.optim.Adam."""

    linear_in_lr = True
    also = ("adam", "bias_correction", False)

    @checked
    def __init__(
        self,
        params,
        lr: float = 1e-3,
        betas: tuple[Momentum, Momentum] = (0.9, 0.999),
        eps: Annotated[float, Range(0)] = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    def update(self, params: list[Tensor], grads: list[Tensor], group: dict[str, Any]) -> None:
        means, squares = self.moments(params, "mean"), self.moments(params, "square")
        if group["weight_decay"]:
            grads = list(torch._foreach_add(grads, params, alpha=group["weight_decay"]))
        first, second = group["betas"]
        torch._foreach_lerp_(means, grads, 1 - first)
        torch._foreach_mul_(squares, second)
        torch._foreach_addcmul_(squares, grads, grads, value=1 - second)
        roots = torch._foreach_sqrt(squares)
        torch._foreach_add_(roots, group["eps"])
        torch._foreach_addcdiv_(params, means, roots, value=-group["lr"])


def tiny() -> tuple[RawAdam, list[nn.Parameter]]:
    """A small working instance with its parameters."""
    params = [nn.Parameter(torch.linspace(-1, 1, 6).reshape(2, 3)), nn.Parameter(torch.ones(5))]
    return RawAdam(params, lr=0.01), params
