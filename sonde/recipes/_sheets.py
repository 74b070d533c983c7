"""Sheets of small pictures that recipes leave in the folder of a run: rows of reconstructions, samples, codes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from ..core.reading import Reading
from ..lenses._draw import draw

ACROSS = 12
"""pictures in a row"""


def sheet(path: Path, title: str, rows: Sequence[Tensor], note: str) -> None:
    """Rows of grey pictures (N, 1, H, W) in 0..1, one above the other, as a PNG in figures/ of a run."""
    pictures = torch.cat([row[:, 0] for row in rows]).clamp(0, 1)
    path.parent.mkdir(exist_ok=True)
    draw(Reading(title, "images", {"pictures": pictures}, note=note, extra={"dense": True}), path)
