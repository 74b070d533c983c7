"""Where autocast must not round: sums over a whole sequence, arguments of exp, hashes."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def full_precision(x: Tensor) -> AbstractContextManager[object]:
    """Inside this `with` operations on the device of x keep the precision of their inputs."""
    # Meta tensors compute nothing, and autocast does not know their device.
    return nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False)
