"""What objectives without targets share: the data themselves are what has to be found."""

from __future__ import annotations

import torch

from ..core.batch import Batch
from ..core.errors import BadInput
from . import _weight


def check(batch: Batch, name: str) -> None:
    """Examples must be finite numbers, and weights such as can be counted by."""
    x = batch.x
    if not x.is_floating_point():
        raise BadInput(f"{name} takes examples of real numbers, not {str(x.dtype).removeprefix('torch.')}", fix="turn them to floats")
    bad = ~torch.isfinite(x).flatten(1).all(1)
    if bool(bad.any()):
        place = int(bad.nonzero()[0])
        example = place if "ids" not in batch else int(batch.ids[place])
        raise BadInput(f"{name} takes finite numbers, which example {example} has not", fix="clean the data")
    _weight.check(batch, name)
