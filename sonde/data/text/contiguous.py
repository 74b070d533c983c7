"""Contiguous text: readers that go on where they stopped, with the state in which the model left them.

The text is cut into as many tracks as a batch has rows.  A reader reads its track window by window, and starts again at its end:

    tokens    | track 0          | track 1          | track 2          |
    step 0      [window]           [window]           [window]
    step 1              [window]           [window]           [wi|         a document ended: its window is short, and the next
    step 2                   ...                ...              [window]  one starts with an empty state

So the state of a recurrent model reaches back much further than a window, while gradients stay inside one (truncated
back-propagation through time with a carried state).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn

from ...core.batch import Batch
from ...core.errors import BadInput
from ...core.stream import STATE, Measured, Stream
from ..tensors import fingerprint


@final
class ContiguousStream(Stream):
    """Windows of a text in order.

    Args:
        tokens: the text (N,).
        length: tokens of a window; a gradient goes back at most this far.
        batch_size: readers, over all shards.
        ends: positions of the last tokens of documents.
    """

    uses_model = False

    def __init__(self, tokens: Tensor, length: int, batch_size: int, ends: Sequence[int] | Tensor = ()) -> None:
        self.tokens, self.length, self.batch_size = tokens, length, batch_size
        track = (len(tokens) - 1) // batch_size
        if track < length:
            raise BadInput(
                f"{len(tokens)} tokens in {batch_size} tracks are fewer than {length} for each",
                fix="use a smaller batch or context, or more text",
            )
        self.starts = torch.arange(batch_size) * track
        self.stops = self.starts + track
        cuts = torch.cat([torch.as_tensor(ends, dtype=torch.int64).view(-1) + 1, self.stops])
        self.cuts = cuts.unique()
        """positions at which a window ends in any case"""
        self.steps_per_epoch: int = -(-track // length)
        self._readers: dict[int, Readers] = {}

    def open(self, own: range, shards: int) -> None:
        self._readers = {}
        for shard in own:
            first, last = (-(-part * self.batch_size // shards) for part in (shard, shard + 1))
            self._readers[shard] = Readers(self.starts[first:last].clone(), self.starts[first:last], self.stops[first:last])

    def batch(self, step: int, shard: int, shards: int, model: nn.Module) -> Batch:
        readers = self._readers[shard]
        batch = self._windows(readers.position)
        readers.taken = batch.mask.sum(1)
        return Batch(**batch.fields, fresh=readers.fresh.clone(), **{STATE + name: value for name, value in readers.state.items()})

    def example(self, n: int) -> Batch:
        batch = self._windows(self.starts[:n])
        return Batch(**batch.fields, fresh=torch.ones(len(batch), dtype=torch.bool))

    def observe(self, step: int, measured: Measured) -> None:
        for shard, readers in self._readers.items():
            notes = measured.notes.get(shard, {})
            readers.state = {name.removeprefix(STATE): value for name, value in notes.items() if name.startswith(STATE)}
            readers.go_on(self.cuts)

    def state_dict(self) -> dict[str, Any]:
        return {
            f"shard-{shard}": {"position": one.position, "fresh": one.fresh, "state": one.state} for shard, one in self._readers.items()
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for shard, one in self._readers.items():
            saved = state[f"shard-{shard}"]
            one.position, one.fresh, one.state = saved["position"].clone(), saved["fresh"].clone(), dict(saved["state"])

    def fingerprint(self) -> str:
        return fingerprint({"tokens": self.tokens, "cuts": self.cuts, "window": torch.tensor([self.length, self.batch_size])})

    def _windows(self, position: Tensor) -> Batch:
        """The windows at these positions: x, y and a mask that ends where a document or a track does."""
        cut = self.cuts[torch.searchsorted(self.cuts, position, right=True)]
        index = position.unsqueeze(1) + torch.arange(self.length + 1)
        rows = self.tokens[index.clamp(max=len(self.tokens) - 1)].to(torch.int64)
        mask = index[:, :-1] < cut.unsqueeze(1)
        return Batch(x=rows[:, :-1].contiguous(), y=rows[:, 1:].contiguous(), mask=mask)


@final
class Readers:
    """The readers of one shard: where each is, and the state that the model left it in.

    Args:
        position: of the next token that each reads.
        starts: of their tracks.
        stops: of their tracks.
    """

    def __init__(self, position: Tensor, starts: Tensor, stops: Tensor) -> None:
        self.position, self.starts, self.stops = position, starts, stops
        self.fresh = torch.ones(len(position), dtype=torch.bool)
        """those that begin a document, with an empty state"""
        self.state: dict[str, Tensor] = {}
        self.taken = torch.zeros_like(position)
        """tokens of the last window of each"""

    def go_on(self, cuts: Tensor) -> None:
        """Move behind the last window; at the end of a document or track the next one is fresh."""
        self.position = self.position + self.taken
        self.fresh = torch.isin(self.position, cuts)
        self.position = torch.where(self.position >= self.stops, self.starts, self.position)
