"""Comparison of optimizers: same start, same loss, steps counted until a target; one that diverges is reported and stopped.

All optimizers of `sonde.optim.build` can be compared, and those that need the loss as a function.  Each one is run with
several learning rates and shown with its best.

    from sonde.optim.race import race, standard_rules
    tracks = race(start=[w], loss=lambda weights, step: ..., entrants=standard_rules(), steps=200, target=1e-3)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, final

import torch
from torch import Tensor

from ..core.errors import BadInput, NumericalStop, nearest
from .build import names, optimizer
from .line_search import Descent
from .newton import LARGEST, Newton

MakeOptimizer = Callable[[list[Tensor], float], torch.optim.Optimizer]
"""weights and rate -> optimizer"""
Fate = Literal["reached", "diverged", "stalled", "ran out"]
RATES = tuple(10 ** (k / 2) for k in range(-6, 2))
"""0.001 to 3.2, two to a decade"""
BEYOND = 1e6
"""a loss this many times above its initial value has diverged"""


@final
@dataclass(frozen=True)
class Entrant:
    """An optimizer with a name.  `rates` is empty where it finds its own step size."""

    name: str
    make: MakeOptimizer
    rates: tuple[float, ...] = RATES


@final
@dataclass
class Track:
    """The run of one optimizer."""

    name: str
    rate: float | None
    losses: list[float]
    """before the first step, and after each"""
    fate: Fate = "ran out"
    path: list[Tensor] = field(default_factory=list)
    """the weights at each of them, flat, where they were kept"""
    why: str = ""
    """what stopped it, if anything"""
    target: float = -math.inf
    """may be set after the race, where it depends on the losses of the others"""

    @property
    def steps(self) -> int | None:
        """Steps until the loss was first at most the target."""
        return next((step for step, loss in enumerate(self.losses) if loss <= self.target), None)

    @property
    def end(self) -> str:
        """How it ended, as text."""
        fate = "reached" if self.fate == "ran out" and self.steps is not None else self.fate
        return f"{fate}: {self.why}" if self.why else fate

    def sort_key(self) -> tuple[float, float]:
        """Sorts tracks: fewer steps first, then the lower end."""
        last = self.losses[-1]
        return (math.inf if self.steps is None else self.steps, last if self.fate != "diverged" and last == last else math.inf)


def entrant(name: str, rates: Sequence[float] = RATES) -> Entrant:
    """An entrant by name: a name of `sonde.optim.build`, or one of `SPECIAL`."""
    if name in SPECIAL:
        make, own = SPECIAL[name]
        return Entrant(name, make, () if own else tuple(rates))
    if name not in names():
        raise BadInput(f"no optimizer '{name}' to enter a race", fix=nearest(name, [*names(), *SPECIAL]))
    return Entrant(name, partial(_build, name), tuple(rates))


def standard_rules(rates: Sequence[float] = RATES) -> list[Entrant]:
    """The standard optimizers, one of each."""
    return [entrant(name, rates) for name in EVERYONE]


def follow(
    weights: Sequence[Tensor],
    loss: Callable[[int], Tensor],
    optimizer: torch.optim.Optimizer,
    steps: int,
    target: float = -math.inf,
    keep: bool = False,
    evaluate: Callable[[], float] | None = None,
) -> Track:
    """Let an optimizer move the weights until the loss is at most `target`, it diverges, it stalls, or `steps` are over.

    loss(step) is the loss to differentiate at a step; evaluate() gives the loss that counts, where that is another one.
    """
    weights = list(weights)
    track = Track(type(optimizer).__name__, None, [], target=target)
    for step in range(steps + 1):
        closure: Any = partial(loss, step) if isinstance(optimizer, Newton) else partial(with_gradient, weights, loss, step)
        before = torch.cat([w.detach().flatten() for w in weights])
        after, why = before, ""
        value = math.nan if evaluate is None else evaluate()
        if step < steps:
            try:
                loss_before = float(optimizer.step(closure))  # the loss before the move
            except NumericalStop as stop:
                why = stop.what
            after = torch.cat([w.detach().flatten() for w in weights])
        if evaluate is None:
            value = loss_before if step < steps and not why else _value(loss, step)
        track.losses.append(value)
        if keep:
            track.path.append(before)
        if value <= target:
            track.fate = "reached"
        elif not math.isfinite(value) or value > BEYOND * (1 + abs(track.losses[0])):
            track.fate, track.why = "diverged", f"loss {value:.3g} after {step} steps"
        elif why:
            track.fate, track.why = "stalled", why
        elif step < steps and not after.isfinite().all():
            track.fate, track.why = "diverged", f"weights that are not finite after {step + 1} steps"
        elif step < steps and evaluate is None and torch.equal(before, after):
            track.fate, track.why = "stalled", f"no move from step {step + 1} on"
        if track.fate != "ran out":
            break
    return track


def race(
    start: Sequence[Tensor],
    loss: Callable[[list[Tensor], int], Tensor],
    entrants: Iterable[Entrant],
    steps: int,
    target: float = -math.inf,
    keep: bool = False,
    evaluate: Callable[[list[Tensor]], float] | None = None,
) -> list[Track]:
    """Every entrant from the same start, each at the best of its rates; the fewest steps to the target first.

    loss(weights, step) and evaluate(weights) see copies of `start`, which itself stays as it is.
    """
    tracks = []
    for each in entrants:
        best: Track | None = None
        enough = steps
        for rate in sorted(each.rates, reverse=True) or (1.0,):
            weights = [w.detach().clone().requires_grad_() for w in start]
            evaluation = None if evaluate is None else partial(evaluate, weights)
            track = follow(weights, partial(loss, weights), each.make(weights, rate), enough, target, keep, evaluation)
            track.name, track.rate = each.name, rate if each.rates else None
            if best is None or track.sort_key() < best.sort_key():
                best = track
            enough = best.steps or enough  # a slower one can stop at the best so far
        assert best is not None
        tracks.append(best)
    return sorted(tracks, key=Track.sort_key)


def columns(tracks: Sequence[Track]) -> dict[str, list[Any]]:
    """The tracks as columns of a table."""
    return {
        "optimizer": [track.name for track in tracks],
        "rate": ["its own" if track.rate is None else f"{track.rate:.3g}" for track in tracks],
        "steps to target": [track.steps for track in tracks],
        "last loss": [track.losses[-1] for track in tracks],
        "end": [track.end for track in tracks],
    }


def is_feasible(name: str, count: int) -> bool:
    """Whether a rule can take that many weights: a Hessian grows with their square."""
    return "newton" not in name or count <= LARGEST


def _value(loss: Callable[[int], Tensor], step: int) -> float:
    with torch.no_grad():
        return float(loss(step))


def with_gradient(weights: list[Tensor], loss: Callable[[int], Tensor], step: int) -> Tensor:
    """The closure torch's optimizers take: clear the gradients, compute the loss, differentiate it."""
    with torch.enable_grad():
        value = loss(step)
        for weight, gradient in zip(weights, torch.autograd.grad(value, weights, materialize_grads=True), strict=True):
            weight.grad = gradient
    return value.detach()


