"""Spans of a batch that are separate sequences: padded rows, or several documents packed into one row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import final

import torch
from torch import Tensor
from torch.nn import functional as F

from ..core.errors import BadInput

State = dict[str, Tensor]
"""The state of a mixer: tensors with the batch as first axis."""
Mix = Callable[[Tensor, "State | None", Tensor], tuple[Tensor, State]]


@final
class Spans:
    """N spans of a batch of `rows`: row, start and stop of each, (N,) integers.

    Make one with `of_lengths`, `of_mask` or `of_bounds`.
    """

    def __init__(self, row: Tensor, start: Tensor, stop: Tensor, rows: int) -> None:
        self.row, self.start, self.stop, self.rows = row.long(), start.long(), stop.long(), rows

    @property
    def lengths(self) -> Tensor:
        return self.stop - self.start

    def __len__(self) -> int:
        return len(self.row)

    @classmethod
    def of_lengths(cls, lengths: Tensor) -> Spans:
        """Rows that each begin at 0 and end after their length; padding on the right."""
        if lengths.dim() != 1 or lengths.is_floating_point() or bool((lengths < 0).any()):
            raise BadInput("lengths must be one whole number >= 0 for each row", where="Spans", fix="give a tensor of shape (batch,)")
        return cls(torch.arange(len(lengths), device=lengths.device), torch.zeros_like(lengths), lengths, len(lengths))

    @classmethod
    def of_mask(cls, mask: Tensor) -> Spans:
        """Rows of a mask (B, T), true where a token counts; padding on the left or on the right."""
        if mask.dim() != 2:
            raise BadInput(f"a padding mask is (batch, time), not {tuple(mask.shape)}", where="Spans", fix="give one flag for each token")
        mask = mask.bool()
        start, count = mask.int().argmax(1), mask.sum(1)
        offsets = torch.arange(mask.shape[1], device=mask.device)
        whole = (offsets >= start.unsqueeze(1)) & (offsets < (start + count).unsqueeze(1))
        if not torch.equal(whole, mask):
            row = int((whole != mask).any(1).int().argmax())
            raise BadInput(f"row {row} of the mask has padding in the middle", where="Spans", fix="pad on the left or on the right only")
        return cls(torch.arange(len(mask), device=mask.device), start, start + count, len(mask))

    @classmethod
    def of_bounds(cls, bounds: Tensor) -> Spans:
        """Documents laid end to end in one row; bounds 0, n1, n1+n2, .. (also called cu_seqlens)."""
        if bounds.dim() != 1 or len(bounds) < 2 or bounds.is_floating_point():
            raise BadInput("cu_seqlens must be a row of two or more whole numbers", where="Spans", fix="give 0, n1, n1 + n2, ...")
        if int(bounds[0]) != 0 or bool((bounds.diff() < 0).any()):
            raise BadInput(
                f"cu_seqlens must begin at 0 and never fall, not {bounds.tolist()[:8]}", where="Spans", fix="give 0, n1, n1 + n2, ..."
            )
        return cls(torch.zeros(len(bounds) - 1, dtype=torch.long, device=bounds.device), bounds[:-1], bounds[1:], 1)

    def apply(self, mix: Mix, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Apply `mix(x, state, lengths)` to every span of x (B, T, D): y like x with zeros between, and one state for each.

        Spans of similar length run together as a padded batch, so at most half of it is padding.
        """
        self._check(x, state)
        y: Tensor | None = None
        states: list[tuple[Tensor, State]] = []
        for which in self._groups():
            lengths = self.lengths[which]
            offsets = torch.arange(max(int(lengths.max()), 1), device=x.device)
            inside = offsets < lengths.unsqueeze(1)
            time = (self.start[which].unsqueeze(1) + offsets).clamp_max(x.shape[1] - 1)
            row = self.row[which].unsqueeze(1).expand_as(time)
            # what lies beyond the end may be anything, even NaN, whose gradient would be NaN too
            part = torch.where(inside.unsqueeze(-1), x[row, time], 0)
            out, after = mix(part, None if state is None else {name: s[which] for name, s in state.items()}, lengths)
            if y is None:
                y = out.new_zeros(*x.shape[:2], *out.shape[2:])
            y = y.index_put((row[inside], time[inside]), out[inside])
            states.append((which, after))
        return (torch.zeros_like(x) if y is None else y), _join_states(states)

    def _groups(self) -> Iterator[Tensor]:
        """Groups of span indices, by decreasing length; the longest of a group is at most twice its shortest."""
        remaining = self.lengths.argsort(descending=True, stable=True)
        while len(remaining):
            longest = int(self.lengths[remaining[0]])
            n = int((self.lengths[remaining] * 2 >= longest).sum()) if longest > 1 else len(remaining)
            yield remaining[:n]
            remaining = remaining[n:]

    def _check(self, x: Tensor, state: State | None) -> None:
        # A row without a span would silently come out as zeros.
        if len(x) != self.rows:
            detail = "packed documents lie in one row" if self.rows == 1 else f"the spans are for {self.rows} rows"
            raise BadInput(f"x has {len(x)} rows, {detail}", where="axis 0 (batch)", fix=f"make x ({self.rows}, time, width)")
        if len(self) and int(self.stop.max()) > x.shape[1]:
            raise BadInput(
                f"a span ends at {int(self.stop.max())}, x has {x.shape[1]} tokens",
                where="axis 1 (time)",
                fix="give all of x",
            )
        for name, s in (state or {}).items():
            if len(s) != len(self):
                raise BadInput(
                    f"state '{name}' is for {len(s)} sequences, not {len(self)}",
                    where="axis 0 (batch)",
                    fix="pass state=None to start a new sequence",
                )


def _join_states(parts: list[tuple[Tensor, State]]) -> State:
    """One state from those of the groups, in the order of the spans; shorter caches are padded with zeros."""
    if not parts:
        return {}
    order = torch.cat([which for which, _ in parts]).argsort()
    joined = {}
    for name in parts[0][1]:
        tensors = [state[name] for _, state in parts]
        largest = [max(sizes) for sizes in zip(*(t.shape[1:] for t in tensors))]
        padded = [F.pad(t, [n for want, have in zip(reversed(largest), reversed(t.shape[1:])) for n in (0, want - have)]) for t in tensors]
        joined[name] = torch.cat(padded)[order]
    return joined
