"""Draws a Reading as PNG or SVG: plain style, labels at the lines, colors that color-blind readers can distinguish.

Each kind of reading is drawn by the module of its name.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ...core.errors import BadInput
from ...core.files import replace_file
from ...core.reading import Reading
from . import bars, graph, heat, images, lines, plane, scatter, table, text
from .paper import DARK, LIGHT, Sheet, Theme, house_style, short

__all__ = ["draw", "short", "svg"]

DOTS_PER_INCH = 200
PAINTERS: dict[str, Callable[[Any, Theme, Sheet], None]] = {
    "bars": bars.paint,
    "graph": graph.paint,
    "heat": heat.paint,
    "images": images.paint,
    "lines": lines.paint,
    "plane": plane.paint,
    "scatter": scatter.paint,
    "table": table.paint,
    "text": text.paint,
}
"""kind of reading -> what draws it"""


def draw(reading: Reading | Sequence[Reading], path: str | Path) -> Path:
    """Write a reading as PNG, atomically; several readings are arranged in two columns."""
    path = Path(path)
    several = [reading] if isinstance(reading, Reading) else list(reading)
    pictures = [_render(each, "png", bare=False) for each in several]
    try:
        replace_file(path, pictures[0] if len(pictures) == 1 else _side_by_side(pictures))
    except FileNotFoundError as error:
        raise BadInput(f"there is no folder '{path.parent}'", fix="create it first") from error
    return path


def svg(reading: Reading) -> tuple[bytes, bytes]:
    """A reading as SVG for light and for dark pages, on a transparent background and without title and note, which the page shows.

    It is drawn once; the dark version is the light one with its colors replaced.
    """
    import re

    light = _render(reading, "svg", bare=True)
    swap = {old.encode(): new.encode() for old, new in zip(LIGHT.all, DARK.all, strict=True)}
    return light, re.sub(b"|".join(swap), lambda match: swap[match.group()], light)


def _side_by_side(pictures: Sequence[bytes], across: int = 2) -> bytes:
    """Pictures side by side, row by row."""
    from PIL import Image

    tiles = [Image.open(io.BytesIO(picture)) for picture in pictures]
    rows = [tiles[start : start + across] for start in range(0, len(tiles), across)]
    width, heights = max((tile.width for tile in tiles), default=1), [max(tile.height for tile in row) for row in rows]
    sheet = Image.new("RGB", (width * min(across, max(len(tiles), 1)), sum(heights) or 1), LIGHT.paper)
    for index, row in enumerate(rows):
        for column, tile in enumerate(row):
            sheet.paste(tile, (column * width, sum(heights[:index])))
    buffer = io.BytesIO()
    sheet.save(buffer, "PNG", dpi=(DOTS_PER_INCH, DOTS_PER_INCH))
    return buffer.getvalue()


def _render(reading: Reading, kind: str, bare: bool) -> bytes:
    import warnings

    with house_style(LIGHT, reading), warnings.catch_warnings():
        for kind_of in (UserWarning, RuntimeWarning):
            warnings.simplefilter(
                "ignore", kind_of
            )  # a character that the font lacks or an axis without extent is not an error of the reading
        sheet = Sheet(reading, LIGHT, bare)
        PAINTERS[reading.kind](reading, LIGHT, sheet)
        buffer = io.BytesIO()
        ground = "none" if bare else LIGHT.paper
        meta = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
        sheet.figure.savefig(buffer, format=kind, dpi=DOTS_PER_INCH, facecolor=ground, metadata=meta)
    return buffer.getvalue()
