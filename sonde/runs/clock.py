"""The wall clock, read here and nowhere else: for people, never to compute with."""

from __future__ import annotations

import datetime


def now() -> str:
    """Wall-clock time for people; nothing is ever computed from it."""
    return datetime.datetime.now().astimezone().isoformat(timespec="seconds")
