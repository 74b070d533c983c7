"""The gated recurrent unit: a gate forgets before the new state is made, another chooses between old and new.

    R = s(X W_xr + H W_hr + b_r)    Z = s(X W_xz + H W_hz + b_z)    N = tanh(X W_xh + (R * H) W_hh + b_h)
    H' = Z * H + (1 - Z) * N

Cho et al., Learning Phrase Representations using RNN Encoder-Decoder, 2014.  torch multiplies by R after the product with
W_hh and not before: `reset_after`.  Others let Z take the new state, H' = (1 - Z) * H + Z * N: `update='take_new'`.
"""

from __future__ import annotations

from typing import Literal, final

import torch
from torch import Tensor, nn

from ...core.options import checked
from ...kernels.gates import gru
from ..recurrence import State
from ._cell import Cell, MemoryLength, gate_bias
from ._gates import at_least_float32
from ._parts import PositiveWidth


@final
class GRU(Cell):
    """The layer.  Its gates lie in torch's order r, z, n.

    Args:
        width: model dimension
        hidden: width of the state; None is that of the tokens, otherwise an output projection follows
        update: whether an open update gate keeps the old state or takes the new one
        reset_after: the reset gate scales W_hh H + b, as in torch, instead of the H it is made from
        memory: longest time constant of the chrono initialization, in steps; None initializes gate biases to 1
    """

    @checked
    def __init__(
        self,
        width: PositiveWidth = 64,
        hidden: PositiveWidth | None = None,
        update: Literal["keep_old", "take_new"] = "keep_old",
        reset_after: bool = False,
        memory: MemoryLength | None = None,
    ) -> None:
        super().__init__(width, hidden, gates=3)
        self.update = update
        self.reset_bias = nn.Parameter(torch.zeros(self.hidden)) if reset_after else None
        with torch.no_grad():  # start by keeping most of the old state
            keep = gate_bias(self.hidden, memory)
            self.x.bias[self.hidden : 2 * self.hidden] = keep if update == "keep_old" else -keep

    def step_cell(self, p: Tensor, state: State) -> State:
        h = state["h"]
        from_x, weights = p.chunk(3, -1), at_least_float32(self.h.weight).chunk(3)
        r, z = (torch.sigmoid(projection + h @ w.mT) for projection, w in zip(from_x[:2], weights))
        inner = (r * h) @ weights[2].mT if self.reset_bias is None else r * (h @ weights[2].mT + self.reset_bias)
        n = torch.tanh(from_x[2] + inner)
        return {"h": z * h + (1 - z) * n if self.update == "keep_old" else (1 - z) * h + z * n}

    def run_kernel(self, p: Tensor, state: State, lengths: Tensor | None) -> tuple[Tensor, State]:
        weight = self.h.weight
        if self.update == "take_new":  # 1 - s(a) = s(-a)
            signs = torch.tensor([1.0, -1.0, 1.0], dtype=p.dtype, device=p.device).repeat_interleave(self.hidden)
            p, weight = p * signs, weight * signs.unsqueeze(1)
        out, h = gru(p, weight, self.reset_bias, state["h"], lengths)
        return out, {"h": h}


def tiny() -> GRU:
    """A small layer for the contract tests."""
    return GRU(width=12)
