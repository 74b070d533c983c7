"""Draws `Text`: a text with a colored background on each token."""

from __future__ import annotations

from typing import Any

from ...core.errors import clean
from ...core.numbers import number
from ...core.reading import Text
from .paper import NARROW, ROW, Sheet, Theme, floats, short

LETTER = 9 / 72 * 0.602
"""width of a letter in inches"""
LETTERS = 72
"""letters per line"""


def paint(reading: Text, theme: Theme, sheet: Sheet) -> None:
    from matplotlib.colors import to_rgba
    from matplotlib.patches import Rectangle

    unit = reading.axes[1] if len(reading.axes) > 1 else next((name for name in reading.values if name != "token"), "")
    tokens, values = [clean(token) for token in reading.values.get("token", [])], floats(reading.values.get(unit, []))
    if not tokens:
        return sheet.nothing()
    places, x, y = [], 0, 0
    for token in tokens:
        if x and x + len(token) > LETTERS:
            x, y = 0, y + 1
        places.append((x, y))
        x, y = (0, y + 1) if token.endswith("\u21b5") else (x + len(token), y)
    largest = max((value for value in values if value == value), default=0.0) if reading.top is None else float(reading.top)
    lines = max(row for _, row in places) + 1
    sheet.open(max(LETTERS * LETTER + 0.3, NARROW), ROW * (lines + 1.8))
    axes = sheet.axes(0.14, 0.04, LETTERS * LETTER, ROW * (lines + 1.6))
    axes.set_axis_off()
    axes.set_xlim(0, LETTERS)
    axes.set_ylim(lines + 1.1, -0.5)

    def mark(x: float, y: float, width: float, value: float) -> None:
        shade = 0.04 + 0.76 * max(value, 0.0) / largest if largest > 0 else 0.04
        axes.add_patch(Rectangle((x, y - 0.42), width, 0.84, fc=to_rgba(theme.palette[1], shade), ec=theme.paper, lw=0.6))

    style: dict[str, Any] = {"size": 9, "family": "DejaVu Sans Mono", "va": "center_baseline", "color": theme.ink}
    for token, value, (x, y) in zip(tokens, values, places, strict=False):
        if value == value:
            mark(x, y, len(token), value)
        axes.text(x, y, token, **style)
    for step in range(5):  # the color scale
        mark(step * 6, lines + 0.6, 6, step / 4 * largest)
        axes.text(
            step * 6 + 3, lines + 0.6, number(float(f"{step / 4 * largest:.2g}")), size=7.5, ha="center", va="center", color=theme.ink
        )
    axes.text(31, lines + 0.6, short(unit, 30), size=7.5, va="center", color=theme.muted)
