"""All linear regions of a small ReLU network with one or two inputs, computed exactly, with activation pattern and slope.

A ReLU network is linear wherever the same units are active.  With one input the regions are intervals, with two polygons.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import torch
from torch import nn

from ..core.batch import Batch
from ..core.errors import BadInput
from ..core.options import Range
from ..core.reading import Lines, Plane, Reading, Subject, Table
from ..models.piecewise import dense_layers, regions
from .tools.readonly import check_index, guard, no_model, preserve_state
from .tools.tiny import Nll, tiny_subject

if TYPE_CHECKING:
    from ..models.piecewise import Region

GRID = 121
COLORS = 6
MAX_REGIONS = 20
"""rows of the table"""
UNITS = 24
"""a pattern of more units is shortened"""


def why_not(subject: Subject) -> str:
    """Why the lens does not apply to a subject, or ''; `guard` turns it into an error."""
    missing = no_model(subject)
    if missing:
        return missing
    inputs = subject.batch.x[0].numel()
    if inputs not in (1, 2):
        return f"the model has {inputs} inputs, and regions can be shown for one or two"

    try:
        dense_layers(subject.model)
    except BadInput as error:
        return error.what
    return ""


@guard
def read(
    subject: Subject, output: Annotated[int, Range(least=0)] = 0, margin: Annotated[float, Range(least=0, most=100)] = 0.1
) -> list[Reading]:
    """Regions in the bounding box of the batch: a picture of the function with its regions, and a table.

    Args:
        output: index of the output to show
        margin: how far the box extends beyond the inputs, as a fraction of their range
    """
    x = subject.batch.x.detach().double().reshape(len(subject.batch), -1)
    low, high = x.amin(0), x.amax(0)
    extent = (high - low).clamp_min(1e-6)
    low, high = (low - margin * extent).tolist(), (high + margin * extent).tolist()
    pieces = regions(subject.model, low, high)
    check_index("output", output, len(pieces[0].bias))
    pictures = [_curve(pieces, output)] if x.shape[1] == 1 else _map(pieces, low, high, output)
    return [*pictures, table(pieces, output)]


def table(regions: list[Region], output: int = 0) -> Reading:
    """Pattern and slope of the largest regions, largest first; with one input and few regions, of all from left to right."""
    summary = _count_text(regions) + (f", the {MAX_REGIONS} largest are shown" if len(regions) > MAX_REGIONS else "")
    one_input = regions[0].corners.shape[1] == 1
    if len(regions) > MAX_REGIONS or not one_input:
        regions = sorted(regions, key=lambda region: -region.size)[:MAX_REGIONS]
    patterns = [_shorten(region.pattern) for region in regions]
    if one_input:
        columns: dict[str, list[Any]] = {
            "from": [float(region.corners[0, 0]) for region in regions],
            "to": [float(region.corners[1, 0]) for region in regions],
            "active units": patterns,
            "slope": [float(region.weight[output, 0]) for region in regions],
        }
    else:
        columns = {
            "area": [region.size for region in regions],
            "active units": patterns,
            "slope x": [float(region.weight[output, 0]) for region in regions],
            "slope y": [float(region.weight[output, 1]) for region in regions],
        }
    return Table("Linear regions", columns, note=f"{summary}; 1 is an active unit, | separates layers.")


def _shorten(pattern: str) -> str:
    """The pattern, or for a long one its beginning and the number of active units."""
    units = len(pattern.replace("|", ""))
    return pattern if units <= UNITS else f"{pattern[:12]}… {pattern.count('1')} of {units}"


def _count_text(regions: list[Region]) -> str:
    return f"{len(regions)} linear region{'s' if len(regions) != 1 else ''}"


def _curve(regions: list[Region], output: int) -> Reading:
    """The function at the ends of its regions, between which it is linear."""
    x = [float(regions[0].corners[0, 0]), *(float(region.corners[1, 0]) for region in regions)]
    y = [float((regions[max(i - 1, 0)].weight @ [point] + regions[max(i - 1, 0)].bias)[output]) for i, point in enumerate(x)]
    steps = {"x": x, "output": y}
    return Lines("Piecewise linear function", steps, axes=["x", "output"], note=f"{_count_text(regions)}, exactly.")


def _map(regions: list[Region], low: list[float], high: list[float], output: int) -> list[Reading]:
    columns, rows = (np.linspace(low[i], high[i], GRID) for i in range(2))
    points = np.stack(np.meshgrid(columns, rows), -1)
    home = locate(regions, points.reshape(-1, 2))
    weight, bias = (np.array([getattr(region, name)[output] for region in regions]) for name in ("weight", "bias"))
    value = (weight[home] * points.reshape(-1, 2)).sum(1) + bias[home]
    outlines = [region.corners for region in regions]
    function = Plane(
        "Piecewise linear function", {"output": value.reshape(GRID, GRID)}, axes=["x", "y"], x=columns, y=rows, outlines=outlines
    )
    shown = {"regions": np.array(colors(regions))[home].reshape(GRID, GRID)}
    note = f"{_count_text(regions)}, exactly; adjacent regions differ in one unit and in color."
    return [function, replace(function, title="Regions with the same active units", values=shown, note=note, classes=[""] * COLORS)]


def locate(regions: list[Region], points: Any) -> Any:
    """Index of the region that contains each point of the plane."""
    index = np.zeros(len(points), dtype=int)
    for number, region in enumerate(regions):
        edges = np.roll(region.corners, -1, 0) - region.corners
        inside = np.ones(len(points), dtype=bool)
        for corner, (dx, dy) in zip(region.corners, edges, strict=True):  # corners are in counterclockwise order
            inside &= dx * (points[:, 1] - corner[1]) - dy * (points[:, 0] - corner[0]) >= -1e-12
        index[inside] = number
    return index


def colors(regions: list[Region]) -> list[int]:
    """A color for every region that differs from its neighbors, if the palette allows; neighbors differ in a single unit."""
    bits = np.array([[bit == "1" for bit in region.pattern if bit != "|"] for region in regions])
    chosen: list[int] = []
    for number, row in enumerate(bits):
        near = {chosen[other] for other in np.flatnonzero((bits[:number] != row).sum(1) == 1)}
        free = [color for color in range(COLORS) if color not in near] or list(range(COLORS))
        chosen.append(min(free, key=lambda color: (chosen.count(color), color)))  # use the palette evenly
    return chosen


def tiny() -> Subject:
    """A small subject for the contract tests."""
    with preserve_state():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(2, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 1))
        batch = Batch(x=torch.randn(29, 2), y=torch.randn(29, 1), ids=torch.arange(29))
    return tiny_subject(net, batch, Nll(classes=False), task="values")
