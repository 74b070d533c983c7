"""How much each example counts: as much as its `weight` in the batch says, once where there is none.

With weight 0 an example might as well be absent, with weight 2 it might as well be there twice.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.batch import Batch
from ..core.errors import BadInput


def count(batch: Batch) -> float | Tensor:
    """Examples, each as often as it counts."""
    return batch.weight.sum(dtype=torch.float64) if "weight" in batch else float(len(batch))


def total(each: Tensor, batch: Batch) -> Tensor:
    """(B, ...) -> (...), the sum over examples; what does not count may be infinite or NaN without harm."""
    weight = batch.get("weight")
    if weight is None:
        return each.sum(0)
    weight = weight.reshape(-1, *(1,) * (each.ndim - 1))
    return (each.masked_fill(weight == 0, 0) * weight.to(each.dtype)).sum(0)


def check(batch: Batch, name: str) -> None:
    """Weights must be finite numbers >= 0, one per example."""
    weight = batch.get("weight")
    if weight is None:
        return
    if weight.shape != (len(batch),):
        raise BadInput(f"the weight is {tuple(weight.shape)} for {len(batch)} examples", where=name, fix="give one number per example")
    bad = ~(weight.isfinite() & (weight >= 0))
    if bool(bad.any()):
        place = int(bad.nonzero()[0])
        example = place if "ids" not in batch else int(batch.ids[place])
        raise BadInput(
            f"{name} takes weights that are finite and not negative, not {float(weight[place]):g} in example {example}",
            fix="fix the weights",
        )
