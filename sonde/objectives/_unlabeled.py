"""Checks of objectives without targets."""

from __future__ import annotations

import torch

from ..core.batch import Batch
from ..core.errors import BadInput
from . import _weight


def check(batch: Batch, name: str) -> None:
    """Examples must be finite floating-point numbers, and weights valid."""
    x = batch.x
    if not x.is_floating_point():
        raise BadInput(f"{name} takes examples of real numbers, not {str(x.dtype).removeprefix('torch.')}", fix="convert them to float")
    bad = ~torch.isfinite(x).flatten(1).all(1)
    if bool(bad.any()):
        index = int(bad.nonzero()[0])
        example = index if "ids" not in batch else int(batch.ids[index])
        raise BadInput(f"{name} takes finite numbers, and example {example} has others", fix="clean the data")
    _weight.check(batch, name)
