"""A fixed affine map after a network, so that it is trained on standardized targets and predicts in the user's units."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn


@final
class Affine(nn.Module):
    """y = shift + scale * x; both are buffers, not trained."""

    shift: Tensor
    scale: Tensor

    def __init__(self, shift: float = 0.0, scale: float = 1.0) -> None:
        super().__init__()
        self.register_buffer("shift", torch.tensor(float(shift)))
        self.register_buffer("scale", torch.tensor(float(scale)))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addcmul(self.shift, self.scale, x)
