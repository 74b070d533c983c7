"""Torch's own data as streams: `Dataset`, `IterableDataset` and `DataLoader` with its collate function, sampler and workers.

    stream = from_torch(dataset, batch_size=64, seed=0)
    stream = from_torch(DataLoader(dataset, 64, shuffle=True, num_workers=2, collate_fn=pad), seed=0)

The order of the examples, and whatever a data set draws at random while it makes one (a crop, say), follow from (seed, step).  So a
run resumes in the middle of an epoch without reading again what it has read, and the number of workers changes no bit.
An `IterableDataset` can only be read from its start: see `IterableStream` for what it can promise.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
)

from ..core.batch import Batch, Data
from ..core.errors import BadInput, DataUnusable
from ..core.seeds import key
from ..core.stream import Stream
from .order import Order
from .streams import Augment, Augmented, ReadAhead, keep_signal_handlers

Collate = Callable[[list[Any]], Any]


def adopt(data: Data) -> Data:
    """The same data with a source in place of every torch data set or loader."""
    parts = {name: getattr(data, name) for name in ("train", "valid", "test")}
    theirs: dict[str, Any] = {name: TorchSource(part) for name, part in parts.items() if isinstance(part, (Dataset, DataLoader))}
    return replace(data, **theirs) if theirs else data


@final
class TorchSource:
    """Examples of a torch data set or loader as a source.  It has no length where the data set can only be read from its start.

    Args:
        data: a data set, or a loader, whose collate function, sampler and workers are used too.
        names: names of the parts of an example that is a tuple; by default 'x', or 'x' and 'y'.
    """

    lazy = True
    """examples are made when they are asked for, which may be dear"""

    def __init__(self, data: Dataset | DataLoader, names: Sequence[str] = ()) -> None:
        self.data, self.names = data, names
        self.dataset: Any = data.dataset if isinstance(data, DataLoader) else data
        self.collate: Collate = data.collate_fn if isinstance(data, DataLoader) else default_collate

    def __len__(self) -> int:
        return 0 if isinstance(self.dataset, IterableDataset) else len(self.dataset)

    def __getitem__(self, indices: Any) -> Batch:
        numbers = torch.arange(len(self))[indices].view(-1).tolist()
        with own_randomness(0, "source", *numbers[:1]):
            return as_batch(self.collate([self.dataset[number] for number in numbers]), self.names)

    def fingerprint(self) -> str:
        return self.stream(1, 0).fingerprint()

    def stream(self, batch_size: int, seed: int, drop_last: bool = False, augment: Augment | None = None) -> Stream:
        """The stream of a run: from a loader as it says itself, from a data set in a fresh order every epoch."""
        if drop_last and not isinstance(self.data, DataLoader):
            order = Order(max(1, len(self)), min(batch_size, max(1, len(self))), seed, drop_last=True)
            stream: Stream = DatasetStream(self.dataset, order, seed, names=self.names)
        else:
            stream = from_torch(self.data, batch_size, seed, self.names)
        return stream if augment is None else Augmented(stream, augment, seed)


def from_torch(
    data: Dataset | DataLoader, batch_size: int = 64, seed: int = 0, names: Sequence[str] = (), workers: int | None = None
) -> Stream:
    """A stream of a torch data set or loader.

    Args:
        data: a data set, whose examples are collated as torch does by default, or a loader.
        batch_size: examples a step over all processes; a loader says this itself.
        seed: of the order, and of what the data set draws at random.
        names: names of the parts of an example that is a tuple; by default 'x', or 'x' and 'y'.
        workers: processes that make batches ahead; by default what the loader says, or none.
    """
    loader = data if isinstance(data, DataLoader) else None
    dataset: Any = loader.dataset if loader is not None else data
    workers = workers if workers is not None else loader.num_workers if loader is not None else 0
    if isinstance(dataset, IterableDataset):
        loader = loader if loader is not None else DataLoader(dataset, batch_size, num_workers=workers)
        return IterableStream(loader, seed, names)
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise BadInput(
            f"a {type(dataset).__name__} has no length or no items",
            fix="give a torch Dataset with __len__ and __getitem__, or a DataLoader",
        )
    if loader is None:
        stream = DatasetStream(dataset, Order(max(1, len(dataset)), batch_size, seed), seed, names=names)
    else:
        stream = DatasetStream(dataset, _order_of(loader, seed), seed, loader.collate_fn, names)
    return ReadAhead(stream, workers) if workers else stream


@final
class DatasetStream(Stream):
    """Examples of a data set with a length, in an order that follows from (seed, step).

    Args:
        dataset: gives an example by its number.
        order: which examples make up the batch of a step.
        seed: of what the data set draws at random, from the generators of torch, NumPy and Python.
        collate: makes a batch of a list of examples.
        names: names of the parts of a batch that is a tuple.
    """

    uses_model = False

    def __init__(
        self, dataset: Dataset, order: Order | SampledOrder, seed: int, collate: Collate = default_collate, names: Sequence[str] = ()
    ) -> None:
        self.dataset, self.order, self.seed, self.collate, self.names = dataset, order, seed, collate, names
        if not len(dataset):  # type: ignore[arg-type]
            raise DataUnusable("the training part is empty", where=type(dataset).__name__, fix="give more examples")
        self.steps_per_epoch: int = order.steps_per_epoch

    def batch(self, step: int, shard: int = 0, shards: int = 1, model: nn.Module | None = None) -> Batch:
        indices = torch.as_tensor(self.order.at(step)).tolist()
        start, stop = (-(-part * len(indices) // shards) for part in (shard, shard + 1))  # rounded up: shard 0 is never empty
        if start == stop:
            return self.example(1)[:0]
        return self._make(indices[start:stop], "worker", step, shard)

    def example(self, n: int) -> Batch:
        return self._make(list(range(min(n, len(self.dataset)))), "example")  # type: ignore[arg-type]

    def fingerprint(self) -> str:
        """A hash of the number of examples and of three of them: all could be many gigabytes."""
        n = len(self.dataset)  # type: ignore[arg-type]
        digest = hashlib.sha256(f"{type(self.dataset).__qualname__} {n}".encode())
        for index in sorted({0, n // 2, n - 1}):
            for name, tensor in self._make([index], "fingerprint", index).fields.items():
                digest.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
                digest.update(tensor.detach().contiguous().flatten().view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def _make(self, indices: list[int], *parts: int | str) -> Batch:
        with own_randomness(self.seed, *parts):
            many = getattr(self.dataset, "__getitems__", None)
            examples = many(indices) if many is not None else [self.dataset[index] for index in indices]
            return as_batch(self.collate(examples), self.names)


@final
class IterableStream(Stream):
    """Batches of a loader over an `IterableDataset`, which can only be read from its start.

    A data set with `state_dict` and `load_state_dict`, read without workers, resumes where it stopped.  Any other is read again
    from the start of the epoch up to the step, which gives the same examples if reading it twice does.

    Args:
        loader: its batches are taken as they come.
        seed: of what the data set draws at random, for each epoch.
        names: names of the parts of a batch that is a tuple.
    """

    def __init__(self, loader: DataLoader, seed: int, names: Sequence[str] = ()) -> None:
        self.loader, self.seed, self.names = loader, seed, names
        self.exact = not loader.num_workers and all(hasattr(loader.dataset, verb) for verb in ("state_dict", "load_state_dict"))
        """whether a resume reads nothing twice"""
        try:
            self.steps_per_epoch = len(loader)
        except TypeError:
            self.steps_per_epoch = None
        self.epoch, self.position = 0, 0
        self._random: Mapping[str, Any] | None = None
        self._batches: Iterator[Any] | None = None
        self._step, self._batch = -1, Batch()

    def batch(self, step: int, shard: int = 0, shards: int = 1, model: nn.Module | None = None) -> Batch:
        if step != self._step:
            self._batch, self._step = self._next(), step
        start, stop = (-(-part * len(self._batch) // shards) for part in (shard, shard + 1))
        return self._batch[start:stop]

    def example(self, n: int) -> Batch:
        with own_randomness(self.seed, "epoch", 0):
            batch = next(iter(self._new_loader(0)), None)
        if batch is None:
            raise self._no_example()
        return as_batch(batch, self.names)[:n]

    def close(self) -> None:
        self._batches = None

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {"epoch": self.epoch, "position": self.position}
        if self.exact:
            state["dataset"] = self.loader.dataset.state_dict()  # type: ignore[attr-defined]
            state["random"] = dict(self._random or {})
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.epoch, self.position = int(state["epoch"]), int(state["position"])
        self._batches, self._step = None, -1
        if self.exact and self.position:
            self.loader.dataset.load_state_dict(state["dataset"])  # type: ignore[attr-defined]
            self._random = dict(state["random"])
            self._batches = iter(self._new_loader(self.epoch))
            return
        self._random = None
        for _ in range(self.position):
            self._read()

    def _next(self) -> Batch:
        batch = self._read()
        if batch is None:
            self._begin_epoch()
            batch = self._read()
        if batch is None:
            raise self._no_example()
        self.position += 1
        result = as_batch(batch, self.names)
        if not self.loader.num_workers and len(result) < (self.loader.batch_size or 1):
            self._begin_epoch()  # a short batch is the last, and the data set may have gone back to its start already
        return result

    def _no_example(self) -> DataUnusable:
        return DataUnusable("the data set gave no example", where=type(self.loader.dataset).__name__, fix="look at its __iter__")

    def _begin_epoch(self) -> None:
        self.epoch, self.position, self._batches, self._random = self.epoch + 1, 0, None, None

    def _read(self) -> Any:
        """The next batch of the epoch, None at its end; the data set goes on with random states of its own."""
        with own_randomness(self.seed, "epoch", self.epoch, states=self._random) as states:
            if self._batches is None:
                with keep_signal_handlers():
                    self._batches = iter(self._new_loader(self.epoch))
            batch = next(self._batches, None)
            self._random = states()
        return batch

    def _new_loader(self, epoch: int) -> DataLoader:
        """The loader with the seed of an epoch for its workers."""
        old = self.loader
        more: dict[str, Any] = {"prefetch_factor": old.prefetch_factor, "worker_init_fn": old.worker_init_fn} if old.num_workers else {}
        rng = torch.Generator().manual_seed(key(self.seed, "workers", epoch))
        return DataLoader(
            old.dataset,
            old.batch_size,
            num_workers=old.num_workers,
            collate_fn=old.collate_fn,
            drop_last=old.drop_last,
            generator=rng,
            **more,
        )


@final
class SampledOrder:
    """The batches of a loader's own sampler, drawn anew every epoch with a seed of that epoch."""

    def __init__(self, sampler: Any, seed: int) -> None:
        self.sampler, self.seed = sampler, seed
        self._epoch, self._batches = 0, self._draw(0)
        self.steps_per_epoch = len(self._batches)
        if not self.steps_per_epoch:
            raise DataUnusable("the sampler gives no batch", where=type(sampler).__name__, fix="look at its __iter__")

    def at(self, step: int) -> list[int]:
        epoch, position = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            self._epoch, self._batches = epoch, self._draw(epoch)
        return self._batches[position]

    def _draw(self, epoch: int) -> list[list[int]]:
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)
        with own_randomness(self.seed, "sampler", epoch):
            batches = [list(batch) for batch in self.sampler]
        if epoch and len(batches) != self.steps_per_epoch:
            message = f"the sampler gave {self.steps_per_epoch} batches in the first epoch and {len(batches)} in epoch {epoch + 1}"
            raise DataUnusable(message, where=type(self.sampler).__name__, fix="give a sampler with as many batches in every epoch")
        return batches


