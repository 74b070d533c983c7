"""Draws `Table`: rules, aligned numbers and a row of totals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...core.errors import clean
from ...core.numbers import format_cell
from ...core.reading import Table
from .paper import ROW, Sheet, Theme, inches, short

MAX_ROWS = 80


def paint(reading: Table, theme: Theme, sheet: Sheet) -> None:
    from matplotlib.lines import Line2D

    heads = [short(name, 30) for name in reading.values]
    formats, total = reading.formats, reading.total
    length = max((len(column) for column in reading.values.values()), default=0)
    if not heads or not length:
        return sheet.nothing()
    columns = [
        [_shorten(format_cell(cell, formats.get(name, ""))) for cell in column[:MAX_ROWS]] for name, column in reading.values.items()
    ]
    right = [_numeric(column) for column in reading.values.values()]
    sums = [short(format_cell(total[name], formats.get(name, ""))) if name in total else "" for name in reading.values] if total else []
    if sums and not sums[0]:
        sums[0] = "total"
    widths = [inches([head, *column, *(sums[i : i + 1])], 8.5) + 0.26 for i, (head, column) in enumerate(zip(heads, columns, strict=True))]
    lines = min(length, MAX_ROWS) + 1 + bool(sums) + (length > MAX_ROWS)
    sheet.open(max(sum(widths) + 0.16, 3.0), ROW * lines + 0.16)
    y, edge = sheet.floor + ROW * lines - 0.02, sum(widths) + 0.08

    def write(cells: Sequence[str], **style: Any) -> None:
        x = 0.08
        for cell, width, to_right in zip(cells, widths, right, strict=False):
            sheet.text(x + width - 0.13 if to_right else x + 0.06, y, cell, ha="right" if to_right else "left", va="center", **style)
            x += width

    def rule(color: str) -> None:
        ends = [0.14 / sheet.width, edge / sheet.width], [(y + ROW / 2) / sheet.height] * 2
        sheet.figure.add_artist(Line2D(*ends, color=color, lw=0.7))

    write(heads, color=theme.muted, size=8)
    for index in range(min(length, MAX_ROWS)):
        y -= ROW
        rule(theme.muted if index == 0 else theme.rule)
        write([column[index] if index < len(column) else "" for column in columns])
    if length > MAX_ROWS:
        y -= ROW
        rule(theme.rule)
        sheet.text(0.14, y, f"… and {length - MAX_ROWS:,} more rows", va="center", color=theme.muted)
    if sums:
        y -= ROW
        rule(theme.muted)
        write(sums, weight="bold")


def _shorten(text: str, length: int = 40) -> str:
    """A shortened cell: cut at a space or comma, so that no number is cut in two."""
    text = clean(text)
    if len(text) <= length:
        return text
    cut = max(text.rfind(mark, length // 2, length) for mark in " ,")
    return text[: cut if cut > 0 else length - 1].rstrip(" ,") + "…"


def _numeric(column: Sequence[Any]) -> bool:
    return any(isinstance(cell, (int, float)) for cell in column) and not any(isinstance(cell, str) for cell in column)
