"""Draws `Images`: pictures in rows with captions, heat laid over them and frames around parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...core.numbers import number
from ...core.reading import Images
from .paper import NARROW, SCALE, WIDE, Sheet, Theme, floats, inches, largest_of, short

OPAQUE, PALE = 0.85, 0.5
"""opacity of the strongest heat, and of the picture below it"""


def paint(reading: Images, theme: Theme, sheet: Sheet) -> None:
    pictures: Sequence[Any] = next(iter(reading.values.values()), [])
    first = next((picture for picture in pictures if picture is not None), None)
    if first is None:
        return sheet.nothing()
    dense, heat, frames = reading.dense, reading.heat, reading.frames
    captions = [words for words in (reading.labels, reading.details) if words]
    row_names = [short(name, 22) for name in reading.rows]
    legend = {name: index for index, name in enumerate(dict.fromkeys(name for boxes in frames for name in boxes))}
    indent = inches(row_names, 7.5) + 0.12 if row_names else 0.0
    beside = inches([short(name) for name in legend], 7.5) + 0.1 if legend else 0.0
    tall, wide = len(first), len(first[0])
    gap, room = 0.08 if dense else 0.22, WIDE - 0.2 - indent - beside
    each = (0.5 if dense else 0.86) if reading.size is None else reading.size
    if across := reading.across:
        each = min(each, max(room / across - gap, 0.1))
    width, height = each * min(1.0, wide / tall), each * min(1.0, tall / wide)
    step = (width if across else each) + gap  # a grid of pictures has no extra space between its columns
    across = across or max(1, min(len(pictures), int(room / (each + gap))))
    rows = range(0, len(pictures), across)
    below = [0.16 * sum(any(words[start : start + across]) for words in captions) for start in rows]
    tops = [sum(below[:row]) + row * (height + gap) for row in range(len(rows))]
    foot = 0.3 if any(each is not None for each in heat) else 0.0
    area_height = max(tops[-1] + height + below[-1], 0.2 * len(legend)) + foot
    sheet.open(max(0.2 + indent + across * step + beside, NARROW), area_height + 0.1)
    left = 0.0 if sheet.bare else 0.14
    axes = sheet.axes(left, 0.05, sheet.width - left, area_height)
    axes.set_axis_off()
    for index, picture in enumerate(pictures):
        if picture is None:
            continue
        x, y = indent + (index % across) * step, area_height - tops[index // across]
        _picture(axes, theme, picture, (x, x + width, y - height, y), _at(heat, index), reading)
        _frames(axes, theme, _at(frames, index) or {}, legend, (x, y, width / wide, height / tall))
        for position, words in enumerate(captions):
            size, color = (7.5, theme.ink) if words is reading.labels else (6.5, theme.muted)
            text = short(_at(words, index) or "", int((step - gap * 0.3) / (size * 0.0076)))
            axes.text(x, y - height - 0.045 - 0.14 * position, text, size=size, va="top", color=color)
    for name, top in zip(row_names, tops, strict=False):
        axes.text(0, area_height - top - height / 2, name, size=7.5, va="center", color=theme.ink)
    for name, index in legend.items():
        spot = indent + across * step, area_height - 0.2 * index - 0.1
        axes.text(*spot, short(name), size=7.5, va="center", color=theme.color(index))
    if foot:
        _heat_scale(axes, theme, [each for each in heat if each is not None], reading, indent)
    axes.set_xlim(0, sheet.width - left)
    axes.set_ylim(0, area_height)


def _at(items: Sequence[Any], index: int) -> Any:
    return items[index] if index < len(items) else None


def _picture(axes: Any, theme: Theme, picture: Any, extent: tuple[float, ...], heat: Any, reading: Images) -> None:
    """One image with an edge; pale and gray under heat, so that the heat is visible on black and distinct from colors of the image."""
    from matplotlib.patches import Rectangle

    x, right, bottom, y = extent
    how = {"extent": extent, "interpolation": "nearest", "aspect": "auto"}
    under = picture if heat is None else _gray(picture)
    axes.imshow(under, cmap="gray", vmin=0, vmax=1, alpha=None if heat is None else PALE, **how)
    if heat is not None:
        axes.imshow(_heat_colors(heat, _full(heat, reading.top, reading.strong), theme), **how)
    axes.add_patch(Rectangle((x, bottom), right - x, y - bottom, fill=False, ec=theme.rule, lw=0.6, clip_on=False))


def _gray(picture: Any) -> Any:
    """Luma of each pixel (Rec. 601), (H, W)."""
    import numpy as np

    pixels = np.asarray(picture, float)
    return pixels @ (0.299, 0.587, 0.114) if pixels.ndim == 3 else pixels


def _frames(
    axes: Any, theme: Theme, boxes: Mapping[str, Sequence[float]], indices: Mapping[str, int], scale: tuple[float, float, float, float]
) -> None:
    """Boxes, in pixels, over the picture at this corner and scale; a box equal to earlier ones is drawn around them."""
    from matplotlib.patches import Rectangle

    x, y, across, down = scale
    drawn: list[list[float]] = []
    for name, (top, left, height, width) in boxes.items():
        thick = 1.4 + 2.2 * drawn.count([top, left, height, width])
        drawn.append([top, left, height, width])
        corner, color = (x + left * across, y - (top + height) * down), theme.color(indices[name])
        frame = Rectangle(
            corner, width * across, height * down, fill=False, ec=color, lw=thick, clip_on=False, zorder=2.4 - 0.01 * indices[name]
        )
        axes.add_patch(frame)


def _full(heat: Any, top: float | None = None, strong: float = 0.0) -> float:
    """The absolute value from which on a number has the full color."""
    cells = [floats(row) for row in heat]
    if top:
        return top
    sizes = sorted((abs(v) for row in cells for v in row if v == v and abs(v) < float("inf")), reverse=True)
    few = int(strong * len(sizes))
    return (sizes[few] if sizes else 0.0) or largest_of(cells) or 1.0


def _heat_colors(values: Any, largest: float, theme: Theme) -> list[list[tuple[float, ...]]]:
    """A matrix as colors over a picture: the larger a number, the more opaque."""
    from matplotlib.colors import to_rgb

    cells = [floats(row) for row in values]
    above, below = to_rgb(theme.palette[1]), to_rgb(theme.palette[0])
    return [[(*(below if v < 0 else above), OPAQUE * min(abs(v) / largest, 1.0) if v == v else 0.0) for v in row] for row in cells]


def _heat_scale(axes: Any, theme: Theme, heat: Sequence[Any], reading: Images, x: float) -> None:
    """A color bar below the pictures, from 0 or the lowest to the largest heat."""
    below = any(v < 0 for each in heat for row in each for v in floats(row))
    top, largest = reading.top, "strongest" if reading.strong else "largest"
    words = [f"−{number(top) if top else largest}" if below else "0", number(top) if top else f"{largest} of each picture"]
    start = x + inches(words[:1], 6.5) + 0.05
    ramp = [i / 48 for i in range(-48 if below else 0, 49)]
    axes.imshow(_heat_colors([ramp], 1.0, theme), extent=(start, start + SCALE, 0.05, 0.13), interpolation="nearest", aspect="auto")
    axes.text(x, 0.09, words[0], size=6.5, va="center", color=theme.muted)
    axes.text(start + SCALE + 0.05, 0.09, words[1], size=6.5, va="center", color=theme.muted)
