"""The long short-term memory: a cell with forget, input and output gates.

    I, F, O = s(X W_x + H W_h + b) each with its own weights    G = tanh(X W_xc + H W_hc + b_c)
    C' = F * C + I * G    H' = O * tanh(C')

Hochreiter & Schmidhuber, Long Short-Term Memory, 1997; the forget gate: Gers et al., 2000.  The output gate may also see the
new cell: through a weight for each unit (`peephole`, Gers & Schmidhuber, 2000), or through a matrix and instead of the input,
O = s(H W_ho + C' W_co + b_o) (`cell_only`).
"""

from __future__ import annotations

from typing import Literal, final

import torch
from torch import Tensor, nn

from ...core.options import checked
from ...kernels.gates import lstm
from ..recurrence import State
from ._cell import Cell, MemoryLength, gate_bias
from ._gates import at_least_float32
from ._parts import PositiveWidth


@final
class LSTM(Cell):
    """The layer.  Its gates lie in torch's order i, f, g, o.

    Args:
        width: model dimension
        hidden: width of the state; None is that of the tokens, otherwise an output projection follows
        output_gate: inputs of the output gate: input and state, the new cell too, or state and new cell only
        memory: longest time constant of the chrono initialization, in steps; None initializes gate biases to 1
    """

    keeps = ("h", "c")

    @checked
    def __init__(
        self,
        width: PositiveWidth = 64,
        hidden: PositiveWidth | None = None,
        output_gate: Literal["standard", "cell_only", "peephole"] = "standard",
        memory: MemoryLength | None = None,
    ) -> None:
        super().__init__(width, hidden, gates=4, input_gates=3 if output_gate == "cell_only" else 4)
        H = self.hidden
        # weights of the cell: a vector, or a matrix with the gate's bias
        self.cell = nn.Linear(H, H) if output_gate == "cell_only" else None
        self.peephole = nn.Parameter(torch.zeros(H)) if output_gate == "peephole" else None
        with torch.no_grad():
            self.x.bias[H : 2 * H] = keep = gate_bias(H, memory)
            if memory is not None:  # chrono initialization: cells with a longer memory are written more slowly
                self.x.bias[:H] = -keep
            if self.cell is not None:
                nn.init.xavier_uniform_(self.cell.weight)
                self.cell.bias.zero_()

    def step_cell(self, p: Tensor, state: State) -> State:
        i, f, g, *o = p.chunk(3 if self.cell is not None else 4, -1)
        hi, hf, hg, ho = (state["h"] @ at_least_float32(self.h.weight).mT).chunk(4, -1)
        c = torch.sigmoid(f + hf) * state["c"] + torch.sigmoid(i + hi) * torch.tanh(g + hg)
        if self.cell is not None:
            seen = ho + c @ at_least_float32(self.cell.weight).mT + self.cell.bias
        else:
            seen = o[0] + ho if self.peephole is None else o[0] + ho + self.peephole * c
        return {"h": torch.sigmoid(seen) * torch.tanh(c), "c": c}

    def run_kernel(self, p: Tensor, state: State, lengths: Tensor | None) -> tuple[Tensor, State]:
        inner, vector = (None, self.peephole) if self.cell is None else (self.cell.weight, self.cell.bias)
        out, h, c = lstm(p, self.h.weight, state["h"], state["c"], lengths, vector=vector, inner=inner)
        return out, {"h": h, "c": c}


def tiny() -> LSTM:
    """A small layer for the contract tests."""
    return LSTM(width=12)
