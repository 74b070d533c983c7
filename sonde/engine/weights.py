"""The weights of a model with their gradient and their optimizers on one process: the update of a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..core.errors import BadInput
from ..gradients import mean
from ..gradients.flat import Flat
from .fast import faster_update
from .guard import bad_weights
from .state import Moments, load_model_, misfit_model, model_tensors


class Weights:
    """All weights of a model, which this process holds as a whole, in one buffer.

    Args:
        model: its parameters become views of the buffer.
        optimizer: makes the optimizer of a group of parameters.
        objective: defines which parameters each phase updates, if it has phases (see `has_phases`).
    """

    def __init__(self, model: nn.Module, optimizer: Any, objective: Any = None) -> None:
        self.model = model
        decays = getattr(optimizer, "decays", lambda name, parameter, owner: True)
        self.flat = Flat(model, decays, check_phases(objective, model)) if has_phases(objective) else Flat(model, decays)
        groups: dict[int, list] = {}
        for group, parameter in self.flat.groups():
            groups.setdefault(group // 2, []).append((group, parameter))
        self.movers = {phase: Mover(optimizer, own, self.flat) for phase, own in groups.items()}

    def rest(self, phase: int) -> None:
        """Forget the gradient of the weights that do not move in a phase."""
        if len(self.movers) > 1:
            self.flat.rest(phase)

    def norm(self) -> Tensor:
        return self.flat.norm()

    def finite(self) -> bool:
        """Whether all weights are finite numbers.  The padding between them in the buffer is ignored."""
        return not bad_weights(self.model)

    def clip(self, norm: Tensor, largest: float) -> None:
        mean.clip(self.flat, norm, largest)

    def update(self, factor: float, phase: int = 0) -> float:
        """One optimizer step of the weights that a phase updates, at `factor` times the base rate; returns the rate used."""
        return self.movers[phase].update(factor)

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        moments = {name: value for mover in self.movers.values() for name, value in mover.moments.tensors().items()}
        return {"model": model_tensors(self.model), "optim": moments}

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
        for group, parameter in own:
            slots = [slot for slot in flat.slots if slot.group == group]
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
        return self.optimizer.param_groups[0]["lr"]


def has_phases(objective: Any) -> bool:
    """Whether an objective trains in phases that take turns (see `core.recipe.Objective`)."""
    return hasattr(objective, "phases")


def check_phases(objective: Any, model: nn.Module) -> Callable[[str], int]:
    """`phase_of` of an objective with phases, after a check of its result for every trainable parameter."""

    def whole(number: Any) -> bool:
        return isinstance(number, int) and not isinstance(number, bool) and number >= 0

    where, phases = type(objective).__name__, tuple(objective.phases)
    if not phases or not all(map(whole, phases)):
        raise BadInput(
            f"the phases of the objective are {phases!r}", where=where, fix="give one or more whole numbers from 0, such as (0, 1)"
        )
    if not hasattr(objective, "phase_of"):
        raise BadInput("the objective has phases but no 'phase_of'", where=where, fix="define phase_of(parameter_name) -> int")
    phase_by_name = {name: objective.phase_of(name) for name, parameter in model.named_parameters() if parameter.requires_grad}
    for name, phase in phase_by_name.items():
        if not whole(phase):
            raise BadInput(f"phase_of('{name}') is {phase!r}", where=where, fix="give a whole number from 0")
    for phase in phases:
        if phase not in phase_by_name.values():
            message = f"phase {phase} of the objective has no weights that train"
            raise BadInput(message, where=where, fix="leave the phase out, or let its weights require gradients")
    return phase_by_name.__getitem__


def build_optimizer(optimizer: Any, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    """From `sonde.optim.build.optimizer`, or from a plain function of parameters such as `partial(torch.optim.SGD, lr=0.1)`."""
    if hasattr(optimizer, "build"):
        plain = [{**group, "weight_decay": optimizer.weight_decay if group["group"] % 2 == 0 else 0.0} for group in groups]
        return optimizer.build(plain)
    return optimizer(groups)
