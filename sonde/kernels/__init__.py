"""Fused CPU kernels in C behind torch custom ops.  Without them only speed changes, never a value.

Each is one file of C and one of Python: `separable` (decay on the head, key and value axes), `hadamard` (a decay of
its own for every state entry) and `delta` (the delta rule).
"""

from __future__ import annotations

from ._library import available, why_not

__all__ = ["available", "why_not"]
