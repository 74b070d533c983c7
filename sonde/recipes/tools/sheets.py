"""Pictures that recipes leave in the folder of a run, and with that in its report: rows of reconstructions, samples, codes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from torch import Tensor

from ...core.reading import Images, Reading
from ...report.draw import draw
from ...report.page import SHOWN

ACROSS = 12
"""pictures in a row"""


def leave(folder: Path, name: str, reading: Reading) -> None:
    """Draw a reading into the folder of a run, where its report finds it."""
    (folder / SHOWN).mkdir(exist_ok=True)
    draw(reading, folder / SHOWN / f"{name}.png")


def sheet(folder: Path, name: str, title: str, rows: Iterable[tuple[str, Tensor]], note: str) -> None:
    """Pictures (N, 1 or 3, H, W) in 0..1 in rows, each under its name; more than a row holds go on in the next."""
    pictures: list[Tensor | None] = []
    names: list[str] = []
    for label, row in rows:
        some = row.clamp(0, 1).movedim(1, -1).squeeze(-1)
        lines = -(-len(some) // ACROSS)
        pictures += [*some, *[None] * (lines * ACROSS - len(some))]
        names += [label, *[""] * (lines - 1)]
    leave(folder, name, Images(title, {"pictures": pictures}, note=note, dense=True, across=ACROSS, rows=names if any(names) else []))
