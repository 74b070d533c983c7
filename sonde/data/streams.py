"""Streams of a data set: the batch of a step is a pure function of (seed, step), so there is no state to save.

    SourceStream   examples by index, in a fresh order every epoch, cut into shards, augmented
    Augmented      any other stream, augmented
    ReadAhead      worker processes that make the next batches while a step runs

What a batch draws at random, it draws from a key of (seed, step, shard): a worker process, a resumed run and a run on another
number of processes draw the same.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, final

import torch
from torch import nn

from ..core.batch import Batch, Source
from ..core.errors import DataUnusable, ResourceFault
from ..core.seeds import generator
from ..core.stream import Stream
from .order import Order

Augment = Callable[[Batch, torch.Generator], Batch]

SMALL = 32 << 20
"""bytes of data up to which an epoch is laid out at once; larger buffers go back to the system when freed"""


@final
class SourceStream(Stream):
    """Examples of a source, `batch_size` of them a step over all shards; every example comes once an epoch.

    Args:
        source: counts examples and takes them by an index tensor.
        batch_size: examples a step; all of them where there are fewer.
        seed: of order and augmentation.
        drop_last: leave out the last short batch of an epoch.
        augment: changes a batch, drawing only from the generator it is given.
    """

    uses_model = False

    def __init__(self, source: Source, batch_size: int, seed: int, drop_last: bool = False, augment: Augment | None = None) -> None:
        if not len(source):
            raise DataUnusable("the training part is empty", fix="give more examples")
        self.source, self.seed, self.augment = source, seed, augment
        sizes = getattr(source, "sizes", None)  # examples that are padded to the longest of their batch
        self.order = Order(len(source), min(batch_size, len(source)), seed, drop_last=drop_last, sizes=sizes)
        self.steps_per_epoch: int = self.order.steps_per_epoch
        first = source[torch.arange(1)]
        bytes_each = sum(field.numel() * field.element_size() for field in first.fields.values())
        self.small = sizes is None and bytes_each * len(source) <= SMALL
        self._epoch, self._laid_out = -1, first
        self._step, self._taken = -1, first

    def batch(self, step: int, shard: int = 0, shards: int = 1, model: nn.Module | None = None) -> Batch:
        whole = self._whole(step)
        if shards > 1:
            start, stop = (-(-part * len(whole) // shards) for part in (shard, shard + 1))  # rounded up: shard 0 is never empty
            whole = whole[start:stop]
        return self.augment_batch(whole, step, shard)

    def example(self, n: int) -> Batch:
        return self.augment_batch(self.source[torch.arange(min(n, len(self.source)))], 0, 0)

    def fingerprint(self) -> str:
        return self.source.fingerprint()

    def _whole(self, step: int) -> Batch:
        """The undivided batch of a step.

        Small data are laid in the order of the epoch once and cut into views; every row is used once before they are laid out
        anew, so a model that writes into its input harms nothing.
        """
        if not self.small:
            if step != self._step:  # taken once for all shards
                self._taken, self._step = self.source[self.order.at(step)], step
            return self._taken
        epoch, position = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            self._laid_out, self._epoch = self.source[self.order.permutation(epoch)], epoch
        start = position * self.order.batch_size
        return self._laid_out[start : start + self.order.batch_size]

    def augment_batch(self, batch: Batch, step: int, shard: int) -> Batch:
        """What the augmentation makes of a batch at a step."""
        if self.augment is None or not len(batch):
            return batch
        return self.augment(batch, generator(self.seed, "augment", step, shard))


@final
class Augmented(Stream):
    """A stream whose batches are changed at random.

    Args:
        augment: changes a batch, drawing only from the generator it is given.
        seed: of that generator, with step and shard.
    """

    def __init__(self, stream: Stream, augment: Augment, seed: int) -> None:
        self.stream, self.augment, self.seed = stream, augment, seed
        self.steps_per_epoch, self.uses_model = stream.steps_per_epoch, stream.uses_model
        self.open, self.close, self.fingerprint = stream.open, stream.close, stream.fingerprint  # type: ignore[method-assign]
        self.state_dict, self.load_state_dict = stream.state_dict, stream.load_state_dict  # type: ignore[method-assign]

    def batch(self, step: int, shard: int, shards: int, model: nn.Module) -> Batch:
        batch = self.stream.batch(step, shard, shards, model)
        return self.augment(batch, generator(self.seed, "augment", step, shard)) if len(batch) else batch

    def example(self, n: int) -> Batch:
        return self.augment(self.stream.example(n), generator(self.seed, "augment", 0, 0))


@final
class ReadAhead(Stream):
    """A stateless stream whose batches are made by worker processes, ahead of the step that needs them.

    Args:
        stream: its `batch` must depend on step and shard alone: neither on the model nor on a state.
        workers: processes.
        ahead: batches that each of them makes in advance.
    """

    uses_model = False

    def __init__(self, stream: Stream, workers: int, ahead: int = 2) -> None:
        self.stream, self.workers, self.ahead = stream, workers, ahead
        self.steps_per_epoch = stream.steps_per_epoch
        self.own, self.shards = range(1), 1
        self._batches: Iterator[Batch | BaseException] | None = None
        self._next = (-1, -1)

    def open(self, own: range, shards: int) -> None:
        self.stream.open(own, shards)
        self.own, self.shards = own, shards

    def close(self) -> None:
        self._batches = None  # the iterator ends its workers when nothing refers to it
        self.stream.close()

    def batch(self, step: int, shard: int, shards: int, model: nn.Module | None = None) -> Batch:
        if self._batches is None or (step, shard) != self._next:
            self._batches = None
            self._batches = self._start(step, shard)
        try:
            batch = next(self._batches)
        except (RuntimeError, OSError, EOFError) as error:  # a worker was killed; what torch notices first differs
            reason = str(error).strip().split("\n")[0]
            raise ResourceFault(
                f"a worker that reads data ended: {reason}", where=f"step {step}", fix="the same command continues; use fewer --workers"
            ) from error
        if isinstance(batch, BaseException):
            raise batch
        self._next = self._after(step, shard)
        return batch

    def example(self, n: int) -> Batch:
        return self.stream.example(n)

    def fingerprint(self) -> str:
        return self.stream.fingerprint()

    def _after(self, step: int, shard: int) -> tuple[int, int]:
        return (step, shard + 1) if shard + 1 in self.own else (step + 1, self.own[0])

    def _places(self, step: int, shard: int) -> Iterator[tuple[int, int]]:
        while True:
            yield step, shard
            step, shard = self._after(step, shard)

    def _start(self, step: int, shard: int) -> Iterator[Batch | BaseException]:
        """Workers that make the batches from here on; torch hands out the places in turn and keeps the order."""
        loader: Any = torch.utils.data.DataLoader(
            _BatchDataset(self.stream, self.shards),
            batch_size=None,
            sampler=_Places(partial(self._places, step, shard)),
            num_workers=self.workers,
            prefetch_factor=self.ahead,
            collate_fn=_as_it_is,
            generator=torch.Generator(),  # else it draws a seed for its workers from the generator of the run
        )
        with keep_signal_handlers():
            return iter(loader)


@contextmanager
def keep_signal_handlers() -> Iterator[None]:
    """Undo the handler that torch installs with its first workers.

    It raises an error in whatever the process does when a worker dies, in the middle of a checkpoint too.  Without it the death is
    noticed by the next batch.
    """
    if threading.current_thread() is not threading.main_thread():  # torch installs none
        yield
        return
    handler = signal.getsignal(signal.SIGCHLD)
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, handler)


class _Places(torch.utils.data.Sampler):
    """An endless sampler: the steps and shards to come."""

    def __init__(self, places: Callable[[], Iterator[tuple[int, int]]]) -> None:
        self.places = places

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return self.places()


class _BatchDataset(torch.utils.data.Dataset):
    """The batch of a step and shard, or what went wrong with it, as an item of a torch data set."""

    def __init__(self, stream: Stream, shards: int) -> None:
        self.stream, self.shards = stream, shards

    def __getitem__(self, place: tuple[int, int]) -> Batch | BaseException:
        step, shard = place
        try:
            return self.stream.batch(step, shard, self.shards, nn.Identity())
        except Exception as error:
            return error


def _as_it_is(batch: Any) -> Any:
    return batch
