"""Figures in the folder of a run, shown in its report: rows of reconstructions, samples, codes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from torch import Tensor

from ...core.reading import Images, Reading
from ...report.draw import draw
from ...report.page import SHOWN

IMAGES_PER_ROW = 12
"""images per row"""


def save_figure(folder: Path, name: str, reading: Reading) -> None:
    """Draw a reading into the folder of a run, where its report finds it."""
    (folder / SHOWN).mkdir(exist_ok=True)
    draw(reading, folder / SHOWN / f"{name}.png")


def save_image_rows(folder: Path, name: str, title: str, rows: Iterable[tuple[str, Tensor]], note: str) -> None:
    """Draw rows of images (N, 1 or 3, H, W) in 0..1, each with its name; a long row continues in the next line."""
    images: list[Tensor | None] = []
    names: list[str] = []
    for label, row in rows:
        clipped = row.clamp(0, 1).movedim(1, -1).squeeze(-1)
        lines = -(-len(clipped) // IMAGES_PER_ROW)
        images += [*clipped, *[None] * (lines * IMAGES_PER_ROW - len(clipped))]
        names += [label, *[""] * (lines - 1)]
    save_figure(
        folder, name, Images(title, {"pictures": images}, note=note, dense=True, across=IMAGES_PER_ROW, rows=names if any(names) else [])
    )
