"""Segments: a large tensor kept in blocks of rows, of which a checkpoint writes only those that changed.

A replay buffer of 200 MB gains a few thousand rows between two checkpoints.  Each block has a name, the hash of the bytes in which it is
stored; a block that was written under that name is never written again.

    bytes of a block: "F32 (1024, 8) " and the numbers
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
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
    def restore(cls, about: Mapping[str, Any], read: Callable[[str], bytes]) -> Segments:
        """From a description and the bytes of its blocks by name; ValueError or KeyError where they do not fit."""
        segments = cls(about["shape"], DTYPES[about["dtype"]], about["rows"])
        if len(about["names"]) != len(segments._names):
            raise ValueError(f"{len(about['names'])} blocks for {len(segments)} rows")
        for block, name in enumerate(about["names"]):
            part, data = segments._block(block), read(name)
            header = _header(part)
            if not data.startswith(header) or len(data) != len(header) + part.numel() * part.element_size():
                raise ValueError(f"block {name[:12]} has another size")
            if part.numel():
                part.view(-1).view(torch.uint8).copy_(torch.frombuffer(bytearray(data[len(header) :]), dtype=torch.uint8))
            segments._names[block] = name
        return segments

    def _block(self, block: int) -> Tensor:
        return self.values[block * self.rows : (block + 1) * self.rows]


def encode_block(block: Tensor) -> Iterator[bytes | memoryview]:
    """The bytes of a block, in chunks."""
    yield _header(block)
    if block.numel():
        yield block.detach().contiguous().view(-1).view(torch.uint8).numpy().data


def name_of(block: Tensor) -> str:
    """The hash of the bytes of a block."""
    digest = hashlib.sha256()
    for chunk in encode_block(block):
        digest.update(chunk)
    return digest.hexdigest()


def _header(block: Tensor) -> bytes:
    return f"{CODES[block.dtype]} {tuple(block.shape)} ".encode()
