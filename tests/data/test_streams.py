"""Streams of a data set: the same batches whoever makes them, from any step on, cut into any number of shards."""

from __future__ import annotations

import os
import signal

import pytest
import torch

from sonde.core.batch import Batch
from sonde.core.errors import DataUnusable, ResourceFault
from sonde.core.seeds import generator
from sonde.core.stream import Stream
from sonde.data.order import Order
from sonde.data.streams import SMALL, ReadAhead, SourceStream
from sonde.data.tensors import TensorSource

N, SIZE = 53, 12


def source() -> TensorSource:
    return TensorSource(torch.arange(N * 3).view(N, 3).float(), torch.arange(N))


def jitter(batch: Batch, rng: torch.Generator) -> Batch:
    return batch.replace(x=batch.x + torch.rand(batch.x.shape, generator=rng))


def rows(batch: Batch) -> list[int]:
    return batch.y.tolist()


@pytest.mark.parametrize("large", [False, True])
def test_a_batch_is_that_of_the_order(large, monkeypatch):
    if large:
        monkeypatch.setattr("sonde.data.streams.SMALL", 0)
    stream, order = SourceStream(source(), SIZE, seed=3), Order(N, SIZE, 3)
    assert stream.small is not large and stream.steps_per_epoch == 5
    for step in (0, 4, 5, 11, 2):
        assert rows(stream.batch(step)) == order.at(step).tolist()
    assert sorted(row for step in range(5) for row in rows(stream.batch(step))) == list(range(N))


@pytest.mark.parametrize("shards", [2, 3, 5])
def test_shards_make_up_the_batch(shards):
    stream = SourceStream(source(), SIZE, seed=3)
    for step in (0, 4):
        parts = [rows(stream.batch(step, shard, shards)) for shard in range(shards)]
        assert sum(parts, []) == rows(stream.batch(step)) and parts[0]
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_augmentation_draws_from_step_and_shard():
    stream = SourceStream(source(), SIZE, seed=3, augment=jitter)
    plain = SourceStream(source(), SIZE, seed=3)
    for step, shard in ((0, 0), (7, 1)):
        wanted = jitter(plain.batch(step, shard, 2), generator(3, "augment", step, shard))
        assert torch.equal(stream.batch(step, shard, 2).x, wanted.x)
    assert not torch.equal(stream.batch(0, 0, 2).x - plain.batch(0, 0, 2).x, stream.batch(5, 0, 2).x - plain.batch(5, 0, 2).x)


def test_an_example_is_no_step():
    stream = SourceStream(source(), SIZE, seed=3, augment=jitter)
    first = stream.batch(0).x
    assert len(stream.example(2)) == 2 and len(stream.example(1000)) == N
    assert torch.equal(stream.batch(0).x, first)
    assert stream.state_dict() == {} and stream.fingerprint() == source().fingerprint()


def test_no_examples():
    with pytest.raises(DataUnusable, match="empty"):
        SourceStream(TensorSource(torch.zeros(0, 3), torch.zeros(0)), SIZE, seed=0)
    assert SMALL > 0


@pytest.fixture
def reading():
    opened: list[ReadAhead] = []

    def make(stream: Stream, own: range = range(1), shards: int = 1, workers: int = 2) -> ReadAhead:
        opened.append(ReadAhead(stream, workers))
        opened[-1].open(own, shards)
        return opened[-1]

    yield make
    for one in opened:
        one.close()


@pytest.mark.parametrize(("own", "shards"), [(range(1), 1), (range(1, 3), 5)])
def test_workers_make_the_same_batches(reading, own, shards):
    stream = SourceStream(source(), SIZE, seed=3, augment=jitter)
    ahead = reading(stream, own, shards)
    places = [(step, shard) for step in range(7) for shard in own]
    for step, shard in [*places, *places[3 * len(own) :]]:  # and from an earlier step on, as after a rollback
        assert torch.equal(ahead.batch(step, shard, shards).x, stream.batch(step, shard, shards).x)
    assert ahead.steps_per_epoch == 5 and len(ahead.example(3)) == 3


class Odd(Stream):
    def __init__(self, ends: bool = False) -> None:
        self.ends = ends

    def batch(self, step, shard, shards, model):
        if step == 2 and self.ends:
            os.kill(os.getpid(), signal.SIGKILL)
        if step == 2:
            raise DataUnusable("line 7 is no picture", where="photos/7.png", fix="remove it")
        return Batch(x=torch.tensor([step]))

    def example(self, n):
        return Batch(x=torch.zeros(n))


def test_an_error_of_a_worker_is_raised_at_its_step(reading):
    ahead = reading(Odd())
    assert [ahead.batch(step, 0, 1).x.item() for step in range(2)] == [0, 1]
    with pytest.raises(DataUnusable, match="line 7 is no picture") as caught:
        ahead.batch(2, 0, 1)
    assert caught.value.where == "photos/7.png"
    assert ahead.batch(3, 0, 1).x.item() == 3


def test_a_killed_worker_is_said(reading):
    ahead = reading(Odd(ends=True), workers=1)
    with pytest.raises(ResourceFault, match="a worker that reads data ended"):
        for step in range(4):
            ahead.batch(step, 0, 1)
    assert signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL
