"""Text for a terminal: columns and tables, plain where the output is not a terminal."""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from ..core.errors import clean


def wants_color() -> bool:
    """Whether the output is a terminal with colors; with NO_COLOR or in a pipe the text is plain."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def bold(text: str) -> str:
    """Bold text where colors are on."""
    return f"\x1b[1m{text}\x1b[0m" if wants_color() else text


def width() -> int:
    """Width of the terminal in characters, between 60 and 140."""
    return min(max(shutil.get_terminal_size((100, 24)).columns, 60), 140)


def columns(pairs: Iterable[tuple[str, str]]) -> str:
    """Names and texts in two columns; long text is wrapped within its column."""
    pairs = list(pairs)
    left = max((_length(name) for name, _ in pairs), default=0) + 4
    lines = []
    for name, text in pairs:
        body = textwrap.wrap(text, max(width() - left, 30), break_long_words=False, break_on_hyphens=False) or [""]
        lines.append(f"  {name}{' ' * (left - 2 - _length(name))}{body[0]}".rstrip())
        lines += [" " * left + line for line in body[1:]]
    return "\n".join(lines)


def wide(text: str) -> str:
    """One paragraph, wrapped to the width of the terminal."""
    return textwrap.fill(text, width())


def table(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table with a rule under its head; columns of numbers are right-aligned."""
    from ..core.numbers import number

    heads, cells = [clean(head) for head in heads], [[clean(number(cell)) for cell in row] for row in rows]
    right = [bool(cells) and all(_is_number(row[i]) for row in cells) for i in range(len(heads))]
    widths = [max(len(head), *(len(row[i]) for row in cells), 0) for i, head in enumerate(heads)]

    def line(row: Sequence[str]) -> str:
        return "  ".join(
            cell.rjust(w) if to_right else cell.ljust(w) for cell, w, to_right in zip(row, widths, right, strict=True)
        ).rstrip()

    return "\n".join((bold(line(heads)), "  ".join("-" * w for w in widths), *map(line, cells)))


def _is_number(text: str) -> bool:
    return bool(re.fullmatch(r"-|[-+−]?([\d.,]+(e[-+]?\d+)?|∞)( ?([kMGTP]|[KMGT]?i?B|%))?", text))


def _length(text: str) -> int:
    return len(re.sub(r"\x1b\[\d+m", "", text))
