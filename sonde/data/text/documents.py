"""Documents of different length as batches: padded rows, next-token targets, and several documents packed into one row.

B batch, T time, R documents, N tokens of all of them.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, final

import numpy as np
import torch
from torch import Tensor

from ...core.batch import Batch
from ...core.errors import BadInput, DataUnusable
from ...core.options import Range, checked
from ..tensors import TensorSource, fingerprint


@final
class Ragged:
    """Rows of different length, concatenated: values (N,) and bounds 0, n1, n1 + n2, ... (R + 1,)."""

    def __init__(self, values: Tensor, bounds: Tensor) -> None:
        if bounds.dim() != 1 or not len(bounds) or int(bounds[0]) != 0 or int(bounds[-1]) != len(values) or bool((bounds.diff() < 0).any()):
            raise BadInput(
                f"bounds must rise from 0 to {len(values)}, the number of values", where="Ragged", fix="give 0, n1, n1 + n2, ..."
            )
        self.values, self.bounds = values, bounds.long()

    @classmethod
    def of(cls, rows: Iterable[Tensor | Sequence[int]]) -> Ragged:
        parts = [torch.as_tensor(row) for row in rows]
        lengths = torch.tensor([0, *map(len, parts)])
        return cls(torch.cat(parts).long() if parts else torch.zeros(0, dtype=torch.long), lengths.cumsum(0))

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __getitem__(self, row: int) -> Tensor:
        return self.values[self.bounds[row] : self.bounds[row + 1]]

    @property
    def lengths(self) -> Tensor:
        return self.bounds.diff()

    def pad(self, rows: Tensor, fill: int) -> Tensor:
        """Some rows as (B, longest of them), padded on the right, with one gather."""
        start, length = self.bounds[rows], self.lengths[rows]
        positions = torch.arange(int(length.max()))
        if not len(self.values):
            return torch.full((len(rows), len(positions)), fill)
        tokens = self.values[(start.unsqueeze(1) + positions).clamp_max_(len(self.values) - 1)]
        return torch.where(positions < length.unsqueeze(1), tokens.long(), fill)

    def select(self, rows: Tensor) -> Ragged:
        """Some rows as a new Ragged."""
        start, length = self.bounds[rows], self.lengths[rows]
        bounds = torch.cat([torch.zeros(1, dtype=torch.long), length.cumsum(0)])
        return Ragged(self.values[_ranges(start, length)], bounds)

    def truncate(self, most: int) -> Ragged:
        """The same rows, each truncated to `most` values."""
        length = self.lengths.clamp_max(most)
        return Ragged(self.values[_ranges(self.bounds[:-1], length)], torch.cat([self.bounds[:1], length.cumsum(0)]))

    def wrap(self, start: int | None = None, end: int | None = None) -> Ragged:
        """Every row with a start value before it, an end value after it, or both."""
        before, more = int(start is not None), int(start is not None) + int(end is not None)
        bounds = self.bounds + more * torch.arange(len(self.bounds))
        values = torch.empty(int(bounds[-1]), dtype=torch.long)
        if start is not None:
            values[bounds[:-1]] = start
        if end is not None:
            values[bounds[1:] - 1] = end
        values[_ranges(bounds[:-1] + before, self.lengths)] = self.values.long()
        return Ragged(values, bounds)


@final
class DocumentSource:
    """Whole documents: x (B, T) padded to the longest of the batch, their `lengths`, and y if there is one.

    y is a label for each document (R,), or a tag for each token: then the mask is true at tokens.
    """

    def __init__(self, rows: Ragged, pad: int, y: Tensor | Ragged | None = None, ids: Tensor | None = None) -> None:
        check_rows(rows)
        if y is not None and len(y) != len(rows):
            raise BadInput(f"there are {len(rows)} documents but {len(y)} targets", fix="give one target for each")
        if isinstance(y, Ragged) and not torch.equal(y.bounds, rows.bounds):
            raise BadInput("tags and tokens differ in number", fix="give one tag for each token")
        self.rows, self.pad, self._y = rows, pad, y
        self.ids = torch.arange(len(rows)) if ids is None else ids

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def sizes(self) -> Tensor:
        """Length of each example; a batch holds examples of similar size."""
        return self.rows.lengths

    @property
    def y(self) -> Tensor:
        """All labels."""
        return self._y.values if isinstance(self._y, Ragged) else torch.as_tensor(self._y)

    def __getitem__(self, indices: Any) -> Batch:
        which = as_indices(indices, len(self))
        fields = {"x": self.rows.pad(which, self.pad), "lengths": self.rows.lengths[which], "ids": self.ids[which]}
        if isinstance(self._y, Ragged):
            fields |= {"y": self._y.pad(which, 0), "mask": length_mask(fields["lengths"])}
        elif self._y is not None:
            fields["y"] = self._y[which]
        return Batch(**fields)

    def subset(self, indices: Tensor) -> DocumentSource:
        y = self._y.select(indices) if isinstance(self._y, Ragged) else None if self._y is None else self._y[indices]
        return DocumentSource(self.rows.select(indices), self.pad, y, self.ids[indices])

    def fingerprint(self) -> str:
        y = {} if self._y is None else {"y": self._y.values if isinstance(self._y, Ragged) else self._y}
        return fingerprint({"values": self.rows.values, "bounds": self.rows.bounds, "ids": self.ids, **y})


@final
class LineSource:
    """Short documents for next-token prediction: x (B, T), y shifted by one, padded; the mask is true where y counts.

    Rows with a start and an end token teach the model where a line begins and ends.
    """

    def __init__(self, rows: Ragged, pad: int, ids: Tensor | None = None) -> None:
        check_rows(rows, least=2)
        self.rows, self.pad = rows, pad
        self.ids = torch.arange(len(rows)) if ids is None else ids

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def sizes(self) -> Tensor:
        return self.rows.lengths

    def __getitem__(self, indices: Any) -> Batch:
        which = as_indices(indices, len(self))
        return Batch(**shift_targets(self.rows, which, self.pad), ids=self.ids[which])

    def subset(self, indices: Tensor) -> LineSource:
        return LineSource(self.rows.select(indices), self.pad, self.ids[indices])

    def fingerprint(self) -> str:
        return fingerprint({"values": self.rows.values, "bounds": self.rows.bounds, "ids": self.ids})


def shift_targets(rows: Ragged, which: Tensor, pad: int) -> dict[str, Tensor]:
    """x without each row's last token, y without its first, the mask where y counts, and lengths of x."""
    lengths = rows.lengths[which] - 1
    whole, mask = rows.pad(which, pad), length_mask(lengths)
    x = torch.where(mask, whole[:, :-1], pad)  # the last token of a shorter row is only a target
    return {"x": x, "y": whole[:, 1:].contiguous(), "mask": mask, "lengths": lengths}


