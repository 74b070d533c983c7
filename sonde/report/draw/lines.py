"""Draws `Lines`: named series over a common axis, with labels at the ends of the lines."""

from __future__ import annotations

import math
from typing import Any

from ...core.reading import Lines
from .paper import NARROW, Sheet, Theme, floats, inches, short, ticks

DASH = 0.28
"""inches of the line sample before a label"""
EARLY = 0.85
"""a line that ends before this fraction of the width has its label at its end"""


def paint(reading: Lines, theme: Theme, sheet: Sheet) -> None:
    values = {name: (floats(x), floats(y)) for name, (x, y) in reading.curves().items()}
    drawn = {value for _, y in values.values() for value in y if value == value}
    if not any(y for _, y in values.values()):
        return sheet.nothing()
    log: set[str] = set(reading.log)
    if not any(value > 0 for value in drawn):
        log -= {"y"}
    alone = len(values) == 1 and next(iter(values)) in reading.axes  # the title already says what the only line is
    labels = [] if alone else [short(name, 22) for name in values]
    color_of = {name: reading.colors.get(name, index) for index, name in enumerate(values)}
    thin = reading.thin
    dashed = not thin and any(index >= len(theme.palette) for index in color_of.values())  # colors repeat, so labels show their dash
    right = 0.16 + (inches(labels, 8.5) + 0.06 + DASH * dashed if labels else 0.0)
    upright = {words: x for words, x in reading.marks.items() if x is not None}
    y_name = short(reading.axes[1], 30) if len(reading.axes) > 1 else ""
    left, height = 0.78 if y_name else 0.62, max(2.5, 0.15 * len(labels) + 0.6)
    sheet.open(NARROW + max(0.0, right - 1.1), height + 0.15 * len(upright))
    axes = sheet.axes(left, 0.42, sheet.width - left - right, height - 0.5)
    ends = []
    for index, (name, (x, y)) in enumerate(values.items()):
        color, dash = theme.color(color_of[name]), "-" if thin else theme.dash(color_of[name])
        window = reading.smooth.get(name, 0)
        few = sum(value == value for value in y) <= 14
        width, size = (0.7 if window > 1 or thin else 1.7), (3.2 + 1.4 * (index % 4) if thin else 3.2)
        ring = {"mfc": "none", "mew": 0.7} if thin else {}
        axes.plot(x, y, dash, color=color, lw=width, alpha=0.35 if window > 1 else 1.0, marker="o" if few else None, ms=size, **ring)
        if window > 1:
            y = _running_mean(y, window)
            axes.plot(x, y, dash, color=color, lw=1.7)
        last = next((i for i in reversed(range(len(y))) if math.isfinite(y[i])), None)
        if last is not None and labels:
            ends.append((x[last], y[last], labels[index], color, dash if dashed else ""))
    for axis, scale in (("x", axes.set_xscale), ("y", axes.set_yscale)):
        if axis in log:
            scale("log")
    axes.grid(axis="y")
    axes.margins(x=0.02, y=0.06)
    if len(drawn) == 1 and min(drawn) > 0 and "y" not in log:
        axes.set_ylim(0, 2 * min(drawn))  # the only scale of a constant is its distance from zero
    top = reading.top
    if top is not None and axes.get_ylim()[0] < top < axes.get_ylim()[1]:
        low = min(drawn)  # otherwise the margin below would be computed from the whole height
        axes.set_ylim(low / (top / low) ** 0.06 if "y" in log else low - 0.06 * (top - low), top)
    ticks(axes.xaxis, "x" in log, 6)
    if reading.ticks is not None:
        axes.set_xticks(floats(reading.ticks))
        axes.set_xticks([], minor=True)
    ticks(axes.yaxis, "y" in log)
    axes.set_xlabel(short(reading.axes[0] if reading.axes else "", 40))
    axes.set_ylabel(y_name, labelpad=2)
    for row, (words, at) in enumerate(sorted(upright.items(), key=lambda mark: mark[1])):
        axes.axvline(at, color=theme.muted, lw=0.9, ls=":")
        to_left = axes.transAxes.inverted().transform(axes.transData.transform((at, 1)))[0] > 0.5
        spot = (at, 1 + (0.06 + 0.15 * row) / (height - 0.5))
        axes.text(*spot, short(words, 40), size=7.5, ha="right" if to_left else "left", transform=axes.get_xaxis_transform())
    _end_labels(axes, ends)


def _running_mean(values: list[float], window: int) -> list[float]:
    """Mean over a centered window, truncated at the ends, ignoring NaN."""
    half, means = window // 2, []
    for i in range(len(values)):
        near = [v for v in values[max(0, i - half) : i + half + 1] if math.isfinite(v)]
        means.append(sum(near) / len(near) if near else math.nan)
    return means


def _end_labels(axes: Any, ends: list[tuple[float, float, str, str, str]]) -> None:
    """Labels at the last points (x, y, name, color, dash), moved apart until none overlaps another."""
    from matplotlib.lines import Line2D

    if not ends:
        return
    axes.get_ylim()  # fixes the limits, on which the transform depends
    box = axes.get_window_extent()
    gap = 12.0 / box.height * axes.figure.dpi / 100 * 1.3
    anchors = []
    for x, y, *style in ends:
        across, up = axes.transAxes.inverted().transform(axes.transData.transform((x, y)))
        anchors.append((min(max(up, 0.0), 1.0), across if across < EARLY else 1.0, *style))  # near the edge they are aligned in one column
    anchors.sort()
    spots: list[float] = []
    for height, *_ in anchors:
        spots.append(max(height, spots[-1] + gap) if spots else height)
    excess = max(0.0, spots[-1] - 1.0)
    spots[-1] -= excess
    for i in range(len(spots) - 2, -1, -1):
        spots[i] = min(spots[i], spots[i + 1] - gap)
    for spot, (_, across, label, color, dash) in zip(spots, anchors, strict=True):
        left = across + 0.015
        if dash:
            wide = DASH * axes.figure.dpi / box.width
            axes.add_artist(
                Line2D([left, left + 0.8 * wide], [spot] * 2, ls=dash, color=color, lw=1.5, transform=axes.transAxes, clip_on=False)
            )
            left += wide
        axes.text(left, spot, label, color=color, size=8.5, va="center", ha="left", transform=axes.transAxes)
