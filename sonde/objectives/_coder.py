"""A small encoder and decoder for the `tiny` instances of auto-encoder objectives."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from ..core.batch import Batch


@final
class Coder(nn.Module):
    """Three numbers into a sigmoid code of four and back; a `drawn` code is a mean and a log-variance."""

    def __init__(self, drawn: bool = False) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(3, 8), _Halves()) if drawn else nn.Sequential(nn.Linear(3, 4), nn.Sigmoid())
        self.decode = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        code = self.encode(x)
        return self.decode(code[0] if isinstance(code, tuple) else code)


@final
class _Halves(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        first, second = x.chunk(2, -1)
        return first, second


def examples() -> Batch:
    """Seven examples of three numbers."""
    return Batch(x=torch.linspace(-1, 1, 21).reshape(7, 3))
