"""Keys: fixed for ever, different for different parts, the same for every way to write a whole number."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch

from sonde.core.seeds import generator, key

FIXED = (2631537505891389924, 4624718468579353786, 1569714343349645784, 505102563282271585)


def test_keys_never_change() -> None:
    """Runs made by earlier versions resume only while these numbers hold."""
    assert key(0) == FIXED[0]
    assert key(0, "forward", 0, 0) == FIXED[1]
    assert key(7, "order", 3) == FIXED[2]
    assert key(-1, "augment", 1_000_000, 3) == FIXED[3]


def test_a_key_is_half_of_a_public_hash() -> None:
    digest = hashlib.blake2b(b"(5, 'order', 2)", digest_size=8).digest()
    assert key(5, "order", 2) == int.from_bytes(digest, "little") // 2
    assert 0 <= key(5, "order", 2) < 2**63


def test_different_parts_give_different_keys() -> None:
    parts = [(seed, name, step, shard) for seed in range(5) for name in ("order", "forward") for step in range(50) for shard in range(4)]
    assert len({key(*part) for part in parts}) == len(parts)
    assert key(0, 12) != key(0, 1, 2) and key(0, "1") != key(0, 1) and key(0, "a", "b") != key(0, "ab")


def test_every_way_to_write_a_whole_number_is_the_same_key() -> None:
    assert key(np.int64(3), np.uint8(4)) == key(3, 4) == key(torch.tensor(3), 4)
    with pytest.raises(TypeError):
        key(0, 1.0)


def test_generator_draws_depend_on_the_key_alone() -> None:
    torch.rand(3)  # the global generator has moved; a keyed one does not care
    first = torch.rand(5, generator=generator(3, "forward", 9))
    assert torch.equal(first, torch.rand(5, generator=torch.Generator().manual_seed(key(3, "forward", 9))))
    assert not torch.equal(first, torch.rand(5, generator=generator(3, "forward", 10)))
