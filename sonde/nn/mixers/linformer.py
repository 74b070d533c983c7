"""Linformer: keys and values are mixed along time into a fixed number of rows, o = softmax(scale q (E^T k)^T) (F^T v).

Wang et al., Linformer, 2020: cost linear in the length, N x rows pairs instead of N x N.  E and F have one row for each
position, so they limit the length; and every mixed key depends on all tokens, so it is never causal.  It has one form,
'parallel', and no state.

B batch, H heads, T time, K width of a head.
"""

from __future__ import annotations

from typing import Annotated, Literal, final

import torch
from torch import Tensor, nn

from ...core.errors import BadInput
from ...core.options import Range, checked
from ..recurrence import State
from ._mixer import Mixer
from ._parts import Heads, PositiveWidth, merge, split, width_per_head
from .attention import attend, refuse_state


@final
class Linformer(Mixer):
    """The layer: heads of softmax attention over mixed keys and values.

    Args:
        width: model dimension
        heads: number of attention heads
        rows: number of mixed keys and values
        max_len: longest sequence
        projection: learned, or random and fixed: Gaussian, which keeps inner products on average (Johnson and Lindenstrauss)
    """

    causal = False
    length_option = "max_len"
    E: Tensor
    F: Tensor

    @checked
    def __init__(
        self,
        width: PositiveWidth = 64,
        heads: Heads = 4,
        rows: Annotated[int, Range(1)] = 64,
        max_len: Annotated[int, Range(1)] = 1024,
        projection: Literal["learned", "random"] = "learned",
    ) -> None:
        super().__init__()
        width_per_head(width, heads, "Linformer")
        self.width, self.heads, self.max_len = width, heads, max_len
        self.q, self.k, self.v, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        for name in ("E", "F"):
            table = torch.randn(max_len, rows) * rows**-0.5
            if projection == "learned":
                setattr(self, name, nn.Parameter(table))
            else:
                self.register_buffer(name, table)

    def forms(self) -> tuple[str, ...]:
        return ("parallel",)

    def auto(self, length: int) -> tuple[str, str]:
        return "parallel", "the only one it has"

    def mix(self, x: Tensor, state: State | None, lengths: Tensor | None) -> tuple[Tensor, State]:
        refuse_state(state, "Linformer")
        T = x.shape[1]
        if self.max_len < T:
            raise BadInput(
                f"{T} tokens are more than the {self.max_len} lines of the tables E and F",
                where="Linformer",
                fix=f"make it with max_len={T}",
            )
        if lengths is not None:  # before mixing: afterwards no mask could remove them
            x = torch.where((torch.arange(T, device=x.device) < lengths.unsqueeze(1)).unsqueeze(-1), x, 0)
        q, k, v = (split(project(x), self.heads) for project in (self.q, self.k, self.v))
        o = attend(q, self.E[:T].mT @ k, self.F[:T].mT @ v)
        return self.out(merge(o)), {}


def tiny() -> Linformer:
    """A small layer for the contract tests."""
    return Linformer(width=12, heads=3, rows=5, max_len=4096)
