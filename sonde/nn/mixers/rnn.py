"""The vanilla recurrent net: h_t = g(V x_t + U h_{t-1} + c), the same weights at every step.

Elman, Finding Structure in Time, 1990.  B batch, T time, H width of the state.
"""

from __future__ import annotations

from typing import Literal, final

import torch
from torch import Tensor

from ...core.options import checked
from ...kernels.gates import rnn
from ..recurrence import State
from ._cell import Cell
from ._gates import at_least_float32
from ._parts import PositiveWidth


@final
class RNN(Cell):
    """The layer.

    Args:
        width: model dimension
        hidden: width of the state; None is that of the tokens, otherwise an output projection follows
        activation: the nonlinearity g
    """

    @checked
    def __init__(
        self, width: PositiveWidth = 64, hidden: PositiveWidth | None = None, activation: Literal["tanh", "relu"] = "tanh"
    ) -> None:
        super().__init__(width, hidden, gates=1)
        self.activation = activation

    def step_cell(self, p: Tensor, state: State) -> State:
        pre = p + state["h"] @ at_least_float32(self.h.weight).mT
        return {"h": torch.tanh(pre) if self.activation == "tanh" else torch.relu(pre)}

    def run_kernel(self, p: Tensor, state: State, lengths: Tensor | None) -> tuple[Tensor, State]:
        out, h = rnn(p, self.h.weight, state["h"], lengths, relu=self.activation == "relu")
        return out, {"h": h}


def tiny() -> RNN:
    """A small layer for the contract tests."""
    return RNN(width=12, hidden=20)
