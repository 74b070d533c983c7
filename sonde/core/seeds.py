"""Randomness is derived, not accumulated: every draw has a key, so the position alone restores it.

`key(seed, "forward", step, shard)` is the same number in every process, run and version.
"""

from __future__ import annotations

import hashlib
from operator import index
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def key(seed: int, *parts: int | str) -> int:
    """A 63-bit number from a seed and any parts; different parts give unrelated numbers."""
    # `index` makes a NumPy 3 the same key as 3 and refuses 3.0, whose text would differ.
    plain = tuple(part if isinstance(part, str) else index(part) for part in (seed, *parts))
    digest = hashlib.blake2b(repr(plain).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator(seed: int, *parts: int | str) -> torch.Generator:
    """A torch.Generator seeded by a key."""
    import torch

    return torch.Generator().manual_seed(key(seed, *parts))
