"""Draws `Scatter`: points in a plane or in space, colored by group."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ...core.reading import Scatter
from .paper import Sheet, Theme, floats, inches, short, ticks


def paint(reading: Scatter, theme: Theme, sheet: Sheet) -> None:
    names = [name for name in reading.axes[:3] if name in reading.values]
    names = names if len(names) >= 2 else list(reading.values)[:2]
    if len(names) < 2 or not len(reading.values[names[0]]):
        return sheet.nothing()
    if len(names) == 3:
        return _scatter_in_space(reading, theme, sheet, names)
    x, y = (floats(reading.values[name]) for name in names)
    groups, log = reading.groups, reading.log
    kinds = sorted(set(groups), key=str) if groups else []
    labels = [short(kind, 20) for kind in kinds]
    right = 0.2 + (inches(labels, 8.5) + 0.2 if labels else 0.0)
    sheet.open(3.9 + right, 3.7)
    axes = sheet.axes(0.66, 0.44, 3.1, 3.1)
    size = 6.0 if reading.labels else max(4.0, min(22.0, 6000 / len(x)))
    if reading.diagonal:
        ends = [min(v for v in x + y if math.isfinite(v)), max(v for v in x + y if math.isfinite(v))]
        axes.plot(ends, ends, color=theme.muted, lw=0.9)
    for index, kind in enumerate(kinds or [None]):
        mine = [i for i in range(len(x)) if not kinds or groups[i] == kind]
        axes.scatter([x[i] for i in mine], [y[i] for i in mine], s=size, color=theme.color(index), alpha=0.6, linewidths=0)
        if kinds:
            axes.text(1.03, 0.96 - 0.065 * index, labels[index], color=theme.color(index), transform=axes.transAxes, va="center")
    for axis, scale in (("x", axes.set_xscale), ("y", axes.set_yscale)):
        if axis in log:
            scale("log")
    axes.grid()
    ticks(axes.xaxis, "x" in log)
    ticks(axes.yaxis, "y" in log)
    axes.set_xlabel(short(names[0], 40))
    axes.set_ylabel(short(names[1], 40))
    _point_labels(axes, theme, list(zip(x, y, reading.labels, strict=False)))


def _point_labels(axes: Any, theme: Theme, points: Sequence[tuple[float, float, Any]]) -> None:
    """Labels at points (x, y, name), in order; a label without room on either side is left out."""
    axes.get_ylim()  # fixes the limits, on which the transform depends
    known = [(x, y, short(name, 16)) for x, y, name in points if math.isfinite(x) and math.isfinite(y)]
    spots = [tuple(float(v) / axes.figure.dpi for v in axes.transData.transform((x, y))) for x, y, _ in known]
    taken = [(across - 0.02, across + 0.02, up) for across, up in spots]  # in inches: points and labels that must not be covered
    for (x, y, text), (across, up) in zip(known, spots, strict=True):
        for side in (1, -1):
            edges = sorted((across + side * 0.03, across + side * (inches([text], 7.5) + 0.06)))
            if all(edges[1] < left or edges[0] > right or abs(up - other) > 0.09 for left, right, other in taken):
                taken.append((*edges, up))
                to = {"ha": "left" if side > 0 else "right", "va": "center"}
                axes.annotate(text, (x, y), (3 * side, 0), textcoords="offset points", size=7.5, color=theme.ink, **to)
                break


def _scatter_in_space(reading: Scatter, theme: Theme, sheet: Sheet, names: Sequence[str]) -> None:
    import numpy as np

    points = np.array([floats(reading.values[name]) for name in names])
    groups = np.array([str(group) for group in reading.groups])
    kinds = sorted(set(reading.groups), key=str)
    labels = [short(kind, 20) for kind in kinds]
    sheet.open(4.4 + (inches(labels, 8.5) if labels else 0.0), 3.4)
    axes = sheet.axes(0.05, -0.2, 3.9, 3.9, projection="3d")  # the 3-D axes leave empty space above and below
    axes.set_box_aspect((1, 1, 0.8), zoom=0.98)
    axes.view_init(*reading.view)
    size = max(1.2, min(18.0, 6000 / points.shape[1]))
    for index, kind in enumerate(kinds or [None]):
        mine = points if kind is None else points[:, groups == str(kind)]
        axes.scatter(*mine, s=size, color=theme.color(index), alpha=0.75, linewidths=0)
        if kinds:
            sheet.text(4.1, sheet.floor + 3.1 - 0.2 * index, labels[index], color=theme.color(index), va="center")
    for axis, name in zip((axes.xaxis, axes.yaxis, axes.zaxis), names, strict=True):
        axis.pane.fill = False
        axis.pane.set_edgecolor(theme.rule)
        axis.line.set_color(theme.muted)
        axis._axinfo["grid"].update(color=theme.rule, linewidth=0.6)  # matplotlib has no public way to style this grid
        axis.set_label_text(short(name, 30))
        axis.labelpad = -4
        ticks(axis, False, 4)
        axis.set_tick_params(pad=-1)
