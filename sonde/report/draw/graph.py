"""Draws `Diagram`: boxes and arrows between them."""

from __future__ import annotations

from typing import Any

from ...core.reading import Diagram
from .paper import NARROW, Sheet, Theme, short

PIXEL = 1 / 105
"""inches per pixel of the layout"""


def paint(reading: Diagram, theme: Theme, sheet: Sheet) -> None:
    from matplotlib.colors import to_rgba
    from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
    from matplotlib.path import Path as Curve

    boxes = list(zip(*(reading.values.get(name, []) for name in ("x", "y", "words", "kind")), strict=True))
    if not boxes:
        return sheet.nothing()
    wide, high = reading.box
    arrows = reading.edges
    across = [x + side * wide / 2 for x, *_ in boxes for side in (-1, 1)] + [x for arrow in arrows for x, _ in arrow]
    left, right, floor = min(across) - 8, max(across) + 8, max(y for _, y, *_ in boxes) + high + 8
    sheet.open(max((right - left) * PIXEL, NARROW), (floor + 8) * PIXEL)
    axes = sheet.axes(0.0, 0.0, (right - left) * PIXEL, (floor + 8) * PIXEL)
    axes.set_axis_off()
    axes.set_xlim(left, right)
    axes.set_ylim(floor, -8)
    for arrow in arrows:
        stops, codes = [arrow[0]], [Curve.MOVETO]
        for (x, y), (a, b) in zip(arrow, arrow[1:], strict=False):  # vertical at both ends
            stops += [[x, y + 0.6 * (b - y)], [a, b - 0.6 * (b - y)], [a, b]]
            codes += [Curve.CURVE4] * 3
        style: dict[str, Any] = {"arrowstyle": "-|>", "mutation_scale": 6, "lw": 0.8, "color": theme.muted, "shrinkA": 0, "shrinkB": 0}
        axes.add_patch(FancyArrowPatch(path=Curve(stops, codes), **style))
    colors = {"input": theme.palette[0], "parameter": theme.palette[1], "output": theme.ink}
    for x, y, words, kind in boxes:
        color = colors.get(kind, theme.muted)
        rounded = "round,pad=0,rounding_size=6"
        ground = to_rgba(color, 0.12 if kind in ("input", "parameter") else 0.0)
        axes.add_patch(FancyBboxPatch((x - wide / 2, y), wide, high, rounded, fc=ground, ec=color, lw=1.6 if kind == "output" else 0.8))
        for row, line in enumerate(words):
            spot = y + high * (row + 1) / (len(words) + 1)
            ink, size = (theme.muted, 6.5) if row else (theme.ink, 7.5)
            axes.text(x, spot, short(line, 28), size=size, color=ink, ha="center", va="center")
