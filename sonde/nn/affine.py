"""A fixed straight line after a network, so that it works on standard numbers and answers in the user's own units."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn


@final
class Affine(nn.Module):
    """y = shift + scale * x with numbers that are not trained."""

    shift: Tensor
    scale: Tensor

    def __init__(self, shift: float = 0.0, scale: float = 1.0) -> None:
        super().__init__()
        self.register_buffer("shift", torch.tensor(float(shift)))
        self.register_buffer("scale", torch.tensor(float(scale)))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addcmul(self.shift, self.scale, x)
