"""Adam without bias correction: its moving averages start at 0 and are used uncorrected, so the first steps are too large.

m_t     = beta1 m_{t-1} + (1 - beta1) g_t        m_0 = 0
v_t     = beta2 v_{t-1} + (1 - beta2) g_t^2      v_0 = 0
theta_t = theta_{t-1} - lr m_t / (sqrt(v_t) + eps)

The size of the first step is lr (1 - beta1) / sqrt(1 - beta2), 3.16 lr with the usual betas; with bias correction it is lr.
Kingma and Ba, Adam: A Method for Stochastic Optimization, 2015, section 3, without the correction.
"""

from __future__ import annotations

from typing import Annotated, Any, final

import torch
from torch import Tensor, nn

from ...core.options import Range, checked
from ._rule import Momentum, OptimizerRule


@final
class RawAdam(OptimizerRule):
    """Adam without bias correction.  Weight decay adds weight_decay * theta to the gradient, as in torch.optim.Adam."""

    linear_in_lr = True
    """a step is proportional to lr"""
    also = ("adam", "bias_correction", False)
    """`optimizer("adam", bias_correction=False)` makes this one"""

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
        """One step on all parameters of a group, in place."""
        means, squares = self.moments(params, "mean"), self.moments(params, "square")
        if group["weight_decay"]:
            grads = list(torch._foreach_add(grads, params, alpha=group["weight_decay"]))
        beta1, beta2 = group["betas"]
        torch._foreach_lerp_(means, grads, 1 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, grads, grads, value=1 - beta2)
        denominators = torch._foreach_sqrt(squares)
        torch._foreach_add_(denominators, group["eps"])
        torch._foreach_addcdiv_(params, means, denominators, value=-group["lr"])


def tiny() -> tuple[RawAdam, list[nn.Parameter]]:
    """A small optimizer with its parameters, for the contract tests."""
    params = [nn.Parameter(torch.linspace(-1, 1, 6).reshape(2, 3)), nn.Parameter(torch.ones(5))]
    return RawAdam(params, lr=0.01), params
