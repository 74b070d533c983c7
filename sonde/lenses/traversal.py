"""Traversal: what an auto-encoder draws while one number of the code moves and the others stay, or over a plane of two."""

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
        example: whose code stays, which of the batch, from 0
        coordinates: which to move; two give a grid, any other number a row each, none those that differ most between examples
        rows: how many to move where none are named
        steps: pictures of a row, and rows of a grid
        reach: how far to go both ways, in standard deviations: those of the prior of a variational code, else of the codes of the batch
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
        way = torch.linspace(-reach, reach, steps, dtype=torch.float64)
        grid = len(which) == 2
        moved = _grid(flat[example], which, middle, unit, way) if grid else _rows(flat[example], which, middle, unit, way)
        pictures = to_pictures(subject, decode_codes(subject, moved.unflatten(1, shape)))
    scale = "the prior's standard deviation" if prior else "standard deviations of the codes from their mean"
    ends = f"from {-reach:g} to {reach:g} {scale}"
    names = [f"{number(round(value, 2))}" for value in way.tolist()]
    spent = ", ".join(f"{i}: {number(round(float(spread[i]), 3))}" for i in which)
    return Images(
        "Traversal of the code",
        {"images": pictures},
        axes=["picture", "row", "column"],
        note=(f"Coordinate {which[1]} across and {which[0]} down, each {ends}" if grid else f"Each row moves one number, {ends}")
        + f"; the others stay those of example {example}. Standard deviation of each over {len(x):,} examples: {spent}.",
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
        raise BadInput("a coordinate is named twice", where="lens 'traversal'", fix="name each once")
    return list(coordinates)


def _widest(spread: Any, most: int) -> list[int]:
    return spread.argsort(descending=True, stable=True)[:most].tolist()


def _rows(code: Any, which: list[int], middle: Any, unit: Any, way: Any) -> Any:
    """(rows steps, K) the code with one number after the other moved along the way."""
    moved = code.repeat(len(which), len(way), 1)
    for row, i in enumerate(which):
        moved[row, :, i] = (middle[i] + unit[i] * way).to(code)
    return moved.flatten(0, 1)


def _grid(code: Any, which: list[int], middle: Any, unit: Any, way: Any) -> Any:
    """(steps steps, K) the code with the first number moved down and the second across."""
    moved = code.repeat(len(way), len(way), 1)
    down, across = which
    moved[..., down] = (middle[down] + unit[down] * way).to(code).unsqueeze(1)
    moved[..., across] = (middle[across] + unit[across] * way).to(code)
    return moved.flatten(0, 1)


def tiny() -> Subject:
    return autoencoder()
