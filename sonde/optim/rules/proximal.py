"""Proximal: a gradient step, then the exact step of an L1 penalty, which leaves real zeros (ISTA, Daubechies et al. 2004).

v_t     = theta_{t-1} - (step of SGD or Adam along g_t)
theta_t = sign(v_t) max(|v_t| - lr wd, 0)

The second line minimizes  |theta - v|^2 / 2 + lr wd |theta|_1.  A penalty inside the loss would oscillate around 0 for ever;
this stops at 0.
"""

from __future__ import annotations

from typing import final

import torch
from torch import nn

from ...core.errors import BadInput
from ...core.options import checked
from ._rule import Momentum, evaluate_closure


@final
class Proximal(torch.optim.Optimizer):
    """`weight_decay` is the strength of the L1 penalty: a pull of constant size instead of a proportional one.

    With SGD it ends at the minimum of  loss + wd |theta|_1.  `adaptive` takes Adam's step instead; the pull is then
    decoupled as in AdamW and not divided by Adam's scales, so zeros stay real but the minimum is another one.
    """

    elementwise = True

    @checked
    def __init__(self, params, lr: float = 1e-2, momentum: Momentum = 0.0, weight_decay: float = 0.0, adaptive: bool = False) -> None:
        if adaptive and momentum:
            raise BadInput("an adaptive proximal step has its own momentum", fix="leave momentum at 0, or adaptive=False")
        # The inner rule has no state of its own: it borrows groups and state at each step, so saving and loading work.
        options = {"params": params, "lr": lr, "weight_decay": weight_decay}
        self.inner: torch.optim.Optimizer = torch.optim.Adam(**options) if adaptive else torch.optim.SGD(**options, momentum=momentum)
        super().__init__(self.inner.param_groups, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        loss = evaluate_closure(closure)
        self.inner.param_groups = [{**group, "weight_decay": 0.0} for group in self.param_groups]
        self.inner.state = self.state
        self.inner.step()
        for group in self.param_groups:
            threshold = group["lr"] * group["weight_decay"]
            params = [p for p in group["params"] if p.grad is not None]
            if threshold and params:
                shrunk = torch._foreach_abs(params)
                torch._foreach_sub_(shrunk, threshold)
                torch._foreach_clamp_min_(shrunk, 0.0)
                torch._foreach_mul_(shrunk, torch._foreach_sign(params))
                torch._foreach_copy_(params, shrunk)
        return loss


def tiny() -> tuple[Proximal, list[nn.Parameter]]:
    """A small working instance with its parameters."""
    params = [nn.Parameter(torch.linspace(-1, 1, 6).reshape(2, 3)), nn.Parameter(torch.ones(5))]
    return Proximal(params, lr=0.1, momentum=0.9, weight_decay=0.5), params
