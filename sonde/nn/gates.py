"""Gates as logarithms: a product over a thousand steps is a sum, and a gate near 1 keeps its digits."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def log_sigmoid(x: Tensor, slowness: float = 1.0) -> Tensor:
    """log of sigmoid(x)^(1 / slowness), in float32 or better: rounding a gate to half precision forgets at another rate."""
    return F.logsigmoid(x.to(torch.promote_types(x.dtype, torch.float32))) / slowness


def complement(log_a: Tensor) -> Tensor:
    """1 - a, right to the last digit where a is near 1."""
    return -torch.expm1(log_a)
