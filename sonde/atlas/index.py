"""The index of the atlas: 25 chapters, 259 rows, each with an id, a title and a one-line statement.

`index.tsv` holds it as text.  A line without a dash in its first cell starts a chapter; its rows follow.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from ..core.errors import BadInput, nearest


class AtlasRow(NamedTuple):
    """One statement of the atlas."""

    id: str
    title: str
    statement: str
    chapter: str
    """prefix of the id, the key of `chapters()`"""


@cache
def rows() -> dict[str, AtlasRow]:
    """Every row by its id, in the order of the atlas."""
    return {cells[0]: AtlasRow(cells[0], cells[1], cells[2], cells[0].split("-")[0]) for cells in _lines() if "-" in cells[0]}


@cache
def chapters() -> dict[str, str]:
    """Prefix -> title, in the order of the atlas."""
    return {cells[0]: cells[1] for cells in _lines() if "-" not in cells[0]}


def select(words: Sequence[str] | None = None) -> list[AtlasRow]:
    """Rows selected by id ('CNN-12') or chapter ('CNN'), in the order of the atlas; all rows by default."""
    if not words:
        return list(rows().values())
    wanted = {normal(word) for word in words}
    known = {*rows(), *chapters()}
    for word in words:
        if normal(word) not in known:
            raise BadInput(f"the atlas has no row or chapter '{word}'", fix=nearest(normal(word), known))
    return [row for row in rows().values() if {row.id, row.chapter} & wanted]


def normal(word: str) -> str:
    """An id or chapter as the index writes it: 'cnn-3' is CNN-03."""
    return re.sub(r"-(\d)$", r"-0\1", word.strip().upper())


def _lines() -> list[list[str]]:
    text = (Path(__file__).parent / "index.tsv").read_text(encoding="utf-8")
    return [line.split("\t") for line in text.splitlines()]
