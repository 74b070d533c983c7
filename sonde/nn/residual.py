"""Residual connection: a branch learns a correction to its input [he2016a].

H(x) = F(x) + skip x          dL/dx = (dF/dx)^T dL/dH + skip dL/dH
"""

from __future__ import annotations

from typing import final

from torch import Tensor, nn

from ..core.errors import BadInput
from .images import run_layers


@final
class Residual(nn.Module):
    """branch(x) + skip * shortcut(x).

    Args:
        branch: F, any module; it may change the shape only where the shortcut does too
        shortcut: module on the shortcut; None is the identity
        skip: factor of the shortcut; 1 keeps gradients through any depth, less or more shrinks or grows them geometrically
    """

    def __init__(self, branch: nn.Module, shortcut: nn.Module | None = None, skip: float = 1.0) -> None:
        super().__init__()
        self.branch, self.shortcut, self.skip = branch, shortcut, skip

    def forward(self, x: Tensor) -> Tensor:
        identity = x if self.shortcut is None else self.shortcut(x)
        residual = run_layers(self.branch, x) if type(self.branch) is nn.Sequential else self.branch(x)
        if identity.shape != residual.shape:
            message = f"the branch gives {tuple(residual.shape)}, the shortcut {tuple(identity.shape)}"
            raise BadInput(message, where="residual connection", fix="give a shortcut that changes the shape as the branch does")
        return residual + identity if self.skip == 1 else residual + self.skip * identity
