"""Draws `Heat`: matrices as shaded cells, with their numbers where there is room, else with a scale."""

from __future__ import annotations

import math
from typing import Any

from ...core.numbers import number
from ...core.reading import Heat
from .paper import SCALE, Sheet, Theme, floats, inches, largest_of, short

DRAWN_CELLS = 30
"""matrices up to this size are drawn cell by cell, with their numbers where there is room"""
SMALLEST = 3.0
"""smallest font size of a number in a cell, in points"""
WORD = 7.0
"""font size of a word in a cell, in points"""


def paint(reading: Heat, theme: Theme, sheet: Sheet) -> None:
    panels = {name: [floats(row) for row in matrix] for name, matrix in reading.values.items()}
    first = next(iter(panels.values()), [])
    if not first or not first[0]:
        return sheet.nothing()
    rows, columns = len(first), len(first[0])
    row_names = [short(name, 18) for name in reading.rows or range(rows)]
    column_names = [short(name, 18) for name in reading.columns or range(columns)]
    words = [[short(word, 10) for word in row] for row in reading.words]
    several = len(panels) > 1
    each = min(0.42, max((3.8 if several else 4.2) / max(rows, columns), 0.02))
    wide, high = (max(0.24, inches([word for row in words for word in row], WORD) + 0.07), 0.24) if words else (each, each)
    texts = {name: _cell_texts(cells, words, wide, reading.diagonal) for name, cells in panels.items()}
    scales = {name: _ends(cells, reading.share == "row") for name, cells in panels.items() if words or not texts[name]}
    beside = max((inches([end for _, end in ends], 6.5) + 0.26 for ends in scales.values() if ends), default=0.0)
    turned = inches(column_names, 7.5) > wide * 0.92
    left = 0.36 + inches(row_names, 7.5)
    top = 0.34 + (inches(column_names, 7.5) * 0.95 if turned else 0.14) + 0.2 * several
    across = min(len(panels), 2)
    down, tall, step = math.ceil(len(panels) / across), top + rows * high + 0.1, left + columns * wide + 0.2 + beside
    sheet.open(max(across * step, 3.4), down * tall)
    for index, (name, cells) in enumerate(panels.items()):
        place = (left + index % across * step, 0.08 + (down - 1 - index // across) * tall)
        axes = sheet.axes(*place, columns * wide, rows * high)
        edge = min(1.2, wide * 4) if words or max(rows, columns) <= DRAWN_CELLS else None
        _cells(axes, theme, cells, texts[name], edge, reading.share == "row", reading.diagonal)
        if ends := scales.get(name):
            _scale(sheet, theme, ends, (place[0] + columns * wide + 0.1, place[1], rows * high), edge)
        across_every, down_every = max(1, math.ceil(0.13 / wide)), max(1, math.ceil(0.13 / high))
        axes.xaxis.tick_top()
        axes.xaxis.set_label_position("top")
        axes.set_xticks(range(0, columns, across_every), column_names[::across_every], rotation=90 if turned else 0, color=theme.ink)
        axes.set_yticks(range(0, rows, down_every), row_names[::down_every], color=theme.ink)
        for axis, put in zip(reading.axes[:2], (axes.set_ylabel, axes.set_xlabel), strict=False):
            put(short(axis, 40))
        if several:
            spot = place[0] / sheet.width, (sheet.floor + place[1] + rows * high + top - 0.2) / sheet.height
            sheet.figure.text(*spot, short(name, 40), size=8.5, va="bottom", color=theme.ink)
        for spine in axes.spines.values():
            spine.set_visible(False)


def _cell_texts(cells: list[list[float]], words: list[list[str]], wide: float, diagonal: bool) -> list[list[tuple[str, float]]]:
    """Text and font size of each cell; nothing where the text would be too small to read."""

    def cell_text(i: int, j: int) -> tuple[str, float]:
        if words:
            return words[i][j], WORD
        value = cells[i][j]
        if value != value or (diagonal and not value):
            return "", WORD
        text = number(int(value) if float(value).is_integer() else value)
        return text, min(8.0, wide * 72 / max(len(text), 2) * 1.35)

    if not words and max(len(cells), len(cells[0])) > DRAWN_CELLS:
        return []
    texts = [[cell_text(i, j) for j in range(len(row))] for i, row in enumerate(cells)]
    return texts if words or min(points for row in texts for _, points in row) >= SMALLEST else []


def _cells(
    axes: Any,
    theme: Theme,
    cells: list[list[float]],
    texts: list[list[tuple[str, float]]],
    edge: float | None,
    by_row: bool = False,
    off_diagonal: bool = False,
) -> None:
    """The cells of one matrix with their texts, separated by an edge of this width in points; without an edge, as an image."""
    from matplotlib.collections import PolyCollection
    from matplotlib.colors import to_rgba

    rows, columns = len(cells), len(cells[0])
    shade = _shades(cells, by_row)

    def color(i: int, j: int) -> tuple[float, ...]:
        second = (i != j) if off_diagonal else cells[i][j] < 0
        return to_rgba(theme.palette[1 if second else 0], shade[i][j])

    if edge is None:
        axes.imshow([[color(i, j) for j in range(columns)] for i in range(rows)], interpolation="nearest", aspect="auto")
    else:
        places = [(i, j) for i in range(rows) for j in range(columns)]
        squares = [[(j + x, i + y) for x, y in ((-0.5, -0.5), (0.5, -0.5), (0.5, 0.5), (-0.5, 0.5))] for i, j in places]
        axes.add_collection(PolyCollection(squares, facecolors=[to_rgba(theme.rule, 0.28)] * len(places)), autolim=False)
        axes.add_collection(
            PolyCollection(squares, facecolors=[color(i, j) for i, j in places], edgecolors=theme.paper, linewidths=edge), autolim=False
        )
    for i, row in enumerate(texts):
        for j, (text, points) in enumerate(row):
            axes.text(j, i + 0.02, text, ha="center", va="center", size=points, color=theme.paper if shade[i][j] > 0.55 else theme.ink)
    axes.set_xlim(-0.5, columns - 0.5)
    axes.set_ylim(rows - 0.5, -0.5)


def _ends(cells: list[list[float]], by_row: bool) -> list[tuple[float, str]]:
    """Labels of the scale of these cells, the largest first; none where all cells are 0."""
    largest = largest_of(cells)
    if not largest:
        return []
    if by_row:
        return [(1.0, "all of a row"), (0.0, "0")]
    signs = [sign for sign in (1, 0, -1) if not sign or any(v * sign > 0 for row in cells for v in row)]
    return [(sign * largest, number(sign * largest).replace("-", "−") if sign else "0") for sign in signs]


def _scale(sheet: Sheet, theme: Theme, ends: list[tuple[float, str]], place: tuple[float, float, float], edge: float | None) -> None:
    """A color bar from the largest number to the smallest, at the upper right corner of its matrix."""
    x, bottom, room = place
    (high, _), (low, _) = ends[0], ends[-1]
    height, steps = max(min(room, SCALE), 0.3), 96 if edge is None else 12
    ramp = [[high + (low - high) * i / steps] for i in range(steps + 1)]
    axes = sheet.axes(x, bottom + max(room - height, 0), 0.09, height)
    _cells(axes, theme, ramp, [], None if edge is None else 0.3)
    axes.yaxis.tick_right()
    axes.set_xticks([])
    axes.set_yticks([(high - value) / (high - low) * steps for value, _ in ends], [text for _, text in ends], size=6.5)
    axes.tick_params(axis="y", pad=2)
    for label, align in zip(axes.get_yticklabels(), ("top", *["center"] * (len(ends) - 2), "bottom"), strict=True):
        label.set_verticalalignment(align)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _shades(cells: list[list[float]], by_row: bool) -> list[list[float]]:
    """Opacity of every cell, 0 to 1; the square root makes small entries visible."""
    largest = largest_of(cells)
    shades = []
    for row in cells:
        scale = sum(abs(v) for v in row if math.isfinite(v)) if by_row else largest
        shades.append([math.sqrt(min(abs(v) / scale, 1.0)) if scale and math.isfinite(v) else 0.0 for v in row])
    return shades