def _build(name: str, weights: list[Tensor], rate: float, **options: Any) -> torch.optim.Optimizer:
    return optimizer(name, lr=rate, **options).build([{"params": weights, "weight_decay": 0.0, "names": [""] * len(weights)}])


def _lbfgs(weights: list[Tensor], rate: float) -> torch.optim.Optimizer:
    return torch.optim.LBFGS(weights, max_iter=1, max_eval=30, line_search_fn="strong_wolfe")


def _newton(weights: list[Tensor], rate: float, **options: Any) -> torch.optim.Optimizer:
    return Newton(weights, **options)


def _descent(search: Any, weights: list[Tensor], rate: float) -> torch.optim.Optimizer:
    return Descent(weights, search=search)


SPECIAL: Mapping[str, tuple[MakeOptimizer, bool]] = {
    "momentum": (partial(_build, "sgd", momentum=0.9), False),
    "nesterov": (partial(_build, "sgd", momentum=0.9, nesterov=True), False),
    "lbfgs": (_lbfgs, True),
    "newton": (_newton, True),
    "damped_newton": (partial(_newton, indefinite="damp"), True),
    "exact": (partial(_descent, "exact"), True),
    "armijo": (partial(_descent, "armijo"), True),
    "wolfe": (partial(_descent, "wolfe"), True),
}
"""names beyond those of `sonde.optim.build`, and whether the rule finds its own rate"""
EVERYONE = (
    *("sgd", "momentum", "nesterov", "adagrad", "rmsprop", "adadelta", "adam", "adamw", "muon", "lion"),
    *("exact", "armijo", "wolfe", "lbfgs", "damped_newton"),
)
