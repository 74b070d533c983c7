"""Keep the memory that a step frees for the next one.

A training step asks for the same few megabytes again and again.  The C library of Linux hands such pieces back to the system
when they are freed, and the system then fills every page of the next one with zeros: a tenth of the time of a small GPT.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache

TRIM, MAP = -1, -3
"""names of the two settings in malloc.h"""
LARGEST = 32 << 20
"""bytes; larger pieces are mapped and given back one by one, as this is the most the library allows"""


@cache
def keep() -> bool:
    """Make malloc keep freed memory; False where the C library has no such setting."""
    setting = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    return setting is not None and bool(setting(MAP, LARGEST)) and bool(setting(TRIM, 2**31 - 1))
