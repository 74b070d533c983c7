"""Draws `Plane`: functions over a rectangle, with paths, points and arrows on top."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ...core.reading import Plane
from .paper import Sheet, Theme, floats, inches, short, ticks


def paint(reading: Plane, theme: Theme, sheet: Sheet) -> None:
    import numpy as np

    panels = {name: np.array([floats(row) for row in z]) for name, z in reading.values.items()}
    if not any(z.size for z in panels.values()):
        return sheet.nothing()
    x, y = (np.array(floats(places)) for places in reading.coordinates())
    named, classes = [*reading.paths, *reading.points], reading.classes
    colors = {name: i for i, name in enumerate(named)} | dict(reading.colors)
    legend = {short(name, 20): theme.color(colors[name]) for name in named}
    across = 2 if len(panels) == 4 else min(len(panels), 3)
    width = (3.4, 2.75, 2.1)[across - 1]
    height = width * min(1.3, max(0.5, float(np.ptp(y) / np.ptp(x)) if np.ptp(x) and np.ptp(y) else 1.0))
    left, gap, head = 0.62, 0.42 if classes else 0.86, 0.24 if len(panels) > 1 else 0.06
    down = math.ceil(len(panels) / across)
    right = (0.2 if classes else 0.62) + (inches(list(legend), 8.5) + 0.12 if legend else 0.0)
    sheet.open(left + across * width + (across - 1) * gap + right, down * (height + head) + (down - 1) * 0.3 + 0.46)
    for index, (name, z) in enumerate(panels.items()):
        column, row = index % across, index // across
        edge, base = left + column * (width + gap), 0.42 + (down - 1 - row) * (height + head + 0.3)
        axes = sheet.axes(edge, base, width, height)
        if classes:
            _flat(axes, theme, x, y, z, classes)
        else:
            _contours(axes, sheet.axes(edge + width + 0.07, base, 0.08, height), theme, x, y, z, reading)
        _overlay(axes, theme, reading, colors)
        axes.set_xlim(x.min(), x.max())
        axes.set_ylim(y.min(), y.max())
        ticks(axes.xaxis, False, 4)
        ticks(axes.yaxis, False, 4)
        axes.set_xlabel(short(reading.axes[0], 30) if reading.axes and row == down - 1 else "")
        axes.set_ylabel(short(reading.axes[1], 30) if len(reading.axes) > 1 and not column else "", labelpad=1)
        if len(panels) > 1:
            axes.set_title(short(name, int(width * 13)), size=8.5, color=theme.ink, loc="left", pad=5)
    for index, (label, color) in enumerate(legend.items()):
        sheet.text(sheet.width - right + (0.2 if classes else 0.62), sheet.floor + 0.42 + height - 0.1 - 0.2 * index, label, color=color)


def _contours(axes: Any, scale: Any, theme: Theme, x: Any, y: Any, z: Any, reading: Plane) -> None:
    """Shaded bands between contour lines, and a color bar.  Shading is the opacity of one color, so it also works on dark pages."""
    import numpy as np
    from matplotlib.colors import to_rgba
    from matplotlib.ticker import MaxNLocator

    log = "value" in reading.log and bool((z > 0).any())
    z = np.ma.masked_invalid(np.where(z > 0, z, math.nan) if log else z)
    if not z.count():
        return scale.set_axis_off()
    low, high = float(z.min()), float(z.max())
    levels = reading.levels
    if low == high:
        edges = [low - 1e-9 - abs(low) * 1e-9, high + 1e-9 + abs(high) * 1e-9]
    elif isinstance(levels, (int, float)):
        lines = np.geomspace(low, high, int(levels) + 2) if log else MaxNLocator(int(levels) + 1).tick_values(low, high)
        edges = [low, *(float(v) for v in lines if low < v < high), high]
    else:
        edges = [low, *sorted({float(v) for v in levels if low < v < high}), high]
    middles = [math.sqrt(a * b) if log else (a + b) / 2 for a, b in zip(edges, edges[1:], strict=False)]
    signed = low < 0 < high and min(-low, high) > 0.02 * max(-low, high)
    steps = [math.log(v / low) / max(math.log(high / low), 1e-9) if log else (v - low) / max(high - low, 1e-300) for v in middles]

    def shade(value: float, step: float) -> tuple[float, ...]:
        if reading.paths:  # colors are reserved for the paths
            return to_rgba(theme.muted, 0.03 + 0.42 * step**1.5)
        if signed:
            return to_rgba(theme.palette[0 if value > 0 else 1], 0.05 + 0.8 * abs(value) / max(-low, high))
        return to_rgba(theme.palette[0], 0.05 + 0.8 * step)

    fills = [shade(value, step) for value, step in zip(middles, steps, strict=True)]
    axes.contourf(x, y, z, levels=edges, colors=fills)
    if len(edges) > 2:
        axes.contour(x, y, z, levels=edges[1:-1], colors=[theme.muted], linewidths=0.45, linestyles="solid")
    scale.bar([0] * len(fills), np.diff(edges), 1, bottom=edges[:-1], align="edge", color=fills, linewidth=0)
    scale.set_yscale("log" if log else "linear")
    scale.set_xlim(0, 1)
    scale.set_ylim(edges[0], edges[-1])
    scale.set_xticks([])
    scale.yaxis.tick_right()
    ticks(scale.yaxis, log, 4)
    scale.spines["bottom"].set_visible(False)


def _flat(axes: Any, theme: Theme, x: Any, y: Any, z: Any, classes: Sequence[Any]) -> None:
    """One flat color per class, its name where it is farthest from every other class."""
    import numpy as np
    from matplotlib.colors import to_rgba
    from scipy.ndimage import distance_transform_edt

    for index, name in enumerate(classes):
        inside = z == index
        if not inside.any():
            continue
        axes.contourf(x, y, inside.astype(float), levels=[0.5, 1.5], colors=[to_rgba(theme.color(index), 0.3)])
        depth = distance_transform_edt(np.pad(inside, 1))[1:-1, 1:-1]
        row, column = np.unravel_index(depth.argmax(), depth.shape)
        if name and depth[row, column] > 0.035 * max(z.shape):
            axes.text(x[column], y[row], short(name, 16), size=8, ha="center", va="center", color=theme.ink)


def _overlay(axes: Any, theme: Theme, reading: Plane, colors: Mapping[str, int]) -> None:
    from matplotlib.collections import PolyCollection

    if reading.outlines:
        width = 0.8 if len(reading.outlines) < 40 else 0.35
        axes.add_collection(PolyCollection(reading.outlines, facecolors="none", edgecolors=theme.ink, linewidths=width), autolim=False)
    if reading.arrows:
        x, y, dx, dy = zip(*map(floats, reading.arrows), strict=True)
        axes.quiver(x, y, dx, dy, angles="xy", scale_units="xy", scale=1, color=theme.ink, width=0.004)
    for name, points in reading.points.items():
        x, y = zip(*map(floats, points), strict=True) if points else ((), ())
        axes.scatter(x, y, s=max(5.0, min(20.0, 3000 / max(len(x), 1))), color=theme.color(colors[name]), ec=theme.paper, lw=0.4, zorder=3)
    for name, path in reading.paths.items():
        x, y = zip(*map(floats, path), strict=True) if path else ((), ())
        color, few = theme.color(colors[name]), len(x) <= 40
        axes.plot(x, y, color=color, lw=1.3, marker="o" if few else None, ms=1.8, zorder=4)
        axes.plot(x[:1], y[:1], "o", color=color, mfc=theme.paper, ms=4.5, zorder=5)
        axes.plot(x[-1:], y[-1:], "o", color=color, ms=4.5, zorder=5)
