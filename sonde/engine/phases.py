"""Phases: which weights an update moves, where networks take turns, as in a GAN or in actor-critic methods.

phases = ("discriminator", "generator")            one update a step, in turn
phases = (("critic",), ("critic", "actor"))        the critic at every step, the actor at every second one with the same batch
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from ..core.errors import BadInput

Phase = int | str


class Phases:
    """The cycle of phases of an objective; without phases, one that moves all weights."""

    def __init__(self, objective: Any) -> None:
        self.objective = objective
        self.declared = hasattr(objective, "phases")
        self.where = type(objective).__name__
        cycle = tuple(objective.phases) if self.declared else (0,)
        self.cycle: tuple[tuple[Phase, ...], ...] = tuple(tuple(one) if isinstance(one, (tuple, list)) else (one,) for one in cycle)
        names = [phase for updates in self.cycle for phase in updates]
        whole = all(isinstance(name, int) and not isinstance(name, bool) and name >= 0 for name in names)
        if not names or not all(self.cycle) or not (whole or all(isinstance(name, str) for name in names)):
            raise BadInput(
                f"the phases of the objective are {cycle!r}",
                where=self.where,
                fix="give names, such as ('critic', 'actor'), or whole numbers from 0, such as (0, 1)",
            )
        numbers = [name for name in names if isinstance(name, int)]
        self.names: list[Phase] = [*range(max(numbers) + 1)] if whole else list(dict.fromkeys(names))

        self.updates = [[(phase, self.number(phase)) for phase in updates] for updates in self.cycle]
        """for each step of the cycle its updates: phases with their numbers"""

    def number(self, phase: Phase) -> int:
        return self.names.index(phase)

    def of(self, model: nn.Module) -> Callable[[str], int]:
        """The number of the phase in which each parameter is updated, after a check of all of them."""
        if not self.declared:
            return lambda name: 0
        if not hasattr(self.objective, "phase_of"):
            raise BadInput("the objective has phases but no 'phase_of'", where=self.where, fix="define phase_of(parameter_name)")
        numbers = {}
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                phase = self.objective.phase_of(name)
                if isinstance(phase, bool) or (phase not in self.names and not self._later(phase)):
                    raise BadInput(f"phase_of('{name}') is {phase!r}", where=self.where, fix=f"give one of {self.names}")
                numbers[name] = phase if isinstance(phase, int) else self.number(phase)
        for phase in (phase for updates in self.cycle for phase in updates):
            if self.number(phase) not in numbers.values():
                message = f"phase {phase} of the objective has no weights that train"
                raise BadInput(message, where=self.where, fix="leave the phase out, or let its weights require gradients")
        return numbers.__getitem__

    def _later(self, phase: Any) -> bool:
        """Whether it is a number beyond the cycle: its weights are never updated."""
        return isinstance(phase, int) and phase >= 0 and isinstance(self.names[0], int)

    def optimizers(self, optimizer: Any) -> Callable[[int], Any]:
        """What makes the optimizer of each phase, by its number.

        Args:
            optimizer: one for all phases, or a mapping with one for each.
        """
        if not isinstance(optimizer, dict):
            return lambda number: optimizer
        missing = [phase for updates in self.cycle for phase in updates if phase not in optimizer]
        extra = [phase for phase in optimizer if phase not in self.names]
        if missing or extra:
            what = f"phase {missing[0]!r} has no optimizer" if missing else f"there is an optimizer for {extra[0]!r}, which is no phase"
            raise BadInput(what, where="optimizer", fix=f"give one for each of {self.names}")
        return lambda number: optimizer[self.names[number]]
