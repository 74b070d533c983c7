"""Race of optimizers from the same start, on the run's model and data or on a test function: steps, curves and trajectories.

The target is 90 % of the descent from the start to the lowest loss that any of them reaches.  Every optimizer is shown with
the best of the learning rates it was tried with; on a quadratic, its measured contraction per step is compared with
((k-1)/(k+1))^2, the upper bound for steepest descent with exact line search at condition number k.
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

DESCENT = 0.9
MAX_STORED = 20_000_000
"""numbers in all trajectories together; beyond that they are not stored, and no plane is drawn"""
GRID = 17


def why_not(subject: Subject) -> str:
    """Why the lens does not apply to a subject, or ''; `guard` turns it into an error."""
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
    """Compare optimizers: a table of results, loss curves, and trajectories.

    Args:
        rules: optimizers by name; besides those of torch: momentum, nesterov, lion, exact, armijo, wolfe, lbfgs, newton, damped_newton
        on: what to minimize: the loss of the run's model on its training data, or a test function of two weights
        steps: updates per optimizer
        rates: learning rates to try; the best one is shown
        batch_size: examples per update of the model
        start: new random weights, or here: the weights of the run
        condition: condition number of the quadratic
    """
    if not rules or not rates:
        raise BadInput("a race needs at least one optimizer and one rate", where="lens 'race'", fix="name them: --rules sgd adam")

    entrants = [entrant(rule, rates) for rule in dict.fromkeys(rules)]
    return _on_model(subject, entrants, steps, batch_size, start) if on == "model" else _on_surface(on, entrants, steps, condition)


def _on_model(subject: Subject, entrants: list[Any], steps: int, batch_size: int, start: Any) -> list[Reading]:
    with on_a_copy():
        trial = Trial(subject, start, batch_size)
        infeasible = [each.name for each in entrants if not is_feasible(each.name, trial.count)]
        entrants = [each for each in entrants if each.name not in infeasible]
        keep = trial.count * (steps + 1) * len(entrants) <= MAX_STORED
        tracks = race(trial.weights, trial.loss, entrants, steps, keep=keep, evaluate=trial.evaluate)
        notes = [
            f"Loss on {len(trial.examples)} training examples, batches of {trial.order.batch_size},",
            "from new random weights." if start == "fresh" else "from the weights of the run.",
            trial.note(),
            f"{', '.join(infeasible)} left out: {trial.count} weights are too many for a Hessian." if infeasible else "",
        ]
        readings = _results(tracks, " ".join(filter(None, notes)))
        return readings + (_plane(trial, tracks) if keep and trial.count > 1 else [])


def _on_surface(on: str, entrants: list[Any], steps: int, condition: float) -> list[Reading]:
    function = quadratic(condition) if on == "quadratic" else surface(on)
    with on_a_copy():
        origin = [torch.tensor(function.start, dtype=torch.float64)]
        tracks = race(origin, lambda weights, step: function.loss(weights[0]), entrants, steps, function.target, keep=True)
    x, y, loss = function.grid()
    note = f"From ({function.start[0]:g}, {function.start[1]:g}) on the {on} function."
    readings = _results(tracks, note, function.target)
    if on == "quadratic":
        bound = ((condition - 1) / (condition + 1)) ** 2
        readings[0] = replace(
            readings[0],
            values={**readings[0].values, "contraction per step": [contraction(track) for track in tracks]},
            note=f"{readings[0].note} Steepest descent with exact line search contracts the loss by "
            f"at most ((k-1)/(k+1))^2 = {bound:.4g} at k = {condition:g}.",
        )
    return [
        *readings,
        trajectories(f"Trajectories on the {on} function", x, y, loss, {track.name: track.path for track in tracks}),
    ]


def contraction(track: Track) -> float | None:
    """Mean factor on the loss per step, a geometric mean, for a loss whose minimum is 0."""
    losses = [loss for loss in track.losses if loss > 1e-300 and math.isfinite(loss)]
    return (losses[-1] / losses[0]) ** (1 / (len(losses) - 1)) if len(losses) > 1 else None


def trajectories(
    title: str, x: Any, y: Any, loss: Any, paths: dict[str, Any], axes: tuple[str, str] = ("first weight", "second weight")
) -> Plane:
    """Paths over the contours of a loss; the levels are closer together near the minimum."""
    height = np.asarray(loss, dtype=float)
    lowest, highest = float(np.nanmin(height)), float(np.nanmax(height))
    inside = {name: _inside(path, x, y) for name, path in paths.items()}
    levels = [lowest + (highest - lowest) * fraction**3 for fraction in np.linspace(0, 1, 14)[1:-1]]
    return Plane(title, {"loss": height}, axes=list(axes), x=x, y=y, levels=levels, paths=inside)


def _results(tracks: list[Track], note: str, target: float | None = None) -> list[Reading]:
    """A table of steps to the target, fewest first, and the losses over the steps."""
    top = tracks[0].losses[0]
    finite = [track for track in tracks if track.fate != "diverged"]
    low = min((min(track.losses) for track in finite), default=top)
    if target is None:
        target = top - DESCENT * (top - low)
        note = f"{note} Target {target:.4g}, 90 % of the descent from {top:.4g} to {low:.4g}."
    else:
        note = f"{note} Target {target:.4g}."
    for track in tracks:
        track.target = target  # on a model it is known only now
    tracks.sort(key=lambda track: track.sort_key())
    lines = {track.name: track.losses for track in tracks if track in finite}
    highest = max((max(line) for line in lines.values()), default=top)
    curves = Lines("Loss over the steps", lines, axes=["step", "loss"], log=["y"] if 0 < 20 * low < highest else [])
    return [Table("Race of optimizers", columns(tracks), note=note), *([curves] if lines else [])]


def _plane(trial: Any, tracks: list[Track]) -> list[Reading]:
    """The plane through the start that contains most of the trajectories' movement (PCA), with the loss over it."""
    finite = [track for track in tracks if track.fate != "diverged" and len(track.path) > 1]
    if not finite:
        return []
    start = finite[0].path[0]
    moves = torch.cat([torch.stack(track.path) - start for track in finite])
    _, sizes, axes = torch.linalg.svd(moves.double(), full_matrices=False)
    axes = axes[:2].to(start.dtype)
    if len(sizes) < 2 or float(sizes[1]) <= 1e-9 * float(sizes[0]):
        return []
    paths = {track.name: (torch.stack(track.path) - start) @ axes.T for track in finite}
    points = torch.cat(list(paths.values()))
    low, high = points.min(0).values, points.max(0).values
    low, high = low - 0.15 * (high - low), high + 0.15 * (high - low)
    x, y = (torch.linspace(float(low[i]), float(high[i]), GRID) for i in (0, 1))
    shapes, lengths = [weight.shape for weight in trial.weights], [weight.numel() for weight in trial.weights]
    rows = []
    for b in y:
        for a in x:
            flat = (start + a * axes[0] + b * axes[1]).split(lengths)
            rows.append(trial.evaluate([part.view(shape) for part, shape in zip(flat, shapes, strict=True)]))
    fraction = float(sizes[:2].square().sum() / sizes.square().sum())
    names = ("first principal direction", "second principal direction")
    losses = torch.tensor(rows).view(GRID, GRID)
    reading = trajectories("Trajectories in weight space", x, y, losses, paths, names)
    log = logarithmic(losses, "value")
    note = f"The plane contains {fraction:.0%} of the movement. The loss is shown on the plane; the trajectories are projected onto it."
    return [replace(reading, note=note, log=log, levels=12 if log else reading.levels)]


def _inside(path: Any, x: Any, y: Any) -> list[list[float]]:
    """The part of a path up to where it leaves the neighborhood of the picture."""
    left, right, low, high = float(x[0]), float(x[-1]), float(y[0]), float(y[-1])
    width, height = right - left, high - low
    inside = []
    for a, b in (map(float, point) for point in path):
        if not (left - width < a < right + width and low - height < b < high + height):
            break
        inside.append([min(max(a, left), right), min(max(b, low), high)])
    return inside


def tiny() -> Subject:
    """A small subject for the contract tests."""
    return values()
