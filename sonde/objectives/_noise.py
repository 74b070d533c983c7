"""Random numbers that an objective needs: a field of the batch if it has one, else drawn."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..core.batch import Batch
from ..core.errors import BadInput


def normal(model: nn.Module, batch: Batch, shape: Sequence[int], field: str = "noise") -> Tensor:
    """Standard normal numbers of a shape, in the dtype and on the device of x.

    A field of the batch is used as it is.  Otherwise a model that trains gets fresh ones, from torch's generator, which the
    engine sets by (seed, step, shard); one that does not train gets the same every time, so evaluations can be compared.
    """
    noise, like = batch.get(field), batch.x
    if noise is not None:
        if noise.shape != torch.Size(shape):
            raise BadInput(f"the field '{field}' is {tuple(noise.shape)}, {tuple(shape)} is needed", where="objective")
        return noise
    dtype = like.dtype if like.is_floating_point() else torch.float32
    ids = batch.get("ids")  # other examples, other numbers
    first = 0 if ids is None or not len(ids) else int(ids[0])
    rng = None if model.training else torch.Generator(like.device).manual_seed(first)
    return torch.randn(*shape, generator=rng, device=like.device, dtype=dtype)
