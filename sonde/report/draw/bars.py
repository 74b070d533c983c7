"""Draws `Bars`: heights side by side, one panel per name; histograms."""

from __future__ import annotations

import math

from ...core.reading import Bars
from .paper import NARROW, ROW, WIDE, Sheet, Theme, floats, inches, short, ticks


def paint(reading: Bars, theme: Theme, sheet: Sheet) -> None:
    if not any(len(series) for series in reading.values.values()):
        return sheet.nothing()
    if reading.edges:
        return _histogram(reading, theme, sheet)
    names = list(reading.values)
    count = max(len(series) for series in reading.values.values())
    labels = [short(label, reading.label_width) for label in reading.labels or range(count)]
    step = min(ROW, 12.0 / count)
    log = "value" in reading.log
    left, height = 0.24 + inches(labels, 8), step * count + 0.1
    width = WIDE if len(names) > 1 else NARROW
    sheet.open(max(width, left + 1.5 * len(names)), height + 0.62)
    gap = 0.3
    each = (sheet.width - left - 0.2 - gap * (len(names) - 1)) / len(names)
    for index, name in enumerate(names):
        axes = sheet.axes(left + index * (each + gap), 0.3, each, height)
        y, values = list(range(count)), floats(reading.values[name])
        color = theme.color(index)
        if log and any(value > 0 for value in values):  # a logarithmic axis has no zero for bars to start at: draw points
            axes.set_xscale("log")
            axes.plot(values, y, "o", color=color, ms=5)
            axes.hlines(y, 0, 1, color=theme.rule, lw=0.6, transform=axes.get_yaxis_transform(), zorder=0)
            positive = [value for value in values if value > 0 and math.isfinite(value)]
            axes.set_xlim(min(positive) / 2, max(positive) * 2)
        else:
            axes.barh(y, values, height=0.62, color=color)
            for row in (row for row, value in zip(y, values, strict=False) if math.isnan(value)):  # must not look like a bar of length 0
                axes.text(0, row, " not measured", size=6.5, va="center", color=theme.muted)
            for row, single in zip(y, reading.dots.get(name, []), strict=False):
                axes.plot(floats(single), [row] * len(single), "o", ms=3.2, color=theme.ink, mec=theme.paper, mew=0.5)
            axes.axvline(0, color=theme.muted, lw=0.8)
            axes.margins(x=0.06)
        axes.set_ylim(count - 0.4, -0.6)
        every = max(1, math.ceil(0.11 / step))
        axes.set_yticks(y[::every] if index == 0 else [], labels[::every] if index == 0 else [], color=theme.ink)
        axes.grid(axis="x")
        axes.spines["bottom"].set_visible(False)
        ticks(axes.xaxis, log, 4)
        axes.set_title(short(name, 30), size=8.5, color=color, loc="left", pad=5)


def _histogram(reading: Bars, theme: Theme, sheet: Sheet) -> None:
    edges = floats(reading.edges)
    sheet.open(NARROW, 2.7)
    axes = sheet.axes(0.62, 0.42, sheet.width - 0.82, 2.2)
    widths = [high - low for low, high in zip(edges, edges[1:], strict=False)]
    for index, series in enumerate(reading.values.values()):
        axes.bar(edges[:-1], floats(series), widths, align="edge", color=theme.color(index), edgecolor=theme.paper, linewidth=0.7)
    if edges[0] < 0 < edges[-1]:
        axes.axvline(0, color=theme.muted, lw=0.8)
    axes.grid(axis="y")
    axes.margins(x=0.01)
    ticks(axes.xaxis, False, 6)
    ticks(axes.yaxis, False, whole=all(isinstance(value, int) for series in reading.values.values() for value in series))
    axes.set_xlabel(short(reading.axes[0], 40) if reading.axes else "")
    axes.set_ylabel(short(reading.axes[1], 40) if len(reading.axes) > 1 else "")
