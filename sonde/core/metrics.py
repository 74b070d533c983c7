"""Metrics by name: which direction is better.  Every part of Sonde that looks for the best value asks here."""

from __future__ import annotations

from typing import Literal

DIRECTIONS: dict[str, Literal["min", "max"] | None] = {
    **dict.fromkeys(("accuracy", "r2", "f1", "precision", "recall"), "max"),
    "kl": None,  # one part of a bound: a smaller KL term alone is not a better model
    **dict.fromkeys(("discriminator", "generator", "fake", "real", "r1"), None),  # losses of networks that compete
}
"""metrics other than errors and losses, for which smaller is better"""


def direction(metric: str) -> Literal["min", "max"] | None:
    """Whether a smaller or a larger value is better, or None where neither is; the split in front does not matter: 'valid/f1'."""
    return DIRECTIONS.get(metric.rpartition("/")[2], "min")
