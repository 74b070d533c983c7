"""The loss around a model's weights: along a line, between two sets of weights, and over a filter-normalized plane.

    line   L(theta + a d)            or  L((1 - a) theta_1 + a theta_2)  to another run of the same recipe
    plane  L(theta + a d1 + b d2)

Random directions are filter-normalized (Li et al. 2018): each row of a weight (a filter, a unit) gets the length of the
row it is added to, and biases and norms stay.  Without this the sharpness of a net that is invariant to the scale of its
weights would depend on that scale.  Running means and other buffers stay as they are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import torch

from ..core.errors import BadInput
from ..core.numbers import number
from ..core.options import Range
from ..core.reading import Lines, Plane, Reading, Subject
from ..core.seeds import generator
from ..engine.saved import open_model
from ..gradients.modes import of_parameters
from .tools.readonly import guard, no_gradient, preserve_state
from .tools.tiny import images

if TYPE_CHECKING:
    from torch import Tensor, nn

NamedWeights = Mapping[str, "Tensor"]
LOGARITHMIC = 50


def why_not(subject: Subject) -> str:
    """Why the lens does not apply to a subject, or ''; `guard` turns it into an error."""
    if missing := no_gradient(subject):
        return missing
    return "" if any(p.ndim > 1 and p.is_floating_point() for p in subject.model.parameters()) else "the model has no matrix of weights"


@guard
def read(
    subject: Subject,
    reach: Annotated[float, Range(above=0)] = 1.0,
    points: Annotated[int, Range(3, 201)] = 15,
    other: Path | None = None,
    seed: int = 0,
) -> list[Reading]:
    """Loss on the batch along one random direction, over the plane of two, and toward another run.

    Args:
        reach: how far to go in each direction; 1 moves each unit's weights by their own norm
        points: grid points along each axis of the plane; a line has four times as many
        other: a run of the same recipe; the loss on the line to its weights is shown too
        seed: seed of the random directions
    """
    fine = torch.linspace(-reach, reach, 4 * (points // 2) * 2 + 1, dtype=torch.float64)
    coarse = torch.linspace(-reach, reach, points, dtype=torch.float64)
    with preserve_state(subject.model):
        here = weights(subject.model)
        first, second = (direction(here, seed, name) for name in ("first", "second"))
        along = line(subject, here, first, fine)
        grid = plane(subject, here, (first, second), coarse, coarse)
    note = f"Loss on {len(subject.batch)} examples; 1 on an axis moves each unit's weights by their own norm. "
    readings = [
        _reading("Loss along a random direction", along, fine, note + f"At the model's weights {number(float(along[len(fine) // 2]))}."),
        Plane(
            "Loss over a random plane",
            {"loss": grid},
            axes=["first direction", "second direction"],
            note=note + shape(grid),
            x=coarse,
            y=coarse,
            levels=12,
            points={"weights": [[0.0, 0.0]]},
            log=logarithmic(grid, "value"),
        ),
    ]
    if other is not None:
        readings.append(_interpolate(subject, here, other, fine / reach))
    return readings


def weights(model: nn.Module) -> dict[str, Tensor]:
    """The model's parameters, detached."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def direction(here: NamedWeights, seed: int = 0, name: str = "first") -> dict[str, Tensor]:
    """A random direction whose rows have the norms of the rows of the weights; 0 for biases and normalization layers."""
    rng = generator(seed, "landscape", name)
    perturbation = {}
    for key, weight in here.items():
        if weight.ndim < 2 or not weight.is_floating_point():
            perturbation[key] = torch.zeros_like(weight)
            continue
        random = torch.randn(weight.shape, generator=rng, dtype=weight.dtype).to(weight.device).flatten(1)
        scale = weight.flatten(1).norm(dim=1, keepdim=True) / random.norm(dim=1, keepdim=True).clamp(min=1e-30)
        perturbation[key] = (random * scale).view_as(weight)
    return perturbation


def line(subject: Subject, here: NamedWeights, step: NamedWeights, positions: Tensor) -> Tensor:
    """Losses at `here + a step` for every a in `positions`."""
    zero = {name: torch.zeros_like(value) for name, value in step.items()}
    return plane(subject, here, (step, zero), positions, torch.zeros(1, dtype=positions.dtype))[0]


def plane(subject: Subject, here: NamedWeights, steps: tuple[NamedWeights, NamedWeights], across: Tensor, up: Tensor) -> Tensor:
    """Losses (up, across) at `here + a first + b second` for every a in `across` and b in `up`; NaN where the loss is not finite."""
    loss, _ = of_parameters(subject.model, lambda net: subject.objective(net, subject.batch).loss())
    losses = torch.empty(len(up), len(across), dtype=torch.float64)
    with torch.no_grad():
        for i, b in enumerate(up.tolist()):
            row = {name: weight + b * steps[1][name] for name, weight in here.items()}
            for j, a in enumerate(across.tolist()):
                value = float(loss({name: weight + a * steps[0][name] for name, weight in row.items()}))
                losses[i, j] = value if math.isfinite(value) else math.nan
    return losses


def shape(grid: Tensor) -> str:
    """In words: whether the center of a plane is its minimum, and the range of the loss."""
    rows, columns = grid.shape
    middle = float(grid[rows // 2, columns // 2])
    if not math.isfinite(middle):
        return "The loss at the weights of the model is not finite."
    low, high = (float(value) for value in grid[~grid.isnan()].aminmax())
    where = "the minimum" if middle <= low else f"not the minimum, which is {number(low)}"
    return f"From {number(low)} to {number(high)}; the weights of the model, {number(middle)}, are {where}."


def _interpolate(subject: Subject, here: NamedWeights, other: Path, positions: Tensor) -> Reading:
    there = weights(open_model(other))
    if {name: value.shape for name, value in there.items()} != {name: value.shape for name, value in here.items()}:
        raise BadInput(
            f"run '{other.name}' has weights of other names or shapes than this model",
            where="lens 'landscape'",
            fix="give a run of the same recipe",
        )
    alpha = positions + 0.5  # from -1/2 to 3/2: beyond both ends
    step = {name: there[name].to(value) - value for name, value in here.items()}
    with preserve_state(subject.model):
        losses = line(subject, here, step, alpha)
    inside = losses[(alpha >= 0) & (alpha <= 1)]
    ends = float(max(inside[0], inside[-1]))
    barrier = float(inside.max()) - ends
    remark = f"A barrier of {number(barrier)} above the higher end." if barrier > 0.01 * max(abs(ends), 1e-12) else "No barrier in between."
    note = f"0 is this model, 1 is run '{other.name}'; buffers are this model's. {remark}"
    return _reading("Loss on the line to another run", losses, alpha, note)


def _reading(title: str, losses: Tensor, positions: Tensor, note: str) -> Reading:
    return Lines(title, {"loss": losses}, axes=["step", "loss"], note=note, x=positions, log=logarithmic(losses, "y"))


def logarithmic(losses: Tensor, axis: str) -> list[str]:
    """The axis, as a list, where positive losses span a large factor; else an empty list."""
    good = losses[~losses.isnan()]
    return [axis] if good.numel() and float(good.min()) > 0 and float(good.max()) > LOGARITHMIC * float(good.min()) else []


def tiny() -> Subject:
    """A small subject for the contract tests."""
    return images()