def as_batch(collated: Any, names: Sequence[str] = ()) -> Batch:
    """What a collate function returned, as a Batch: a tensor is `x`, a pair is `x` and `y`, a mapping has names of its own."""
    if isinstance(collated, Batch):
        return collated
    if isinstance(collated, Tensor):
        fields: dict[str, Any] = {(names or ("x",))[0]: collated}
    elif isinstance(collated, Mapping):
        fields = {str(name): value for name, value in collated.items()}
    elif isinstance(collated, (list, tuple)):
        names = names or ("x", "y")[: len(collated)]
        if len(names) != len(collated):
            raise BadInput(
                f"an example has {len(collated)} parts, and {len(names)} names are known: {', '.join(names)}",
                fix="name all of them, names=('x', 'mask', 'y'), or let the data set give dictionaries",
            )
        fields = dict(zip(names, collated, strict=True))
    else:
        raise BadInput(f"a batch is a {type(collated).__name__}", fix="let the collate function give a tensor, a tuple or a dictionary")
    for name, value in fields.items():
        if not isinstance(value, Tensor):
            raise BadInput(f"'{name}' of a batch is a {type(value).__name__}, not a tensor", fix="make it a tensor, or leave it out")
        if not value.dim() or len(value) != len(next(iter(fields.values()))):
            raise BadInput(f"'{name}' of a batch has shape {tuple(value.shape)}", fix="give every part one row for each example")
    return Batch(**fields)


