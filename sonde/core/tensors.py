"""Named tensors <-> bytes in the safetensors layout, streamed out and checked on the way in.

    8 bytes header length, little endian | JSON header {name: {dtype, shape, data_offsets}} | raw values

Writing is a generator, so a file can be hashed while it is written and nothing is copied.  A tensor that shares
all of its memory with another (tied weights) is stored once; its other names are in the metadata.  Reading trusts
nothing: every length, shape and offset is checked before torch sees a byte.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from math import prod
from mmap import mmap
from typing import final

import torch
from torch import Tensor

from .errors import BadInput
from .files import parse_json

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "C64": torch.complex64,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
CODES = {dtype: code for code, dtype in DTYPES.items()}
HEADER_LIMIT = 3 << 20
"""bytes of header that any file may have; a large one may have more.  Parsed, a header takes up to 20 times its size."""
ALIAS = "same-as:"


def encode(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> Iterator[bytes | memoryview]:
    """The chunks of a file that holds these tensors, and any texts besides them."""
    header: dict[str, dict] = {}
    aliases: dict[str, str] = {}
    first: dict[tuple, str] = {}
    offset = 0
    for name, tensor in tensors.items():
        storage = (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
        if tensor.numel() and tensor.device.type != "meta" and storage in first:
            aliases[ALIAS + name] = first[storage]
            continue
        first[storage] = name
        if tensor.dtype not in CODES:
            raise BadInput(f"tensor '{name}' of {tensor.dtype} cannot be saved", fix=f"use one of {', '.join(map(str, CODES))}")
        size = tensor.numel() * tensor.element_size()
        header[name] = {"dtype": CODES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [offset, offset + size]}
        offset += size
    about = {**(metadata or {}), **aliases}
    text = json.dumps({**({"__metadata__": about} if about else {}), **header}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > _header_limit(len(text) + offset):
        raise BadInput(f"{len(header)} tensors are too many for one file", fix="use fewer and larger ones, or shorter names")
    yield len(text).to_bytes(8, "little")
    yield text
    for name in header:
        flat = tensors[name].detach().cpu().contiguous().reshape(-1)
        if flat.numel():
            yield flat.view(torch.uint8).numpy().data


def encoded_size(tensors: Mapping[str, Tensor]) -> int:
    """About how many bytes `encode` gives; used to see whether a disk has room."""
    return sum(t.numel() * t.element_size() + 256 for t in tensors.values()) + 1024


def decode(data: bytes | bytearray) -> dict[str, Tensor]:
    """The tensors of a file, copied out of `data`; raises ValueError if the file is damaged."""
    stored = Stored(data)
    tensors = {name: stored[name] for name in stored.entries}
    return tensors | {name: tensors[origin] for name, origin in stored.aliases.items()}


@final
class Stored(Mapping[str, Tensor]):
    """Tensors that are read from their file on access; a memory-mapped file is never read as a whole.

    The header is checked at once; a damaged one raises ValueError.
    """

    def __init__(self, data: bytes | bytearray | mmap) -> None:
        self.entries, self.aliases, start = _header(data)
        self._body = memoryview(data)[start:]

    def __getitem__(self, name: str) -> Tensor:
        """A copy of one tensor."""
        dtype, shape, begin, end = self.entries[self.aliases.get(name, name)]
        if begin == end:
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(bytearray(self._body[begin:end]), dtype=dtype).reshape(shape)

    def __iter__(self) -> Iterator[str]:
        yield from self.entries
        yield from self.aliases

    def __len__(self) -> int:
        return len(self.entries) + len(self.aliases)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor, without reading it."""
        return tuple(self.entries[self.aliases.get(name, name)][1])

    def dtype(self, name: str) -> torch.dtype:
        """Data type of a tensor, without reading it."""
        return self.entries[self.aliases.get(name, name)][0]


def _header_limit(size: int) -> int:
    return HEADER_LIMIT + size // 20


def _header(data: bytes | bytearray | mmap) -> tuple[dict[str, tuple], dict[str, str], int]:
    if len(data) < 8:
        raise ValueError("shorter than its 8-byte length field")
    length = int.from_bytes(data[:8], "little")
    if length > _header_limit(len(data)) or length + 8 > len(data):
        raise ValueError(f"header of {length} bytes does not fit a file of {len(data)}")
    text = bytes(data[8 : 8 + length])
    # The tightest true header has 17 letters to a bracket and 4 to a comma, with odd names a few less; a bomb of tiny
    # values has more of them.
    if text.count(b"[") + text.count(b"{") > length / 10 + 8 or text.count(b",") > length / 4 + 8:
        raise ValueError("header is not a table of tensors")
    raw = parse_json(text)
    if not isinstance(raw, dict):
        raise ValueError("header is not a table")
    metadata = raw.pop("__metadata__", {})
    size = len(data) - 8 - length
    entries: dict[str, tuple] = {}
    for name, entry in raw.items():
        entries[name] = _entry(name, entry, size)
    position = 0
    for name, (_, _, begin, end) in sorted(entries.items(), key=lambda item: item[1][2:]):
        if begin != position:
            raise ValueError(f"tensor '{name}' leaves a hole or overlaps another at byte {begin}")
        position = end
    if position != size:
        raise ValueError(f"{size - position} bytes belong to no tensor")
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise ValueError("metadata is not a table of texts")
    aliases = {name.removeprefix(ALIAS): origin for name, origin in metadata.items() if name.startswith(ALIAS)}
    for name, origin in aliases.items():
        if name in entries or origin not in entries:
            raise ValueError(f"'{name}' is an alias of '{origin}', which does not exist or is an alias too")
    return entries, aliases, 8 + length


def _entry(name: str, entry: object, size: int) -> tuple:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"tensor '{name}' is not described by dtype, shape and data_offsets")
    shape, offsets = entry["shape"], entry["data_offsets"]
    if entry["dtype"] not in DTYPES if isinstance(entry["dtype"], str) else True:
        raise ValueError(f"tensor '{name}' has the unknown dtype {entry['dtype']!r}")
    for what, numbers in (("shape", shape), ("data_offsets", offsets)):
        if not isinstance(numbers, list) or not all(type(n) is int and 0 <= n < 2**48 for n in numbers):
            raise ValueError(f"tensor '{name}' has a bad {what}")
    if len(offsets) != 2 or len(shape) > 16:
        raise ValueError(f"tensor '{name}' has a bad shape or data_offsets")
    dtype = DTYPES[entry["dtype"]]
    begin, end = offsets
    if not begin <= end <= size or end - begin != prod(shape) * torch.empty((), dtype=dtype).element_size():
        raise ValueError(f"tensor '{name}' of shape {shape} does not fit bytes {begin} to {end}")
    return dtype, shape, begin, end
