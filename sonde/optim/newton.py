"""Newton's method: step to the minimum of the quadratic model of the loss, with damping where that model has none.

    theta <- theta - lr (H + mu I)^-1 g

mu is 0 for the plain step (Newton), a constant for a damped one (Levenberg 1944).  The step needs H + mu I > 0.
Otherwise `indefinite="refuse"` raises an error with the eigenvalue; `indefinite="damp"` increases mu past it, and further
until the loss falls.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Any, Literal, final

import torch
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from ..core.errors import BadInput, NumericalStop
from ..core.options import Range, checked

LARGEST = 4096
"""parameters; a larger Hessian needs too much memory, and its eigenvectors more than a minute"""
MAX_RAISES = 60
"""how often mu is multiplied by 4 before a step is given up"""


@final
class Newton(torch.optim.Optimizer):
    """For small models and whole batches.  `step(closure)` takes a function that returns the loss and nothing else: it must
    not call `backward`, because the step differentiates the loss twice.

    Args:
        lr: fraction of the Newton step; 1 solves a quadratic in one step
        damping: mu, added to every eigenvalue of the Hessian
        indefinite: refuse or damp, where H + mu I is not positive definite

    lowest: after a step, the smallest eigenvalue of H
    shift: after a step, the mu it used
    """

    elementwise = False

    @checked
    def __init__(
        self,
        params: Any,
        lr: Annotated[float, Range(above=0)] = 1.0,
        damping: Annotated[float, Range(0)] = 0.0,
        indefinite: Literal["refuse", "damp"] = "refuse",
    ) -> None:
        super().__init__(params, {"lr": lr, "damping": damping, "indefinite": indefinite})
        for name in ("damping", "indefinite"):
            if len({group[name] for group in self.param_groups}) > 1:
                raise BadInput(f"groups of parameters differ in '{name}' of Newton's method", fix="give all the same: there is one Hessian")
        self.params: list[Tensor] = [p for group in self.param_groups for p in group["params"] if p.requires_grad]
        count = sum(p.numel() for p in self.params)
        if count > LARGEST:
            raise BadInput(f"Newton's method needs a Hessian of {count} x {count} numbers", fix="use torch.optim.LBFGS instead")
        self.lowest = self.shift = math.nan

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor:  # type: ignore[override]
        if closure is None:
            raise BadInput("Newton's method needs the loss as a function", where="Newton.step", fix="call step(closure)")
        group = self.param_groups[0]
        with torch.enable_grad():
            loss = closure()
            gradient, hessian = _derivatives(loss, self.params)
        loss = loss.detach()
        if not (loss.isfinite() and gradient.isfinite().all() and hessian.isfinite().all()):
            raise NumericalStop(f"loss, gradient or Hessian is not finite; the loss is {float(loss):g}", where="Newton.step")
        curvatures, axes = torch.linalg.eigh(hessian)
        self.lowest, self.shift = float(curvatures[0]), group["damping"]
        # An eigenvalue is known to about the rounding of the largest one: below that it may as well be 0.
        floor = 1e-14 * len(curvatures) * float(curvatures.abs().max()) + 1e-300
        definite = self.lowest + self.shift > floor
        if not definite and group["indefinite"] == "refuse":
            raise NumericalStop(
                f"the Hessian is not positive definite: its smallest eigenvalue is {self.lowest:.3g}, damping {self.shift:g}",
                where="Newton.step",
                fix="use indefinite='damp', more damping, or another start",
            )
        here, along = parameters_to_vector(self.params).clone(), axes.T @ gradient

        rates = torch.cat(
            [along.new_full((p.numel(),), each["lr"]) for each in self.param_groups for p in each["params"] if p.requires_grad]
        )

        def evaluate_at(shift: float) -> None:
            move = axes @ (along / (curvatures + shift))
            vector_to_parameters(here - (rates * move).to(here.dtype), self.params)

        if group["indefinite"] == "refuse":
            evaluate_at(self.shift)
            return loss
        if not definite:  # the flattest direction then counts as if it were as curved upwards as it is downwards
            self.shift = 2 * abs(self.lowest) + max(self.shift, 1e-8 * float(curvatures.abs().max()), floor)
        for _ in range(MAX_RAISES):
            evaluate_at(self.shift)
            if float(closure()) <= float(loss):
                return loss
            self.shift = 4 * max(self.shift, floor)
        vector_to_parameters(here, self.params)  # at a minimum no step lowers the loss any more
        return loss


def _derivatives(loss: Tensor, params: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Gradient (P,) and Hessian (P, P) in float64, all rows of the Hessian in one batched backward pass."""
    if not (isinstance(loss, Tensor) and loss.ndim == 0 and loss.requires_grad):
        raise BadInput("the closure must return the loss as a tensor of one number with a graph", where="Newton.step")
    try:
        first = torch.autograd.grad(loss, params, create_graph=True, materialize_grads=True)
    except RuntimeError as error:
        if "second time" not in str(error):
            raise
        raise BadInput("the closure has called backward", where="Newton.step", fix="return the loss; the step differentiates it") from error
    gradient = torch.cat([part.flatten() for part in first])
    if not gradient.requires_grad:  # a linear loss
        return gradient.double(), gradient.new_zeros(len(gradient), len(gradient), dtype=torch.float64)
    unit = torch.eye(len(gradient), dtype=gradient.dtype, device=gradient.device)
    rows = torch.autograd.grad(gradient, params, unit, is_grads_batched=True, materialize_grads=True)
    hessian = torch.cat([row.flatten(1) for row in rows], 1).double()
    return gradient.double(), (hessian + hessian.T) / 2
