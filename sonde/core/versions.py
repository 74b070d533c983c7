"""Whether what was made from the weights of a model (packed, quantized or recorded) is still made from these weights."""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor, nn

SAMPLE = 64
"""numbers of each matrix that are compared where not all are"""
BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@final
class WeightVersions:
    """The parameters and buffers of a model at one time, to notice that they have changed.

    `same_counts` reads torch's counters of changes of the matrices, a few microseconds: it notices in-place operations,
    `load_state_dict`, the optimizers of torch that are not fused, and the updates and loads of the engine, which counts its own.
    `same_weights` also notices changed vectors, replaced modules and parameters, memory that moved (`.to`, `.data = ...`), and what
    torch does not count: writes to matrices through `.data`, through NumPy and by fused optimizers.  Where `exact`, it reads all
    matrices for that, and whatever changed is noticed; else it reads a few numbers of each, which every update and load changes,
    but perhaps not an edit of single numbers through `.data`: make that under `torch.no_grad()`.
    """

    def __init__(self, model: nn.Module, exact: bool = False) -> None:
        self.exact = exact
        self._tables: list[dict[str, Any]] = [
            table for part in model.modules() for table in (part._parameters, part._buffers, part._modules) if table
        ]
        self._parts = [(table, name, part) for table in self._tables for name, part in table.items()]
        self._tensors = [part for _, _, part in self._parts if isinstance(part, Tensor)]
        self._addresses = [tensor.data_ptr() for tensor in self._tensors]
        # Detached, they have the same counters, are read faster, and keep memory from being reused.
        own = [tensor.detach() for tensor in self._tensors]
        self._matrices = [tensor for tensor in own if tensor.dim() > 1 and tensor.is_floating_point() and tensor.is_cpu]
        self._counted = [tensor for tensor in own if not tensor.is_inference()]
        self._counts = [tensor._version for tensor in self._counted]
        # Few, because after a pass over all weights each of them is far from the processor.
        self._watched = [tensor for tensor in self._counted if tensor.dim() > 1]
        self._watched_counts = [tensor._version for tensor in self._watched]
        self._samples = [torch.empty(0), *map(_sample, self._matrices)]
        self._content = self._read()

    @property
    def has_counters(self) -> bool:
        """Whether torch counts the changes of all tensors; it does not for those made in inference mode."""
        return len(self._counted) == len(self._tensors)

    def same_counts(self) -> bool:
        """Whether torch has counted no change of a matrix."""
        return [tensor._version for tensor in self._watched] == self._watched_counts

    def same_weights(self) -> bool:
        """Whether the model still holds the same tensors with the same content."""
        return (
            [tensor._version for tensor in self._counted] == self._counts
            and sum(map(len, self._tables)) == len(self._parts)
            and all(table.get(name) is part for table, name, part in self._parts)
            and [tensor.data_ptr() for tensor in self._tensors] == self._addresses
            and all(map(torch.equal, self._read(), self._content))
        )

    def _read(self) -> list[Tensor]:
        """Sums of the bits of each row and column of all matrices, or a sample of them."""
        if not self.exact:
            return [torch.cat(self._samples).view(torch.uint8)]
        bits = [matrix.view(BITS[matrix.element_size()]) for matrix in self._matrices]
        return [one.sum(axis, dtype=one.dtype) for one in bits for axis in (0, -1)]


def _sample(tensor: Tensor) -> Tensor:
    """Numbers of a tensor at equal distances in memory, as a view."""
    extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)) if tensor.numel() else 0
    step = -(-extent // SAMPLE) or 1
    return tensor.as_strided((-(-extent // step),), (step,))
