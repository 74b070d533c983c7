"""The update of Adam and AdamW as a single call of torch's own fused kernel.

`torch.optim.Adam.step` sorts its tensors by device and type and counts steps before it calls the kernel; for a few
flat buffers that never change, this is done once.  Same kernel, same numbers, same state: checkpoints are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch


def quick_step(optimizer: torch.optim.Optimizer) -> Callable[[], None] | None:
    """A function that does what `optimizer.step()` does, or None where there is no shortcut.

    The optimizer must have made its first step.  From then on its state tensors must not be replaced, and of its settings only
    the learning rate may change.
    """
    if type(optimizer) not in (torch.optim.Adam, torch.optim.AdamW):
        return None
    calls = []
    for group in optimizer.param_groups:
        states = [optimizer.state.get(parameter, {}) for parameter in group["params"]]
        cpu = all(parameter.device.type == "cpu" for parameter in group["params"])
        if not (group["fused"] and cpu and not group["amsgrad"] and all("exp_avg" in state for state in states)):
            return None
        kernel = torch._fused_adamw_ if group["decoupled_weight_decay"] else torch._fused_adam_
        steps, *moments = ([state[name] for state in states] for name in ("step", "exp_avg", "exp_avg_sq"))
        # Detached twins share their memory and need no guard against the graph.
        tensors = [[p.detach() for p in group["params"]], [p.grad for p in group["params"]], *moments, [], steps]
        fixed = {name: group[name] for name in ("weight_decay", "eps", "maximize", "amsgrad")}
        fixed["beta1"], fixed["beta2"] = group["betas"]
        calls.append((partial(kernel, *tensors, **fixed), steps, group))

    def step() -> None:
        for kernel, steps, group in calls:
            for count in steps:
                count.add_(1)
            kernel(lr=group["lr"])

    return step
