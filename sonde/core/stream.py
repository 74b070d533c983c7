"""Stream: where the batches of a run come from.

A data set is the simple case: its batch is a function of (seed, step) and it has no state.  Experience, replay and mined
examples are the others: their batch also depends on the model and on a state of the stream.

    class Hard(Stream):
        def batch(self, step, shard, shards, model): ...      # the part `shard` of `shards` of the batch of a step
        def example(self, n): ...                              # n examples for a first look; changes no state

The shard, not the process, owns what a stream remembers: random keys, environments, buffers.  So a run on one, two or four
processes gives the same bits, as long as the number of shards is the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from .batch import Batch

STATE = "state."
"""prefix of the fields of a batch, and of the notes of an objective, that hold the state of a model from one step to the next"""


@dataclass(frozen=True)
class Measured:
    """What a step measured, for a stream that observes it.

    Args:
        loss: the mean loss over all shards and processes.
        means: name of each term of the objective -> its mean over all shards and processes.
        notes: for each shard of this process, what the objective noted about its examples (`Terms.note`).
    """

    loss: float
    means: Mapping[str, float] = field(default_factory=dict)
    notes: Mapping[int, Mapping[str, Tensor]] = field(default_factory=dict)


class Stream:
    """Batches, one step after another.  Only `batch` and `example` are needed; the rest is for streams with a state."""

    steps_per_epoch: int | None = None
    """steps in which every example comes once; None where there is no such thing"""
    uses_model = True
    """whether `batch` looks at the model"""

    def batch(self, step: int, shard: int, shards: int, model: nn.Module) -> Batch:
        """The part `shard` of `shards` of the batch of a step; called once for each step and shard, in this order.

        The model may be used, in evaluation mode and without gradients; the engine puts back its mode and random states.
        A part may be empty, but not that of shard 0.
        """
        raise NotImplementedError

    def example(self, n: int) -> Batch:
        """At most n examples like those of a batch, for checks before training.  It must not change the state."""
        raise NotImplementedError

    def open(self, own: range, shards: int) -> None:
        """Get ready: of `shards` shards this process will ask for `own`.  Called once, before the state is loaded."""

    def close(self) -> None:
        """End what `open` or `batch` started: processes, files, environments.  Called once, whatever happened."""

    def observe(self, step: int, measured: Measured) -> None:
        """Take note of what a step measured, after its update: errors of the examples, a divergence."""

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next batch depends on besides seed, step and weights: tensors, and what JSON can hold.

        Where it belongs to a shard, put it under a name of that shard (`f"shard-{shard}"`): every process gives its own.
        """
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` of all processes gave, also where there are more or fewer of them now."""

    def fingerprint(self) -> str:
        """A hash of what the batches are made from; a resumed run is refused where it differs."""
        return type(self).__qualname__

    @property
    def observes(self) -> bool:
        """Whether it wants to be told what a step measured."""
        return type(self).observe is not Stream.observe
