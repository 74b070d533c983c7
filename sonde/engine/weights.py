"""The weights of a model with their gradient and their optimizers on one process: the update of a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version

from ..gradients import mean
from ..gradients.flat import Flat
from .average import Average
from .fast import faster_update
from .guard import bad_weights
from .phases import Phases
from .state import Moments, load_model_, misfit_model, model_tensors


class Weights:
    """All weights of a model, which this process holds as a whole, in one buffer.

    Args:
        model: its parameters become views of the buffer.
        optimizer: makes the optimizer of a group of parameters; with phases also a mapping with one for each.
        phases: which parameters each update moves.
        ema: decay of the moving average of the weights; 0 for none.
    """

    def __init__(self, model: nn.Module, optimizer: Any, phases: Phases | None = None, ema: float = 0.0) -> None:
        self.model = model
        phases = phases or Phases(None)
        phase_of, optimizer_of = phases.of(model), phases.optimizers(optimizer)

        def decays(name: str, parameter: Tensor, owner: nn.Module) -> bool:
            return getattr(optimizer_of(phase_of(name)), "decays", lambda *of: True)(name, parameter, owner)

        self.flat = Flat(model, decays, phase_of)
        groups: dict[int, list] = {}
        for group, parameter in self.flat.groups():
            groups.setdefault(group // 2, []).append((group, parameter))
        self.movers = {phase: Mover(optimizer_of(phase), own, self.flat) for phase, own in groups.items()}
        self.average = Average([self.flat.values, *_moving_buffers(model)], ema) if ema else None

    def rest(self, phase: int) -> None:
        """Forget the gradient of the weights that do not move in a phase."""
        if len(self.movers) > 1:
            self.flat.rest(phase)

    def norm(self) -> Tensor:
        return mean.norm(self.flat)

    def finite(self) -> bool:
        """Whether all weights are finite numbers.  The padding between them in the buffer is ignored."""
        return not bad_weights(self.model)

    def clip(self, norm: Tensor, largest: float) -> None:
        mean.clip(self.flat, norm, largest)

    def update(self, factor: float, phase: int = 0) -> float:
        """One optimizer step of the weights that a phase updates, at `factor` times the base rate; returns the rate used."""
        return self.movers[phase].update(factor)

    def use_average(self) -> AbstractContextManager[None]:
        """The averaged weights in the model for a while, where there are any."""
        return self.average.swap() if self.average is not None else nullcontext()

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        moments = {name: value for mover in self.movers.values() for name, value in mover.moments.tensors().items()}
        parts = {"model": model_tensors(self.model), "optim": moments}
        if self.average is not None:
            with self.average.swap():
                parts["average"] = {name: tensor.clone() for name, tensor in model_tensors(self.model).items()}
        return parts

    def copy(self) -> dict[str, Tensor]:
        return {name: tensor.clone() for name, tensor in model_tensors(self.model).items()}

    def gather(self, held: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return dict(held)

    def hold(self, whole: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return dict(whole)

    def fits(self, parts: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Raise DataUnusable where the parts of a checkpoint cannot be loaded."""
        misfit_model(model_tensors(self.model), parts)
        for mover, saved in self._dealt(parts["optim"]):
            mover.moments.fits(saved)

    def load(self, parts: Mapping[str, Mapping[str, Tensor]]) -> None:
        if self.average is not None and parts.get("average"):
            load_model_(self.model, parts["average"])
            self.average.restart()
        load_model_(self.model, parts["model"])
        for mover, saved in self._dealt(parts["optim"]):
            mover.quick = None
            mover.moments.load_(saved)

    def _dealt(self, saved: Mapping[str, Tensor]) -> list[tuple[Mover, dict[str, Tensor]]]:
        """Every mover with the saved moments of its own weights; the first also gets entries of unknown parameters, and refuses them."""
        owner = {slot.name: slot.group // 2 for slot in self.flat.slots}
        first = next(iter(self.movers))
        dealt: dict[int, dict[str, Tensor]] = {phase: {} for phase in self.movers}
        for name, value in saved.items():
            dealt[owner.get(name.rpartition(".")[0], first)][name] = value
        return [(self.movers[phase], own) for phase, own in dealt.items()]


class Mover:
    """The optimizer of the weights that one phase updates.  Other weights are frozen: neither decay nor momentum changes them."""

    def __init__(self, optimizer: Any, own: list[tuple[int, nn.Parameter]], flat: Flat) -> None:
        elementwise = getattr(optimizer, "elementwise", False)
        groups = []
        self.parameters: list[nn.Parameter] = []
        for group, parameter in own:
            slots = [slot for slot in flat.slots if slot.group == group]
            self.parameters += [slot.parameter for slot in slots]
            params = [parameter] if elementwise else [slot.parameter for slot in slots]
            groups.append({"params": params, "group": group, "names": [slot.name for slot in slots]})
        self.optimizer = build_optimizer(optimizer, groups)
        self.moments = Moments(self.optimizer, flat, elementwise)
        self.rates = [group["lr"] for group in self.optimizer.param_groups]
        self.quick: Callable[[], None] | None = None

    def update(self, factor: float) -> float:
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * factor
        if self.quick is not None:
            self.quick()
        else:
            self.optimizer.step()
            self.quick = faster_update(self.optimizer)
        increment_version(self.parameters)  # torch counts changes of the buffer, not of the parameters in it, and none by fused kernels
        return self.optimizer.param_groups[0]["lr"]


def _moving_buffers(model: nn.Module) -> list[Tensor]:
    """Buffers that a forward pass may change and that have a mean, such as running statistics."""
    return [buffer for buffer in model.buffers() if buffer.is_floating_point()]


def build_optimizer(optimizer: Any, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    """From `sonde.optim.build.optimizer`, or from a plain function of parameters such as `partial(torch.optim.SGD, lr=0.1)`."""
    if hasattr(optimizer, "build"):
        plain = [{**group, "weight_decay": optimizer.weight_decay if group["group"] % 2 == 0 else 0.0} for group in groups]
        return optimizer.build(plain)
    return optimizer(groups)