def length_mask(lengths: Tensor, width: int | None = None) -> Tensor:
    """(B, T), true at positions before the end of each row."""
    return torch.arange(int(lengths.max()) if width is None else width) < lengths.unsqueeze(1)


@checked
def pack(rows: Ragged, length: Annotated[int, Range(1)], pad: int) -> TensorSource:
    """Pack whole documents into rows of one length by best fit, padded at the end.

    x, y (R', T), the mask where y counts (never across documents), and `documents` (R', T): which of the row's documents a
    token belongs to, -1 for padding; `stretches` turns it into spans.  A document too long for a row is split.
    """
    check_rows(rows, least=2)
    starts, sizes = _chunks(rows, length + 1)  # one more than fits: the last token is only a target
    home, position = _best_fit(sizes - 1, length)
    n = int(home.max()) + 1
    x, y, documents = torch.full((n, length), pad), torch.full((n, length), pad), torch.full((n, length), -1)
    token, at = _ranges(starts, sizes - 1), _ranges(torch.from_numpy(home * length + position), sizes - 1)
    x.view(-1)[at], y.view(-1)[at] = rows.values[token].long(), rows.values[token + 1].long()
    order = np.lexsort((position, home))
    number = np.empty(len(home), np.int64)
    number[order] = np.arange(len(home)) - np.searchsorted(home[order], home[order])  # documents before it in its row
    documents.view(-1)[at] = torch.from_numpy(number).repeat_interleave(sizes - 1)
    return TensorSource(x, y, mask=documents >= 0, documents=documents)


def stretches(documents: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Row, start and stop of every document of a packed batch, for `Spans(*stretches(batch.documents), rows=len(batch))`."""
    edge = torch.full_like(documents[:, :1], -2)
    change = torch.cat([edge, documents], 1) != torch.cat([documents, edge], 1)  # (B, T + 1), true before a first and after a last token
    row, at = change.nonzero(as_tuple=True)
    same = row[1:] == row[:-1]
    start, stop, row = at[:-1][same], at[1:][same], row[:-1][same]
    real = documents[row, start] >= 0
    return row[real], start[real], stop[real]


def _chunks(rows: Ragged, most: int) -> tuple[Tensor, Tensor]:
    """Start and size of chunks of at most `most` tokens; neighboring chunks of a document share a token, the last target of one."""
    lengths, step = rows.lengths, most - 1
    counts = (lengths - 2) // step + 1
    number = torch.arange(int(counts.sum())) - (counts.cumsum(0) - counts).repeat_interleave(counts)
    start = number * step
    size = (lengths.repeat_interleave(counts) - start).clamp_max(most)
    return rows.bounds[:-1].repeat_interleave(counts) + start, size


def _best_fit(sizes: Tensor, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Row and position of each chunk: the longest first, each in the row where it leaves the least room."""
    home, position = np.empty(len(sizes), np.int64), np.empty(len(sizes), np.int64)
    free: list[tuple[int, int]] = []
    rows = 0
    for piece in sizes.argsort(descending=True, stable=True).tolist():
        size = int(sizes[piece])
        at = bisect_left(free, (size, -1))
        room, row = free.pop(at) if at < len(free) else (length, rows)
        rows += row == rows
        home[piece], position[piece] = row, length - room
        if room > size:
            insort(free, (room - size, row))
    return home, position


def _ranges(start: Tensor, length: Tensor) -> Tensor:
    """start[0], start[0] + 1, ... (length[0] of them), start[1], ...: concatenated ranges of positions."""
    before = length.cumsum(0) - length
    return torch.arange(int(length.sum())) + (start - before).repeat_interleave(length)


def as_indices(indices: Any, n: int) -> Tensor:
    return torch.arange(n)[indices] if isinstance(indices, slice) else torch.as_tensor(indices)


def check_rows(rows: Ragged, least: int = 1) -> None:
    """Refuse documents with fewer tokens than `least`: an empty one has no last state, no mean and no target."""
    if not len(rows):
        raise DataUnusable("there are no documents", where="data", fix="give text that is not empty")
    short = (rows.lengths < least).nonzero().flatten()
    if len(short):
        detail = "no token" if least == 1 else f"fewer than {least} tokens"
        raise DataUnusable(
            f"{len(short)} of {len(rows)} documents have {detail}", where=f"first: document {int(short[0])}", fix="leave them out"
        )
