"""A Reading as text for a terminal.  What cannot be shown as text is counted; the picture shows it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ..core.errors import clean
from .terminal import bold, table, wants_color, wide, width

if TYPE_CHECKING:
    from ..core.reading import Bars, Heat, Lines, Plane, Reading, Table, Text

ROWS = 40
COLUMNS = 16
LEVELS = 5
"""number of colors over a text"""
LARGEST = 8
"""tokens with the largest numbers that are listed below a text"""


def text(reading: Reading) -> str:
    """Title, table and note."""
    parts = (bold(clean(reading.title)), SHAPES[reading.kind](reading), wide(clean(reading.note)) if reading.note else "")
    return "\n".join(part for part in parts if part)


def _table(reading: Table) -> str:
    from ..core.numbers import format_cell

    formats = reading.formats
    names = list(reading.values)
    rows = [[format_cell(cell, formats.get(name, "")) for name, cell in zip(names, row, strict=True)] for row in _columns(reading)]
    more = f"\n... and {len(rows) - ROWS} more" if len(rows) > ROWS + 20 else ""
    rows = rows[:ROWS] if more else rows
    total = reading.total
    if total:
        rows.append(
            [
                "total" if i == 0 else format_cell(total[name], formats.get(name, "")) if name in total else ""
                for i, name in enumerate(names)
            ]
        )
    return table(names, rows) + more


def _bars(reading: Bars) -> str:
    rows = list(_columns(reading))
    bins = [f"{a:.4g} to {b:.4g}" for a, b in zip(reading.edges, reading.edges[1:], strict=False)]
    marks = reading.labels or bins or range(len(rows))
    return _fit_width(
        [reading.axes[0] if reading.axes else "", *reading.values], [[mark, *row] for mark, row in zip(marks, rows, strict=True)]
    )


def _lines(reading: Lines) -> str:
    rows = []
    for name, values in reading.values.items():
        known = [value for value in values if value is not None and value == value]
        rows.append([name, len(values), *((known[0], known[-1], min(known), max(known)) if known else (None,) * 4)])
    return _fit_width(["line", "points", "first", "last", "lowest", "highest"], rows)


def _heat(reading: Heat) -> str:
    parts = []
    for name, matrix in reading.values.items():
        rows = reading.rows or range(len(matrix))
        heads = reading.columns or range(len(matrix[0]) if matrix else 0)
        if len(heads) > COLUMNS or len(matrix) > ROWS:
            parts.append(f"{name}: {len(matrix)} x {len(heads)}")
        else:
            corner = " / ".join(reading.axes[:2])
            parts.append(table([corner, *map(str, heads)], [[mark, *row] for mark, row in zip(rows, matrix, strict=True)]))
    return "\n".join(parts)


def _plane(reading: Plane) -> str:
    rows = []
    for name, panel in reading.values.items():
        known = [value for row in panel for value in row if value is not None and value == value]
        rows.append([name, f"{len(panel)} x {len(panel[0]) if panel else 0}", *((min(known), max(known)) if known else (None, None))])
    return _fit_width(["panel", "points", "lowest", "highest"], rows)


def _text(reading: Text) -> str:
    """The text with each token on a color for its number, a legend of the colors, and the largest numbers."""
    from rich.console import Console
    from rich.text import Text as Styled

    tokens, unit = [clean(token) for token in reading.values["token"]], reading.axes[1]
    values = [math.nan if value is None else float(value) for value in reading.values[unit]]
    known = [value for value in values if not math.isnan(value)]
    top = max(known, default=0.0) if reading.top is None else float(reading.top)

    def style(value: float) -> str:
        if math.isnan(value):
            return "dim"
        level = round((LEVELS - 1) * min(max(value / top, 0.0), 1.0)) if top > 0 else 0
        return f"black on rgb(255,{250 - 35 * level},{240 - 50 * level})"

    shown = Styled()
    for token, value in zip(tokens, values, strict=True):
        shown.append(token, style(value))
        shown.append("\n" if token.endswith("\u21b5") else "")
    console = Console(width=width(), force_terminal=wants_color(), no_color=not wants_color(), highlight=False)
    with console.capture() as captured:
        console.print(shown)
        if wants_color():
            steps = [top * level / (LEVELS - 1) for level in range(LEVELS)]
            console.print(f"{clean(unit)}:", *(Styled(f" {value:.2g} ", style(value)) for value in steps))
    largest = sorted(range(len(known)), key=lambda i: -known[i])[:LARGEST]
    counted = [token for token, value in zip(tokens, values, strict=True) if not math.isnan(value)]
    ranking = ", ".join(f"'{counted[i]}' {known[i]:.3g}" for i in largest)
    return captured.get().rstrip("\n") + (f"\nlargest {clean(unit)}: {ranking}" if ranking else "")


def _plural(what: str) -> Any:
    return lambda reading: f"{len(next(iter(reading.values.values()), []))} {what}"


def _columns(reading: Reading) -> Iterator[Sequence[Any]]:
    return zip(*reading.values.values(), strict=True)


def _fit_width(heads: Sequence[str], rows: list[list[Any]]) -> str:
    more = f"\n... and {len(rows) - ROWS} more" if len(rows) > ROWS else ""
    return table(heads, rows[:ROWS]) + more


SHAPES = {
    "table": _table,
    "bars": _bars,
    "lines": _lines,
    "heat": _heat,
    "plane": _plane,
    "scatter": _plural("points"),
    "images": _plural("pictures"),
    "graph": _plural("boxes"),
    "text": _text,
}
