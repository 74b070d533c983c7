"""Latent traversal: decoded images while one coordinate of the code changes, or over a grid of two coordinates."""

from __future__ import annotations

from typing import Annotated, Any

import torch

from ..core.errors import BadInput
from ..core.numbers import number
from ..core.options import Range
from ..core.reading import Images, Reading, Subject
from .tools.codes import codes, decode_codes, no_codes, to_pictures
from .tools.readonly import CHUNK, check_index, guard, preserve_state
from .tools.tiny import autoencoder


def why_not(subject: Subject) -> str:
    """Why the lens does not apply to a subject, or ''; `guard` turns it into an error."""
    return no_codes(subject)


@guard
def read(
    subject: Subject,
    example: Annotated[int, Range(0)] = 0,
    coordinates: tuple[int, ...] = (),
    rows: Annotated[int, Range(1, 64)] = 8,
    steps: Annotated[int, Range(2, 64)] = 9,
    reach: Annotated[float, Range(above=0, most=100)] = 2.5,
) -> Reading:
    """A row of pictures for each coordinate of the code, or a grid over two of them.

    Args:
        example: index of the example whose code is the starting point
        coordinates: which to change; two give a grid, any other number a row each; default: those with the largest variance
        rows: how many coordinates to change by default
        steps: pictures per row, and rows of a grid
        reach: range in standard deviations, of the prior for a variational code, else of the codes of the batch
    """
    check_index("example", example, len(subject.batch))
    x = subject.batch.x
    with preserve_state(subject.model), torch.no_grad():
        prior = isinstance(subject.model.encode(x[:1]), tuple)
        known = torch.cat([codes(subject, part) for part in x.split(CHUNK)])
        shape, flat = known.shape[1:], known.flatten(1)
        spread = flat.double().std(0, correction=0)
        which = _check_coordinates(coordinates, flat.shape[1]) or _widest(spread, rows)
        middle, unit = (torch.zeros_like(spread), torch.ones_like(spread)) if prior else (flat.double().mean(0), spread)
        offsets = torch.linspace(-reach, reach, steps, dtype=torch.float64)
        grid = len(which) == 2
        changed = _grid(flat[example], which, middle, unit, offsets) if grid else _rows(flat[example], which, middle, unit, offsets)
        pictures = to_pictures(subject, decode_codes(subject, changed.unflatten(1, shape)))
    scale = "the prior's standard deviation" if prior else "standard deviations of the codes from their mean"
    ends = f"from {-reach:g} to {reach:g} {scale}"
    names = [f"{number(round(value, 2))}" for value in offsets.tolist()]
    deviations = ", ".join(f"{i}: {number(round(float(spread[i]), 3))}" for i in which)
    return Images(
        "Latent traversal",
        {"images": pictures},
        axes=["picture", "row", "column"],
        note=(
            f"Coordinate {which[1]} in columns and {which[0]} in rows, each {ends}" if grid else f"Each row changes one coordinate, {ends}"
        )
        + f"; the others are those of example {example}. Standard deviation of each over {len(x):,} examples: {deviations}.",
        across=steps,
        rows=[f"{name}" for name in names] if grid else [f"coordinate {i}" for i in which],
        labels=[*[""] * (len(pictures) - steps), *names],
        dense=True,
        results={"coordinates": which},
    )


def _check_coordinates(coordinates: tuple[int, ...], count: int) -> list[int]:
    if wrong := [i for i in coordinates if not 0 <= i < count]:
        raise BadInput(f"the code has no coordinate {wrong[0]}", where="lens 'traversal'", fix=f"choose 0 to {count - 1}")
    if len(set(coordinates)) < len(coordinates):
        raise BadInput("a coordinate is given twice", where="lens 'traversal'", fix="give each once")
    return list(coordinates)


def _widest(spread: Any, count: int) -> list[int]:
    return spread.argsort(descending=True, stable=True)[:count].tolist()


def _rows(code: Any, which: list[int], middle: Any, unit: Any, offsets: Any) -> Any:
    """(rows steps, K) the code with one coordinate per row changed by the offsets."""
    changed = code.repeat(len(which), len(offsets), 1)
    for row, i in enumerate(which):
        changed[row, :, i] = (middle[i] + unit[i] * offsets).to(code)
    return changed.flatten(0, 1)


def _grid(code: Any, which: list[int], middle: Any, unit: Any, offsets: Any) -> Any:
    """(steps steps, K) the code with the first coordinate changed by row and the second by column."""
    changed = code.repeat(len(offsets), len(offsets), 1)
    down, across = which
    changed[..., down] = (middle[down] + unit[down] * offsets).to(code).unsqueeze(1)
    changed[..., across] = (middle[across] + unit[across] * offsets).to(code)
    return changed.flatten(0, 1)


def tiny() -> Subject:
    """A small subject for the contract tests."""
    return autoencoder()
