"""A model with its gradient buffer and its optimiser on one process: what a step does to the weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..core.batch import Batch
from ..gradients import mean
from ..gradients.flat import Flat
from ..gradients.replay import Repeated
from ..optim.quick import quick_step
from .guard import bad_weights
from .state import Moments, load_model_, misfit_model, model_tensors


class Replica:
    """Every process holds the whole model; gradients are summed in shard order, so all replicas stay identical."""

    def __init__(self, model: nn.Module, optimiser: Any, world: Any, steady: bool = False) -> None:
        """steady: nobody but the optimiser changes the model, so a step may be replayed"""
        self.model, self.world, self.steady = model, world, steady
        self.judges = world
        """processes that share the work of an evaluation"""
        self.memory: dict[str, Any] = {}
        decays = getattr(optimiser, "decays", lambda name, parameter: True)
        self.flat = Flat(model, decays)
        elementwise = getattr(optimiser, "elementwise", False)
        self.optimiser = build_optimiser(optimiser, self._groups(elementwise))
        self.moments = Moments(self.optimiser, self.flat, elementwise)
        self.rates = [group["lr"] for group in self.optimiser.param_groups]
        self.quick: Callable[[], None] | None = None
        self.repeated: Repeated | None = None

    def _groups(self, elementwise: bool) -> list[dict[str, Any]]:
        found = []
        for group, flat in self.flat.groups():
            slots = [slot for slot in self.flat.slots if slot.group == group]
            params = [flat] if elementwise else [slot.parameter for slot in slots]
            found.append({"params": params, "group": group, "names": [slot.name for slot in slots]})
        return found

    def gradient(self, objective: Any, shards: Mapping[int, Batch], total: int, before: Callable[[int], None]) -> float:
        """Fill the gradient buffer with the gradient of the mean loss over the whole batch; returns that loss."""
        if total == 1:
            before(0)
            if not self.steady:
                return mean.whole(self.model, objective, self.flat, shards[0])
            if self.repeated is None:
                self.repeated = Repeated(self.model, objective, self.flat, partial(mean.whole, self.model, objective, self.flat))
            return self.repeated(shards[0])
        return mean.sharded(self.model, objective, self.flat, shards, total, self.world, before, self.memory)

    def norm(self) -> Tensor:
        return self.flat.norm()

    def finite(self) -> bool:
        """Whether all weights are finite numbers.  What lies between them in the buffer does not matter."""
        return not bad_weights(self.model)

    def clip(self, norm: Tensor, largest: float) -> None:
        mean.clip(self.flat, norm, largest)

    def update(self, factor: float) -> float:
        """One optimiser step at `factor` times the base rate; returns the rate used."""
        for group, rate in zip(self.optimiser.param_groups, self.rates, strict=True):
            group["lr"] = rate * factor
        if self.quick is not None:
            self.quick()
        else:
            self.optimiser.step()
            self.quick = quick_step(self.optimiser)
        return self.optimiser.param_groups[0]["lr"]

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        return {"model": model_tensors(self.model), "optim": self.moments.tensors()}

    def fits(self, parts: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Raise DataUnusable where the parts of a checkpoint cannot be loaded."""
        misfit_model(model_tensors(self.model), parts)
        self.moments.fits(parts["optim"])

    def load(self, parts: Mapping[str, Mapping[str, Tensor]]) -> None:
        self.quick = None
        load_model_(self.model, parts["model"])
        self.moments.load_(parts["optim"])


def build_optimiser(optimiser: Any, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    """From `sonde.optim.build.optimiser`, or from a plain function of parameters such as `partial(torch.optim.SGD, lr=0.1)`."""
    if hasattr(optimiser, "build"):
        plain = [{**group, "weight_decay": optimiser.weight_decay if group["group"] == 0 else 0.0} for group in groups]
        return optimiser.build(plain)
    return optimiser(groups)
