"""Truncated back-propagation through time with a carried state: a sequence is read in windows, one an update.

The state after a window is where the next one starts, and no gradient passes between them.  (`Truncated` reads the pieces of one
sequence within one update.)
"""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor, nn

from ..core.batch import Batch
from ..core.errors import BadInput
from ..core.stream import STATE
from ..core.terms import Terms
from ._wrapper import Wrapper
from .gaussian import Gaussian


@final
class Carried(Wrapper):
    """The objective's own terms, from `model.advance(x, state) -> (output, state)`; the state after it is noted for the stream.

    Rows that the batch marks as `fresh` start from an empty state, the others from the fields `state.*` of the batch.

    Args:
        objective: the objective of one window
    """

    def __init__(self, objective: Any) -> None:
        self.objective = objective

    def __call__(self, model: nn.Module, batch: Batch) -> Terms:
        if not hasattr(model, "advance"):
            raise BadInput(f"{type(model).__name__} cannot continue from a state", where="carried", fix="use a model with `advance`")
        before = {name.removeprefix(STATE): value for name, value in batch.fields.items() if name.startswith(STATE)}
        output, after = advance(model, batch.x, before, batch.get("fresh"))
        terms = self.objective.terms(output, batch)
        return terms.note(**{STATE + name: value for name, value in after.items()})

    def counts(self, batch: Batch) -> dict[str, float]:
        return self.objective.counts(batch)


def advance(model: Any, x: Tensor, state: dict[str, Tensor], fresh: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
    """The output (B, T, ...) and the state after it, of rows some of which have no state yet.

    Args:
        fresh: (B,) True for rows without a state; None for all.
    """
    if fresh is None or bool(fresh.all()):
        return model.advance(x, None)
    if not bool(fresh.any()):
        return model.advance(x, state)
    old, new = (~fresh).nonzero().flatten(), fresh.nonzero().flatten()
    outputs, states = zip(
        model.advance(x[old], {name: value[old] for name, value in state.items()}), model.advance(x[new], None), strict=True
    )
    place = torch.cat([old, new]).argsort()
    if any(one.shape[1:] != states[1][name].shape[1:] for name, one in states[0].items()):
        raise BadInput("the state of the model grows with the text", where="carried", fix="use a recurrent mixer, such as gla or gru")
    return torch.cat(outputs)[place], {name: torch.cat([one, states[1][name]])[place] for name, one in states[0].items()}


def tiny() -> tuple[Carried, nn.Module, Batch]:
    """A small working instance with input: seven rows, two of which are fresh."""

    class Sums(nn.Linear):
        """Running sums of a linear map."""

        def forward(self, x: Tensor) -> Tensor:
            return self.advance(x, None)[0]

        def advance(self, x: Tensor, state: dict[str, Tensor] | None) -> tuple[Tensor, dict[str, Tensor]]:
            y = torch.tanh(super().forward(x)).cumsum(1) + (0 if state is None else state["last"].unsqueeze(1))
            return y, {"last": y[:, -1]}

    x = torch.linspace(-1, 1, 105).reshape(7, 5, 3)
    last = torch.linspace(-1, 1, 14).reshape(7, 2)
    batch = Batch(x=x, y=torch.sin(x[..., :2]), fresh=torch.arange(7) % 5 == 1, **{STATE + "last": last})
    return Carried(Gaussian()), Sums(3, 2), batch
