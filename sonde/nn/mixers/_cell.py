"""Base class of RNN, GRU and LSTM: a cell computes the new state from the input and the old state.

Not linear in the state, so steps are sequential; the input projections of all steps are one matrix product.

B batch, T time, D width, H width of the state.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Annotated

import torch
from torch import Tensor, nn

from ... import kernels
from ...core.options import Range
from ..precision import full_precision
from ..recurrence import State
from ._gates import at_least_float32
from ._mixer import Mixer

MemoryLength = Annotated[int, Range(3)]


def gate_bias(units: int, memory: int | None) -> Tensor:
    """(units,) initial biases of a forget gate: 1 (Jozefowicz et al., 2015), or chrono initialization, with time constants between
    1 and `memory` steps (Tallec & Ollivier, Can Recurrent Neural Networks Warp Time?, 2018)."""
    return torch.ones(units) if memory is None else torch.empty(units).uniform_(1, memory - 1).log()


class Cell(Mixer, ABC):
    """A mixer that runs a cell over a sequence.  A subclass defines one step, `step_cell`, and all of them by a kernel, `run_kernel`."""

    hidden: int
    keeps: tuple[str, ...] = ("h",)
    """names of the state's tensors, each (B, H); the output is 'h'"""

    def __init__(self, width: int, hidden: int | None, gates: int, input_gates: int | None = None) -> None:
        """gates: how many read the old state; input_gates: how many of them read the input, all by default."""
        super().__init__()
        self.width, self.hidden = width, hidden or width
        self.x = nn.Linear(width, (gates if input_gates is None else input_gates) * self.hidden)
        self.h = nn.Linear(self.hidden, gates * self.hidden, bias=False)
        self.out = nn.Linear(self.hidden, width, bias=False) if self.hidden != width else None
        with torch.no_grad():
            self.x.bias.zero_()
            for part in self.x.weight.split(self.hidden):
                nn.init.xavier_uniform_(part)
            for part in self.h.weight.split(self.hidden):  # orthogonal: gradients neither vanish nor explode at the start
                nn.init.orthogonal_(part)

    @abstractmethod
    def step_cell(self, p: Tensor, state: State) -> State:
        """The definition: one step, from the input projection (B, gates H) and the old state."""

    @abstractmethod
    def run_kernel(self, p: Tensor, state: State, lengths: Tensor | None) -> tuple[Tensor, State]:
        """All steps by the compiled kernel: p (B, T, gates H) -> all h (B, T, H) and the state after them."""

    def forms(self) -> tuple[str, ...]:
        return ("step", "fused")

    def auto(self, length: int) -> tuple[str, str]:
        device = self.x.weight.device.type
        if device not in ("cpu", "meta"):
            return "step", f"there is no fused kernel for the device '{device}'"
        if not kernels.available():
            return "step", kernels.why_not()
        return "fused", "all steps in one call, the weights kept in cache"

    def mix(self, x: Tensor, state: State | None, lengths: Tensor | None) -> tuple[Tensor, State]:
        projection = self.x(x)
        p = at_least_float32(projection)
        old = state or {name: p.new_zeros(len(x), self.hidden) for name in self.keeps}
        old = {name: s.to(p.dtype) for name, s in old.items()}
        form = self.auto(x.shape[1])[0] if self.form == "auto" else self.form
        with full_precision(x):  # a state rounded at every step would drift
            out, new = self.run_kernel(p, old, lengths) if form == "fused" else self._steps(p, old, lengths)
        out = out.to(projection.dtype)
        return out if self.out is None else self.out(out), new

    def _steps(self, p: Tensor, state: State, lengths: Tensor | None) -> tuple[Tensor, State]:
        outs = []
        for t, now in enumerate(p.unbind(1)):
            new = self.step_cell(now, state)
            if lengths is not None:
                live = (t < lengths).unsqueeze(1)
                new = {name: torch.where(live, s, state[name]) for name, s in new.items()}
            outs.append(new["h"])
            state = new
        return torch.stack(outs, 1), state
