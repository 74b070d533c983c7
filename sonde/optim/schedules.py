"""Learning-rate schedules: functions (step, steps) -> factor on the learning rate, without any state.

The first update is step 0 of `steps`.  Past the end a schedule keeps its last value.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Annotated, Any

from ..core.errors import BadInput, nearest
from ..core.options import Range, resolve

Schedule = Callable[[int, int], float]
Share = Annotated[float, Range(least=0, most=1)]

_KNOWN: dict[str, Callable[..., Schedule]] = {}


def _schedule(function: Callable[..., Schedule]) -> Callable[..., Schedule]:
    """Check the settings as options, and make the function known by its name."""

    @functools.wraps(function)
    def check_and_build(**settings: Any) -> Schedule:
        return function(**resolve(function, settings, f"schedule '{function.__name__}'"))

    _KNOWN[function.__name__] = check_and_build
    return check_and_build


def schedule(name: str, **settings: Any) -> Schedule:
    """A schedule by name: `schedule("warmup_cosine", warmup=0.1)`."""
    if name not in _KNOWN:
        raise BadInput(f"no schedule '{name}'", fix=nearest(name, _KNOWN))
    return _KNOWN[name](**settings)


def names() -> list[str]:
    """Names that `schedule` takes."""
    return sorted(_KNOWN)


@_schedule
def constant() -> Schedule:
    """Always 1."""
    return lambda step, steps: 1.0


@_schedule
def inverse_time(half: Annotated[float, Range(above=0)] = 1.0) -> Schedule:
    """1 / (1 + step / half): falls like 1/t, slowly enough to reach any minimum and fast enough to converge.

    Args:
        half: steps after which the factor is one half; 1 gives 1, 1/2, 1/3, ...
    """
    return lambda step, steps: 1.0 / (1.0 + step / half)


@_schedule
def step_decay(every: Annotated[int, Range(least=1)], factor: Annotated[float, Range(above=0, most=1)] = 0.1) -> Schedule:
    """Multiplied by `factor` after each `every` steps.

    Args:
        every: steps between two drops
        factor: what the rate is multiplied by at a drop
    """
    return lambda step, steps: factor ** (step // every)


@_schedule
def cosine(floor: Share = 0.0) -> Schedule:
    """Half a cosine wave from 1 down to `floor` at the last step.

    Args:
        floor: factor at the end
    """
    return lambda step, steps: _cosine(step / steps, floor)


@_schedule
def warmup_cosine(warmup: Share = 0.05, floor: Share = 0.0) -> Schedule:
    """Rises linearly, then falls as half a cosine wave.

    Args:
        warmup: fraction of all steps spent rising
        floor: factor at the end
    """

    def factor(step: int, steps: int) -> float:
        warmup_steps = round(warmup * steps)
        if step < warmup_steps:
            return (step + 1) / warmup_steps
        return _cosine((step - warmup_steps) / max(steps - warmup_steps, 1), floor)

    return factor


@_schedule
def warmup_stable_decay(warmup: Share = 0.05, decay: Share = 0.2, floor: Share = 0.0) -> Schedule:
    """Rises linearly, stays at 1, then falls linearly.

    Args:
        warmup: fraction of all steps spent rising
        decay: fraction of all steps spent falling
        floor: factor at the end
    """
    if warmup + decay > 1:
        raise BadInput(
            f"warmup {warmup:g} and decay {decay:g} are more than all steps",
            where="schedule 'warmup_stable_decay'",
            fix="lower one of them",
        )

    def factor(step: int, steps: int) -> float:
        warmup_steps, decay_steps = round(warmup * steps), round(decay * steps)
        if step < warmup_steps:
            return (step + 1) / warmup_steps
        if decay_steps == 0:
            return 1.0
        remaining = max(steps - step, 0) / decay_steps
        return floor + (1 - floor) * min(remaining, 1.0)

    return factor


def _cosine(progress: float, floor: float) -> float:
    return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))
