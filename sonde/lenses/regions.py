"""The linear regions of a small ReLU network with one or two inputs: every one of them, exactly, with pattern and slope.

A ReLU network is linear wherever the same units are on.  On a line the regions are intervals, in the plane polygons.
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
MOST = 20
"""regions in the table"""
UNITS = 24
"""of a pattern that is written out"""


def why_not(subject: Subject) -> str:
    missing = no_model(subject)
    if missing:
        return missing
    inputs = subject.batch.x[0].numel()
    if inputs not in (1, 2):
        return f"the model has {inputs} inputs, and only regions on a line or in a plane can be shown"

    try:
        dense_layers(subject.model)
    except BadInput as error:
        return error.what
    return ""


@guard
def read(
    subject: Subject, output: Annotated[int, Range(least=0)] = 0, margin: Annotated[float, Range(least=0, most=100)] = 0.1
) -> list[Reading]:
    """Regions in the box of the batch: a picture of the function with its joints, and a table.

    Args:
        output: which number of the output to show
        margin: how far the box reaches beyond the inputs, as a share of their extent
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
    """Pattern and slope of the largest regions, largest first; on a line with few, of all in order."""
    summary = _count_text(regions) + (f", the {MOST} largest are shown" if len(regions) > MOST else "")
    on_a_line = regions[0].corners.shape[1] == 1
    if len(regions) > MOST or not on_a_line:
        regions = sorted(regions, key=lambda region: -region.size)[:MOST]
    patterns = [_shorten(region.pattern) for region in regions]
    if on_a_line:
        columns: dict[str, list[Any]] = {
            "from": [float(region.corners[0, 0]) for region in regions],
            "to": [float(region.corners[1, 0]) for region in regions],
            "units on": patterns,
            "slope": [float(region.weight[output, 0]) for region in regions],
        }
    else:
        columns = {
            "area": [region.size for region in regions],
            "units on": patterns,
            "slope x": [float(region.weight[output, 0]) for region in regions],
            "slope y": [float(region.weight[output, 1]) for region in regions],
        }
    return Table("Linear regions", columns, note=f"{summary}; a 1 stands for a unit that is on, a bar parts layers.")


def _shorten(pattern: str) -> str:
    """A pattern as it is, or where it is long its beginning and how many units are on."""
    units = len(pattern.replace("|", ""))
    return pattern if units <= UNITS else f"{pattern[:12]}… {pattern.count('1')} of {units}"


def _count_text(regions: list[Region]) -> str:
    return f"{len(regions)} linear region{'s' if len(regions) != 1 else ''}"


def _curve(regions: list[Region], output: int) -> Reading:
    """The function through its joints: straight between them, so these points are all of it."""
    x = [float(regions[0].corners[0, 0]), *(float(region.corners[1, 0]) for region in regions)]
    y = [float((regions[max(i - 1, 0)].weight @ [place] + regions[max(i - 1, 0)].bias)[output]) for i, place in enumerate(x)]
    steps = {"x": x, "output": y}
    return Lines("A function in pieces", steps, axes=["x", "output"], note=f"{_count_text(regions)}, exactly.")


def _map(regions: list[Region], low: list[float], high: list[float], output: int) -> list[Reading]:
    columns, rows = (np.linspace(low[i], high[i], GRID) for i in range(2))
    points = np.stack(np.meshgrid(columns, rows), -1)
    home = locate(regions, points.reshape(-1, 2))
    weight, bias = (np.array([getattr(region, name)[output] for region in regions]) for name in ("weight", "bias"))
    value = (weight[home] * points.reshape(-1, 2)).sum(1) + bias[home]
    outlines = [region.corners for region in regions]
    function = Plane("A function in pieces", {"output": value.reshape(GRID, GRID)}, axes=["x", "y"], x=columns, y=rows, outlines=outlines)
    shown = {"regions": np.array(colors(regions))[home].reshape(GRID, GRID)}
    note = f"{_count_text(regions)}, exactly; neighbors differ in one unit and in color."
    return [function, replace(function, title="Where the same units are on", values=shown, note=note, classes=[""] * COLORS)]


def locate(regions: list[Region], points: Any) -> Any:
    """The number of the region each point of the plane lies in."""
    home = np.zeros(len(points), dtype=int)
    for number, region in enumerate(regions):
        edges = np.roll(region.corners, -1, 0) - region.corners
        inside = np.ones(len(points), dtype=bool)
        for corner, (dx, dy) in zip(region.corners, edges, strict=True):  # corners go round to the left
            inside &= dx * (points[:, 1] - corner[1]) - dy * (points[:, 0] - corner[0]) >= -1e-12
        home[inside] = number
    return home


def colors(regions: list[Region]) -> list[int]:
    """A color for every region that no neighbor has, as far as the palette goes: neighbors differ in a single unit."""
    bits = np.array([[bit == "1" for bit in region.pattern if bit != "|"] for region in regions])
    chosen: list[int] = []
    for number, row in enumerate(bits):
        near = {chosen[other] for other in np.flatnonzero((bits[:number] != row).sum(1) == 1)}
        free = [color for color in range(COLORS) if color not in near] or list(range(COLORS))
        chosen.append(min(free, key=lambda color: (chosen.count(color), color)))  # the palette is used evenly
    return chosen


def tiny() -> Subject:
    with preserve_state():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(2, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 1))
        batch = Batch(x=torch.randn(29, 2), y=torch.randn(29, 1), ids=torch.arange(29))
    return tiny_subject(net, batch, Nll(classes=False), task="values")
