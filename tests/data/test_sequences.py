"""Sequence tasks: every answer is found again by a plain loop over the tokens, and none stands in the input."""

from __future__ import annotations

import pytest
import torch

from sonde.core.batch import Data
from sonde.core.errors import BadInput
from sonde.core.options import options_of
from sonde.data import sequences
from sonde.data.sequences import MaskedSource, copying, parity, recall, reset
from sonde.data.tensors import WindowSource


def rows(data: Data, part: str = "train") -> list[tuple[list[int], list[int], list[bool]]]:
    batch = data.splits[part][torch.arange(40)]
    return list(zip(batch.x.tolist(), batch.y.tolist(), batch.mask.tolist(), strict=True))


def test_recall():
    for x, y, mask in rows(recall(seed=2, n=400, pairs=5, keys=9)):
        memory = dict(zip(x[0:10:2], x[1:10:2], strict=True))
        assert len(memory) == 5 and max(memory) < 9 <= min(memory.values()) and max(memory.values()) < 18
        assert mask == [False] * 10 + [True] * 5 and sorted(x[10:]) == sorted(memory)
        assert y[10:] == [memory[key] for key in x[10:]]
    with pytest.raises(BadInput, match="set keys=5"):
        recall(pairs=5, keys=4)


@pytest.mark.parametrize("selective", [True, False])
def test_copying(selective):
    places = set()
    for x, y, mask in rows(copying(seed=2, n=400, length=13, items=4, symbols=6, selective=selective)):
        items = [(i, token) for i, token in enumerate(x[:13]) if token]
        assert x[13:] == [1] * 4 and mask == [False] * 13 + [True] * 4
        assert y[13:] == [token for _, token in items] and all(2 <= token < 8 for _, token in items)
        places.add(tuple(i for i, _ in items))
    assert len(places) > 20 if selective else places == {(0, 1, 2, 3)}
    with pytest.raises(BadInput, match="set length=9"):
        copying(length=8, items=9)


def test_reset():
    seen = set()
    for x, y, mask in rows(reset(seed=2, n=400, length=29, top=4, chance=0.1)):
        count = 0
        for token, answer in zip(x, y, strict=True):
            count = 0 if token == 2 else count + (token == 1)
            assert answer == 3 + min(count, 4)
            seen.add(answer)
        assert all(mask)
    assert seen == {3, 4, 5, 6, 7}


@pytest.mark.parametrize("part, length", [("train", 11), ("valid", 11), ("test", 33)])
def test_parity(part, length):
    for x, y, mask in rows(parity(seed=2, n=400, length=11, modulus=3, longer=3), part):
        assert len(x) == length and all(mask)
        assert y == [3 + sum(x[: i + 1]) % 3 for i in range(length)]


@pytest.mark.parametrize("make", [recall, copying, reset, parity])
def test_the_seed_alone_decides_and_parts_differ(make):
    first, again, other = make(seed=3, n=50), make(seed=3, n=50), make(seed=4, n=50)
    assert first.train.fingerprint() == again.train.fingerprint() != other.train.fingerprint()
    assert not torch.equal(first.train[:5].x, first.valid[:5].x) and [len(part) for part in first.splits.values()] == [50, 5, 5]
    batch = first.train[:]
    assert max(int(batch.x.max()), int(batch.y.max())) < len(first.classes)
    assert all(option.help for option in options_of(make, skip=("seed",)).values()) and make.__doc__
    assert not (set(batch.y[batch.mask].tolist()) & set(batch.x[batch.mask].tolist()))  # no answer where it is asked for


def test_hidden_tokens_are_the_answers():
    windows = WindowSource(torch.arange(20_000) % 50, 64, 16)
    source = MaskedSource(windows, token=50, rate=0.15, seed=1)
    batch, plain = source[torch.tensor([7, 3])], windows[torch.tensor([7, 3])]
    assert torch.equal(batch.y, plain.x) and torch.equal(batch.mask, batch.x == 50)
    assert torch.equal(batch.x[~batch.mask], plain.x[~batch.mask])
    assert source[:].mask.float().mean().item() == pytest.approx(0.15, abs=0.005)
    assert torch.equal(source[5:9].x, MaskedSource(windows, token=50, rate=0.15, seed=1)[torch.arange(5, 9)].x)
    assert source.fingerprint() != MaskedSource(windows, token=50, rate=0.15, seed=2).fingerprint()
    assert len(source) == len(windows) and sequences.__doc__
