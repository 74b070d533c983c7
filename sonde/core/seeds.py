"""Randomness is derived, not accumulated: every draw has a key, so the position alone restores it.

    key(seed, "forward", step, shard)   is the same number in every process, run and version.
"""

from __future__ import annotations

import hashlib


def key(seed: int, *parts: int | str) -> int:
    """A 63-bit number from a seed and any parts; different parts give unrelated numbers."""
    digest = hashlib.blake2b(repr((seed, *parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator(seed: int, *parts: int | str):
    """A torch.Generator seeded by a key."""
    import torch

    return torch.Generator().manual_seed(key(seed, *parts))
