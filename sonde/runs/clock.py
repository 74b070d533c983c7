"""The wall clock of log files; nothing is computed from it."""

from __future__ import annotations

import datetime


def now() -> str:
    """The local time in ISO format."""
    return datetime.datetime.now().astimezone().isoformat(timespec="seconds")