@contextmanager
def own_randomness(seed: int, *parts: int | str, states: Mapping[str, Any] | None = None) -> Iterator[Callable[[], dict[str, Any]]]:
    """The generators of torch, NumPy and Python seeded by a key, or in the given states; afterwards they are as before.

    Gives a function that returns their states.
    """
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()
    number = key(seed, *parts)
    torch.manual_seed(number)
    random.seed(number)
    np.random.seed(number % 2**32)
    if states:
        torch.set_rng_state(states["torch"])
        version, numbers, gauss = states["python"]
        random.setstate((version, tuple(numbers), gauss))
        np.random.set_state(tuple(states["numpy"][:1]) + (np.array(states["numpy"][1], dtype=np.uint32),) + tuple(states["numpy"][2:]))
    try:
        yield _states
    finally:
        torch.set_rng_state(before[0])
        random.setstate(before[1])
        np.random.set_state(before[2])


def _states() -> dict[str, Any]:
    """States of the three generators, in a form that JSON and tensors can hold."""
    version, numbers, gauss = random.getstate()
    name, words, position, has_gauss, cached = np.random.get_state()
    numpy_state = [str(name), [int(word) for word in words], int(position), int(has_gauss), float(cached)]
    return {"torch": torch.get_rng_state(), "python": [version, list(numbers), gauss], "numpy": numpy_state}


def _order_of(loader: DataLoader, seed: int) -> Order | SampledOrder:
    """The order that a loader asks for: shuffled or not, or as its own sampler draws it."""
    sampler: Any = loader.sampler
    if isinstance(sampler, DistributedSampler):
        raise BadInput(
            "a DistributedSampler gives every process another part of the data", fix="leave it out: Sonde divides each batch itself"
        )
    plain = loader.batch_size is not None and type(loader.batch_sampler) is torch.utils.data.BatchSampler
    n = max(1, len(loader.dataset))  # type: ignore[arg-type]
    if plain and loader.batch_size is not None:
        if type(sampler) is SequentialSampler:
            return Order(n, min(loader.batch_size, n), seed, shuffle=False, drop_last=loader.drop_last)
        if type(sampler) is RandomSampler and not sampler.replacement and sampler.num_samples == n:
            return Order(n, min(loader.batch_size, n), seed, drop_last=loader.drop_last)
    if loader.batch_sampler is None:
        raise BadInput("a DataLoader with batch_size=None has no batches", fix="give it a batch_size")
    return SampledOrder(loader.batch_sampler, seed)
