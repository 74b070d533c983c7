"""Segments: a large tensor kept in blocks of rows, of which a checkpoint writes only those that changed.

A replay buffer of 200 MB gains a few thousand rows between two checkpoints.  Each block has a name, the hash of its content; a block
that was written under that name is never written again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor

from .tensors import CODES, DTYPES


@final
class Segments:
    """A tensor (N, ...) of zeros at first, read by `segments[rows]` and changed by `write(rows, values)` alone.

    Args:
        shape: its size; the first axis is cut into blocks.
        dtype: of its numbers.
        rows: rows of a block; by default about a megabyte.
    """

    def __init__(self, shape: Sequence[int], dtype: torch.dtype = torch.float32, rows: int | None = None) -> None:
        self.values = torch.zeros(tuple(shape), dtype=dtype)
        each = max(1, self.values[:1].numel() * self.values.element_size())
        self.rows = rows or max(1, (1 << 20) // each)
        self._names: list[str | None] = [None] * -(-len(self.values) // self.rows)

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: Any) -> Tensor:
        """A copy of some rows."""
        return self.values[rows].clone()

    def write(self, rows: Tensor | slice | int, values: Tensor | float) -> None:
        """Change some rows."""
        self.values[rows] = values
        touched = torch.arange(len(self.values))[rows].view(-1) // self.rows
        for block in touched.unique().tolist():
            self._names[block] = None

    def names(self) -> list[str]:
        """The name of every block, in order; only blocks that changed since the last call are hashed."""
        for block, name in enumerate(self._names):
            if name is None:
                self._names[block] = name_of(self._block(block))
        return [name for name in self._names if name is not None]

    def blocks(self) -> Iterator[tuple[str, Tensor]]:
        """Every block with its name."""
        for block, name in enumerate(self.names()):
            yield name, self._block(block)

    def describe(self) -> dict[str, Any]:
        """What `restore` needs besides the blocks, for JSON."""
        return {"shape": list(self.values.shape), "dtype": CODES[self.values.dtype], "rows": self.rows, "names": self.names()}

    @classmethod
    def restore(cls, about: Mapping[str, Any], blocks: Mapping[str, Tensor]) -> Segments:
        """From a description and its blocks; ValueError or KeyError where they do not fit."""
        segments = cls(about["shape"], DTYPES[about["dtype"]], about["rows"])
        if len(about["names"]) != len(segments._names):
            raise ValueError(f"{len(about['names'])} blocks for {len(segments)} rows")
        for block, name in enumerate(about["names"]):
            part = segments._block(block)
            if blocks[name].shape != part.shape or blocks[name].dtype != part.dtype:
                raise ValueError(f"block {name[:12]} has another size")
            part.copy_(blocks[name])
            segments._names[block] = name
        return segments

    def _block(self, block: int) -> Tensor:
        return self.values[block * self.rows : (block + 1) * self.rows]


def name_of(block: Tensor) -> str:
    """The hash of a block's type, size and content."""
    digest = hashlib.sha256(f"{CODES[block.dtype]} {tuple(block.shape)} ".encode())
    flat = block.detach().contiguous().view(-1)
    if flat.numel():
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()
