"""Truncated back-propagation through time: a long sequence is read in pieces, and no gradient passes between pieces.

The value of the loss is that of the whole sequence.  Of the gradient dh_t/dw = sum_{i<=t} (prod_{j=i+1..t} dh_j/dh_{j-1}) df_i/dw
only the terms since the start of the piece of t remain: at most as many as a piece has steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, final

import torch
from torch import Tensor, nn

from ..core.batch import Batch
from ..core.errors import BadInput
from ..core.options import Count, checked
from ..core.terms import Terms
from ._wrapper import Wrapper
from .gaussian import Gaussian


@final
class Truncated(Wrapper):
    """The objective's own terms, piece by piece, through `model.advance(x, state) -> (output, state)`.

    Nothing is stored between calls: each sequence starts from an empty state, so a run resumes exactly.

    Args:
        objective: the objective of one piece
        steps: tokens per piece, the maximal number of steps a gradient is propagated
        ordered: pass the detached state from piece to piece; otherwise each piece starts from an empty state
    """

    @checked
    def __init__(self, objective: Any, steps: Count = 32, ordered: bool = True) -> None:
        self.objective, self.steps, self.ordered = objective, steps, ordered

    def __call__(self, model: nn.Module, batch: Batch) -> Terms:
        if not hasattr(model, "advance"):
            raise BadInput(f"{type(model).__name__} cannot continue from a state", where="truncated", fix="use a model with `advance`")
        terms, state = Terms(), None
        for piece in self._pieces(batch):
            output, state = model.advance(piece.x, state)  # type: ignore[operator]
            state = {name: value.detach() for name, value in state.items()} if self.ordered else None
            terms = terms + self.objective.terms(output, piece)
        return terms

    def counts(self, batch: Batch) -> dict[str, float]:
        return self.objective.counts(batch)

    def _pieces(self, batch: Batch) -> Iterator[Batch]:
        """Split the fields with a time axis; other fields are part of every piece."""
        length = batch.x.shape[1]
        timed = {name for name, value in batch.fields.items() if value.ndim > 1 and value.shape[1] == length}
        if "y" not in timed:
            raise BadInput("truncated backpropagation needs a target for each step", where="truncated", fix="give y (batch, time)")
        for start in range(0, length, self.steps):
            yield batch.replace(**{name: batch.fields[name][:, start : start + self.steps] for name in timed})


def tiny() -> tuple[Truncated, nn.Module, Batch]:
    """A small working instance with input.  Its pieces do not share a state, so its gradient is that of its value."""

    class Sums(nn.Linear):
        """Running sums of a linear map."""

        def forward(self, x: Tensor) -> Tensor:
            return self.advance(x, None)[0]

        def advance(self, x: Tensor, state: dict[str, Tensor] | None) -> tuple[Tensor, dict[str, Tensor]]:
            y = torch.tanh(super().forward(x)).cumsum(1) + (0 if state is None else state["last"].unsqueeze(1))
            return y, {"last": y[:, -1]}

    x = torch.linspace(-1, 1, 105).reshape(7, 5, 3)
    return Truncated(Gaussian(), steps=2, ordered=False), Sums(3, 2), Batch(x=x, y=torch.sin(x[..., :2]))
