"""Weights of examples: the field `weight` of the batch, 1 where there is none.

Weight 0 is the same as leaving the example out, weight 2 the same as repeating it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.batch import Batch
from ..core.errors import BadInput


def count(batch: Batch) -> float | Tensor:
    """The sum of the weights."""
    return batch.weight.sum(dtype=torch.float64) if "weight" in batch else float(len(batch))


def total(each: Tensor, batch: Batch) -> Tensor:
    """(B, ...) -> (...), the sum over examples; a value with weight 0 may be infinite or NaN."""
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
        index = int(bad.nonzero()[0])
        example = index if "ids" not in batch else int(batch.ids[index])
        raise BadInput(
            f"{name} takes weights that are finite and not negative, not {float(weight[index]):g} in example {example}",
            fix="fix the weights",
        )
