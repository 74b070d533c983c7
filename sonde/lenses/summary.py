"""A table of metrics: the last and the best value of each."""

from __future__ import annotations

from ..core.numbers import number
from ..core.reading import Reading, Subject, Table
from .curves import TRAINING_METRICS, best, series, without_copies
from .tools.readonly import guard
from .tools.tiny import images

REPORT = {"position": 20, "section": "Metrics"}


def why_not(subject: Subject) -> str:
    """Why the lens does not apply to a subject, or ''; `guard` turns it into an error."""
    return "" if series(subject.metrics) else "there are no metrics yet"


@guard
def read(subject: Subject) -> Reading:
    """Last value, best value and its step for each metric; a learning rate or a test metric has no best value."""
    table: dict[str, list] = {"metric": [], "last": [], "best": [], "at step": []}
    lines = without_copies(series(subject.metrics))
    for name, line in lines.items():
        has_best = name not in TRAINING_METRICS and not name.startswith("test/")
        at = best(name.rpartition("/")[2], line) if has_best else None
        for column, value in zip(table, (name, line[1][-1], *(at or (None, None))), strict=True):
            table[column].append(value)
    steps = max(line[0][-1] for line in lines.values())
    return Table("Over the run", table, axes=["metric"], note=f"After {number(steps)} steps.")


def tiny() -> Subject:
    """A small subject for the contract tests."""
    return images()
