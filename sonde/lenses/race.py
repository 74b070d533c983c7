"""Race of optimizers from one start, on the run's own model and data or on a test surface: steps, curves and trajectories.

The target is nine tenths of the way down from the start to the lowest loss that any of them reaches.  Every optimizer is
shown at the best of the rates it was tried at; on a surface that is a quadratic, its measured contraction per step stands
beside ((k-1)/(k+1))^2, the factor that steepest descent cannot exceed at condition number k.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import torch

from ..core.errors import BadInput
from ..core.options import Range
from ..core.reading import Lines, Plane, Reading, Subject, Table
from ..data.surfaces import quadratic, surface
from ..optim.race import columns, entrant, is_feasible, race
from .landscape import logarithmic
from .tools.readonly import guard, no_gradient
from .tools.tiny import values
from .tools.trial import Trial, on_a_copy

if TYPE_CHECKING:
    from ..optim.race import Track

DOWN = 0.9
MOST_KEPT = 20_000_000
"""numbers of all trajectories together; more are not kept, and their plane is not drawn"""
GRID = 17


def why_not(subject: Subject) -> str:
    return no_gradient(subject)


@guard
def read(
    subject: Subject,
    rules: tuple[str, ...] = ("sgd", "momentum", "rmsprop", "adam", "muon", "lion"),
    on: Literal["model", "quadratic", "rosenbrock", "saddle", "gabor"] = "model",
    steps: Annotated[int, Range(1, 10_000)] = 40,
    rates: Annotated[tuple[float, ...], Range(above=0)] = (0.001, 0.01, 0.1, 1.0),
    batch_size: Annotated[int, Range(1, 65536)] = 64,
    start: Literal["fresh", "here"] = "fresh",
    condition: Annotated[float, Range(1, 1e6)] = 10.0,
) -> list[Reading]:
    """Compare optimizers: a table of results, loss curves, and trajectories on a test surface.

    Args:
        rules: optimizers by name; beside those of torch: momentum, nesterov, lion, exact, armijo, wolfe, lbfgs, newton, damped_newton
        on: what is minimized: the run's model on its training data, or a test surface of two weights
        steps: updates of each
        rates: learning rates to try; the best one counts
        batch_size: examples per update of the model
        start: weights drawn afresh, or here, as they are
        condition: condition number of the quadratic
    """
    if not rules or not rates:
        raise BadInput("a race needs at least one optimizer and one rate", where="lens 'race'", fix="name them: --rules sgd adam")

    entrants = [entrant(rule, rates) for rule in dict.fromkeys(rules)]
    return _on_model(subject, entrants, steps, batch_size, start) if on == "model" else _on_surface(on, entrants, steps, condition)


def _on_model(subject: Subject, entrants: list[Any], steps: int, batch_size: int, start: Any) -> list[Reading]:
    with on_a_copy():
        trial = Trial(subject, start, batch_size)
        left_out = [each.name for each in entrants if not is_feasible(each.name, trial.count)]
        entrants = [each for each in entrants if each.name not in left_out]
        keep = trial.count * (steps + 1) * len(entrants) <= MOST_KEPT
        tracks = race(trial.weights, trial.loss, entrants, steps, keep=keep, evaluate=trial.evaluate)
        notes = [
            f"Loss on {len(trial.examples)} training examples, batches of {trial.order.batch_size},",
            "from fresh weights." if start == "fresh" else "from the run's own weights.",
            trial.note(),
            f"{', '.join(left_out)} left out: {trial.count} weights are too many for a Hessian." if left_out else "",
        ]
        readings = _results(tracks, " ".join(filter(None, notes)))
        return readings + (_plane(trial, tracks) if keep and trial.count > 1 else [])


def _on_surface(on: str, entrants: list[Any], steps: int, condition: float) -> list[Reading]:
    ground = quadratic(condition) if on == "quadratic" else surface(on)
    with on_a_copy():
        where = [torch.tensor(ground.start, dtype=torch.float64)]
        tracks = race(where, lambda weights, step: ground.loss(weights[0]), entrants, steps, ground.target, keep=True)
    x, y, loss = ground.grid()
    note = f"From ({ground.start[0]:g}, {ground.start[1]:g}) on the {on} surface."
    readings = _results(tracks, note, ground.target)
    if on == "quadratic":
        bound = ((condition - 1) / (condition + 1)) ** 2
        readings[0] = replace(
            readings[0],
            values={**readings[0].values, "contraction per step": [contraction(track) for track in tracks]},
            note=f"{readings[0].note} Steepest descent with exact line search contracts the loss by "
            f"((k-1)/(k+1))^2 = {bound:.4g} at k = {condition:g}.",
        )
    return [
        *readings,
        trajectories(f"Ways over the {on} surface", x, y, loss, {track.name: track.path for track in tracks}),
    ]


def contraction(track: Track) -> float | None:
    """Mean factor on the loss per step: the geometric mean over the way, for a loss whose minimum is 0."""
    losses = [loss for loss in track.losses if loss > 1e-300 and math.isfinite(loss)]
    return (losses[-1] / losses[0]) ** (1 / (len(losses) - 1)) if len(losses) > 1 else None


def trajectories(
    title: str, x: Any, y: Any, loss: Any, paths: dict[str, Any], axes: tuple[str, str] = ("first weight", "second weight")
) -> Plane:
    """Paths over the contour of a loss, whose levels are spaced so that the bottom shows as well as the slopes."""
    height = np.asarray(loss, dtype=float)
    lowest, highest = float(np.nanmin(height)), float(np.nanmax(height))
    inside = {name: _inside(path, x, y) for name, path in paths.items()}
    levels = [lowest + (highest - lowest) * share**3 for share in np.linspace(0, 1, 14)[1:-1]]
    return Plane(title, {"loss": height}, axes=list(axes), x=x, y=y, levels=levels, paths=inside)


def _results(tracks: list[Track], note: str, target: float | None = None) -> list[Reading]:
    """Who arrived when, first one first, and the losses over the steps."""
    top = tracks[0].losses[0]
    going = [track for track in tracks if track.fate != "diverged"]
    low = min((min(track.losses) for track in going), default=top)
    if target is None:
        target = top - DOWN * (top - low)
        note = f"{note} Target {target:.4g}, nine tenths of the way from {top:.4g} down to {low:.4g}."
    else:
        note = f"{note} Target {target:.4g}."
    for track in tracks:
        track.target = target  # on a model it is known only now
    tracks.sort(key=lambda track: track.sort_key())
    lines = {track.name: track.losses for track in tracks if track in going}
    highest = max((max(line) for line in lines.values()), default=top)
    curves = Lines("Loss over the steps", lines, axes=["step", "loss"], log=["y"] if 0 < 20 * low < highest else [])
    return [Table("Race of optimizers", columns(tracks), note=note), *([curves] if lines else [])]


def _plane(trial: Any, tracks: list[Track]) -> list[Reading]:
    """The plane in which the trajectories spread most, through the start, with the loss over it."""
    going = [track for track in tracks if track.fate != "diverged" and len(track.path) > 1]
    if not going:
        return []
    start = going[0].path[0]
    moves = torch.cat([torch.stack(track.path) - start for track in going])
    _, sizes, axes = torch.linalg.svd(moves.double(), full_matrices=False)
    axes = axes[:2].to(start.dtype)
    if len(sizes) < 2 or float(sizes[1]) <= 1e-9 * float(sizes[0]):
        return []
    paths = {track.name: (torch.stack(track.path) - start) @ axes.T for track in going}
    places = torch.cat(list(paths.values()))
    low, high = places.min(0).values, places.max(0).values
    low, high = low - 0.15 * (high - low), high + 0.15 * (high - low)
    x, y = (torch.linspace(float(low[i]), float(high[i]), GRID) for i in (0, 1))
    shapes, lengths = [weight.shape for weight in trial.weights], [weight.numel() for weight in trial.weights]
    rows = []
    for b in y:
        for a in x:
            flat = (start + a * axes[0] + b * axes[1]).split(lengths)
            rows.append(trial.evaluate([part.view(shape) for part, shape in zip(flat, shapes, strict=True)]))
    share = float(sizes[:2].square().sum() / sizes.square().sum())
    names = ("first principal direction", "second principal direction")
    losses = torch.tensor(rows).view(GRID, GRID)
    reading = trajectories("Ways through weight space", x, y, losses, paths, names)
    log = logarithmic(losses, "value")
    note = f"The plane holds {share:.0%} of all movement; the loss is that of the plane, the ways are seen from above."
    return [replace(reading, note=note, log=log, levels=12 if log else reading.levels)]


def _inside(path: Any, x: Any, y: Any) -> list[list[float]]:
    """A way as far as it stays near the picture."""
    left, right, low, high = float(x[0]), float(x[-1]), float(y[0]), float(y[-1])
    wide, tall = right - left, high - low
    kept = []
    for a, b in (map(float, place) for place in path):
        if not (left - wide < a < right + wide and low - tall < b < high + tall):
            break
        kept.append([min(max(a, left), right), min(max(b, low), high)])
    return kept


def tiny() -> Subject:
    return values()
