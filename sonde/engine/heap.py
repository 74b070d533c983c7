"""Whether memory that a step frees is kept for the next one, or given back to the system.

A training step asks for the same few megabytes again and again.  The C library of Linux hands such pieces back to the system
when they are freed, and the system then fills every page of the next one with zeros: a tenth of the time of a small GPT.  But what
it keeps it also fragments: where weights are gathered and freed all the time, a process held three times what it used.
"""

from __future__ import annotations

import ctypes
import sys

TRIM, MAP = -1, -3
"""names of the two settings in malloc.h"""
LARGEST = 32 << 20
"""bytes; larger pieces are mapped and given back one by one, as this is the most the library allows"""
DEFAULT = 128 << 10
"""bytes; what the library sets by itself, until it sees larger pieces come and go"""


def keep() -> bool:
    """Make malloc keep freed memory; False where the C library has no such setting."""
    return _set(MAP, LARGEST) and _set(TRIM, 2**31 - 1)


def give_back() -> bool:
    """Make malloc map every larger piece by itself and give it back when it is freed."""
    return _set(MAP, DEFAULT) and _set(TRIM, DEFAULT)


def _set(name: int, value: int) -> bool:
    setting = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    return setting is not None and bool(setting(name, value))
