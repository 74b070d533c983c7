"""Torch's own data sets and loaders as streams: their examples and samplers, an order and draws that follow from (seed, step)."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler, IterableDataset, TensorDataset, WeightedRandomSampler

from sonde.core.batch import Batch
from sonde.core.errors import BadInput, DataUnusable
from sonde.data.streams import ReadAhead
from sonde.data.torch_data import DatasetStream, IterableStream, as_batch, from_torch, own_randomness

N, SIZE = 29, 6


class Noisy(Dataset):
    """Every example draws from the three generators that data sets use."""

    def __len__(self):
        return N

    def __getitem__(self, index):
        draws = torch.rand(2).tolist() + [random.random(), float(np.random.rand())]
        return torch.tensor([index, *draws], dtype=torch.float64), index


def plain() -> TensorDataset:
    return TensorDataset(torch.arange(N * 2).view(N, 2).float(), torch.arange(N))


def rows(stream, steps) -> list[list[int]]:
    return [stream.batch(step, 0, 1, None).y.tolist() for step in steps]


@pytest.fixture
def close():
    streams = []
    yield lambda stream: streams.append(stream) or stream
    for stream in streams:
        stream.close()


def test_every_example_once_an_epoch_in_a_fresh_order():
    stream = from_torch(plain(), SIZE, seed=4)
    assert stream.steps_per_epoch == 5
    first, second = sum(rows(stream, range(5)), []), sum(rows(stream, range(5, 10)), [])
    assert sorted(first) == sorted(second) == list(range(N)) and first != second != list(range(N))
    assert torch.equal(stream.batch(2).x, torch.stack([plain()[row][0] for row in rows(stream, [2])[0]]))
    assert rows(from_torch(plain(), SIZE, seed=5), range(5)) != rows(stream, range(5))


def test_a_loader_keeps_its_order_size_and_collate():
    still = from_torch(DataLoader(plain(), SIZE), seed=4)
    assert rows(still, range(5)) == [list(range(start, min(start + SIZE, N))) for start in range(0, N, SIZE)]
    assert from_torch(DataLoader(plain(), SIZE, drop_last=True), seed=4).steps_per_epoch == 4
    shuffled = from_torch(DataLoader(plain(), SIZE, shuffle=True), seed=4)
    assert rows(shuffled, range(5)) == rows(from_torch(plain(), SIZE, seed=4), range(5))

    def double(examples):
        return {"x": torch.stack([x for x, _ in examples]) * 2, "y": torch.tensor([int(y) for _, y in examples])}

    doubled = from_torch(DataLoader(plain(), SIZE, collate_fn=double), seed=4)
    assert torch.equal(doubled.batch(1).x, 2 * still.batch(1).x)


def test_a_sampler_draws_with_the_seed_of_the_epoch():
    weights = torch.tensor([0.0] * (N - 3) + [1.0] * 3)

    def stream(seed):
        return from_torch(DataLoader(plain(), SIZE, sampler=WeightedRandomSampler(weights, 20)), seed=seed)

    drawn = rows(stream(4), range(8))
    assert {row for batch in drawn for row in batch} == {N - 3, N - 2, N - 1} and stream(4).steps_per_epoch == 4
    assert rows(stream(4), [7, 2, 5]) == [drawn[7], drawn[2], drawn[5]]
    assert drawn[:4] != drawn[4:] and rows(stream(5), range(4)) != drawn[:4]
    own = [[0, 1, 2], [9], [4, 5]]
    assert rows(from_torch(DataLoader(plain(), batch_sampler=own), seed=0), range(4)) == [*own, own[0]]


def test_a_sampler_that_changes_its_length_is_refused():
    class Shrinks(BatchSampler):
        def __init__(self):
            self.epoch = 0

        def set_epoch(self, epoch):
            self.epoch = epoch

        def __iter__(self):
            return iter([[0, 1]] * (3 - self.epoch))

        def __len__(self):
            return 3

    stream = from_torch(DataLoader(plain(), batch_sampler=Shrinks()), seed=0)
    with pytest.raises(DataUnusable, match="3 batches in the first epoch and 2 in epoch 2"):
        rows(stream, range(4))


@pytest.mark.parametrize("workers", [0, 2])
def test_what_a_data_set_draws_follows_from_step_and_shard(close, workers):
    alone, stream = from_torch(Noisy(), SIZE, seed=4), close(from_torch(Noisy(), SIZE, seed=4, workers=workers))
    assert isinstance(stream, ReadAhead) is bool(workers)
    stream.open(range(3), 3)
    before = torch.get_rng_state()
    parts = [stream.batch(step, shard, 3, None) for step in (0, 1, 2) for shard in range(3)]
    assert torch.equal(torch.get_rng_state(), before)
    again = [alone.batch(step, shard, 3) for step in (0, 1, 2) for shard in range(3)]
    assert all(torch.equal(a.x, b.x) for a, b in zip(parts, again, strict=True))
    draws = torch.cat([part.x[:, 1:] for part in parts]).flatten()
    assert len(draws.unique()) == len(draws)


def test_shards_make_up_the_batch():
    stream = from_torch(plain(), SIZE, seed=4)
    for step, shards in ((0, 4), (4, 8)):
        parts = [stream.batch(step, shard, shards) for shard in range(shards)]
        assert sum((part.y.tolist() for part in parts), []) == rows(stream, [step])[0]
        assert len(parts[0]) and all(part.x.shape[1:] == (2,) for part in parts)


def test_the_fingerprint_sees_another_set():
    stream = from_torch(Noisy(), SIZE, seed=4)
    assert stream.fingerprint() == from_torch(Noisy(), SIZE, seed=4).fingerprint()
    changed = TensorDataset(torch.arange(N * 2).view(N, 2).float() + (torch.arange(N) == N - 1)[:, None], torch.arange(N))
    assert len({from_torch(one, SIZE).fingerprint() for one in (plain(), changed, torch.utils.data.Subset(plain(), range(9)))}) == 3


class Counting(IterableDataset):
    def __init__(self, n=20):
        self.n, self.read = n, 0

    def __iter__(self):
        for number in range(self.n):
            self.read += 1
            yield torch.tensor([float(number), torch.rand(()).item()]), number


class Resumable(Counting):
    start = 0

    def __iter__(self):
        while self.start < self.n:
            number, self.start = self.start, self.start + 1
            self.read += 1
            yield torch.tensor([float(number), torch.rand(()).item()]), number
        self.start = 0

    def state_dict(self):
        return {"start": self.start}

    def load_state_dict(self, state):
        self.start = state["start"]


@pytest.mark.parametrize(("kind", "reread"), [(Counting, 6), (Resumable, 0)])
@pytest.mark.parametrize("stop", [2, 5, 7])
def test_an_iterable_set_resumes_at_its_step(kind, reread, stop):
    whole = from_torch(kind(), 3, seed=4)
    wanted = [whole.batch(step, 0, 1, None) for step in range(12)]
    assert [batch.y.tolist() for batch in wanted[5:8]] == [[15, 16, 17], [18, 19], [0, 1, 2]]
    first = from_torch(kind(), 3, seed=4)
    for step in range(stop):
        torch.rand(3)  # whatever else draws meanwhile
        first.batch(step, 0, 1, None)
    state = first.state_dict()
    dataset = kind()
    second = from_torch(dataset, 3, seed=4)
    second.load_state_dict(state)
    assert dataset.read == (reread and 3 * (stop % 7))  # seven batches make an epoch
    for step in range(stop, 12):
        for shard in range(2):
            part = second.batch(step, shard, 2)
            assert torch.equal(part.x, wanted[step].x[(len(wanted[step]) + 1) // 2 * shard :][: len(part)])


def test_an_iterable_set_is_looked_at_without_being_read_on():
    stream = from_torch(Counting(), 3, seed=4)
    assert isinstance(stream, IterableStream) and stream.steps_per_epoch is None and not stream.exact
    assert stream.example(2).y.tolist() == [0, 1]
    assert stream.batch(0).y.tolist() == [0, 1, 2]
    with pytest.raises(DataUnusable, match="gave no example"):
        from_torch(Counting(0), 3).batch(0, 0, 1, None)


@pytest.mark.parametrize(
    ("collated", "names", "wanted"),
    [
        (torch.zeros(2, 3), (), {"x"}),
        ((torch.zeros(2, 3), torch.zeros(2)), (), {"x", "y"}),
        ([torch.zeros(2, 3)], (), {"x"}),
        ((torch.zeros(2, 3), torch.ones(2), torch.zeros(2)), ("x", "mask", "y"), {"x", "mask", "y"}),
        ({"tokens": torch.zeros(2, 3), "y": torch.zeros(2)}, (), {"tokens", "y"}),
        (Batch(x=torch.zeros(2)), (), {"x"}),
    ],
)
def test_what_a_collate_function_gives(collated, names, wanted):
    assert set(as_batch(collated, names)) == wanted


@pytest.mark.parametrize(
    ("collated", "message"),
    [
        ((torch.zeros(2),) * 3, "has 3 parts, and 2 names"),
        ({"x": torch.zeros(2), "name": ["a", "b"]}, "'name' of a batch is a list"),
        ((torch.zeros(2), torch.zeros(3)), r"'y' of a batch has shape \(3,\)"),
        ((torch.zeros(2), torch.tensor(1.0)), r"'y' of a batch has shape \(\)"),
        ("text", "a batch is a str"),
    ],
)
def test_what_cannot_be_a_batch(collated, message):
    with pytest.raises(BadInput, match=message):
        as_batch(collated)


def test_what_cannot_be_a_stream():
    with pytest.raises(BadInput, match="has no length"):
        from_torch(object())  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="DistributedSampler"):
        from_torch(DataLoader(plain(), SIZE, sampler=DistributedSampler(plain(), 2, 0)))
    with pytest.raises(BadInput, match="batch_size=None"):
        from_torch(DataLoader(plain(), batch_size=None))
    with pytest.raises(DataUnusable, match="empty"):
        from_torch(TensorDataset(torch.zeros(0, 2)))


def test_randomness_is_put_back_and_continues():
    with own_randomness(3, "a") as states:
        first, kept = (torch.rand(1), random.random(), np.random.rand()), states()
        second = torch.rand(1), random.random(), np.random.rand()
    with own_randomness(3, "a"):
        assert (torch.rand(1), random.random(), np.random.rand()) == first
    with own_randomness(9, "b", states=kept):
        assert (torch.rand(1), random.random(), np.random.rand()) == second
    assert isinstance(from_torch(plain()), DatasetStream)
