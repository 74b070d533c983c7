"""A folder of token files (shards) written by `sonde data tokens`, as batches for a language model; tokens stay on disk.

All shards are one long sequence of tokens.  A split (train, valid, test) is a list of ranges of it, and an example is a window.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, final

import numpy as np
import torch
import torch.nn.functional as F

from ...core.batch import Batch, Data
from ...core.errors import BadInput, DataUnusable, SondeError
from ...core.files import dump_json, read_json, sha256_file
from ...core.options import Range
from ..split import SplitSize
from ..split import size as split_size
from .shards import FORMAT
from .tokenizer import Tokenizer, load
from .windows import TextReader

Length = Annotated[int, Range(1, 1 << 20)]
MIN_DOCUMENTS = 100
"""from this many documents on, the default is to split by document, so that none is in two splits"""


@final
@dataclass(frozen=True)
class Shards:
    """All tokens of a folder as one long sequence, and its documents; files are memory-mapped when first used."""

    folder: Path
    dtype: str
    """'uint16' or 'uint32'"""
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    """tokens of each shard"""
    manifest_hash: str
    """SHA-256 of manifest.json, which contains the checksum of every shard"""

    @cached_property
    def offsets(self) -> np.ndarray:
        """Position of the first token of each shard, and the total number of tokens."""
        return np.concatenate([[0], np.cumsum(self.sizes)]).astype(np.int64)

    @cached_property
    def _arrays(self) -> list[Any]:
        dtype = np.dtype(self.dtype).newbyteorder("<")
        files = (self.folder / f"{name}.tokens" for name in self.names)
        return [np.memmap(file, dtype, "r") if size else np.zeros(0, dtype) for file, size in zip(files, self.sizes, strict=True)]

    @cached_property
    def documents(self) -> tuple[np.ndarray, np.ndarray]:
        """End position of each document in the sequence, and a 64-bit hash of its tokens."""
        tables = [np.fromfile(self.folder / f"{name}.documents", "<u8").reshape(-1, 2) for name in self.names]
        ends = [table[:, 0].astype(np.int64) + start for table, start in zip(tables, self.offsets[:-1], strict=True)]
        return np.concatenate(ends), np.concatenate([table[:, 1] for table in tables])

    def take(self, positions: np.ndarray) -> np.ndarray:
        """Tokens at the given positions of the sequence, an array of any shape."""
        shard_index = np.searchsorted(self.offsets, positions, "right") - 1
        out = np.empty(positions.shape, np.int64)
        for shard in np.unique(shard_index):
            inside = shard_index == shard
            out[inside] = self._arrays[shard][positions[inside] - self.offsets[shard]]
        return out


@final
class ShardSource:
    """Windows over one split: x (B, T) and the next tokens y (B, T).  Ranges of the split are read as if they were joined.

    Args:
        shards: the whole sequence
        starts: first position of each range of the split
        stops: position after the last of each range
        window: tokens per window, and tokens between the starts of two windows
        boundaries: batches also have `documents` (B, T), the index of each token's document within its row, and a `mask` that is
            False where the target belongs to another document than the input
    """

    def __init__(self, shards: Shards, starts: np.ndarray, stops: np.ndarray, window: tuple[int, int], boundaries: bool) -> None:
        self.shards, self.starts = shards, starts
        self.bounds = np.concatenate([[0], np.cumsum(stops - starts)])
        self.length, self.stride = window
        self.boundaries = boundaries
        if self.bounds[-1] < self.length + 1:
            raise BadInput(
                f"{self.bounds[-1]} tokens are too few for one window of {self.length} and its next token",
                fix="use a smaller length or more text",
            )

    def __len__(self) -> int:
        return int((self.bounds[-1] - self.length - 1) // self.stride + 1)

    def __getitem__(self, indices: Any) -> Batch:
        ids = torch.arange(len(self))[indices] if isinstance(indices, slice) else torch.as_tensor(indices)
        positions = ids.numpy()[:, None] * self.stride + np.arange(self.length + 1)
        range_index = np.searchsorted(self.bounds, positions, "right") - 1
        positions = positions - self.bounds[range_index] + self.starts[range_index]
        tokens = torch.from_numpy(self.shards.take(positions))
        batch = Batch(x=tokens[:, :-1].contiguous(), y=tokens[:, 1:].contiguous(), ids=ids)
        if not self.boundaries:
            return batch
        document = torch.from_numpy(np.searchsorted(self.shards.documents[0], positions, "right"))
        index = F.pad((document.diff(dim=1) != 0).cumsum(1), (1, 0))  # 0 for the first document of a row, 1 for the next, ...
        return batch.replace(documents=index[:, :-1].contiguous(), mask=index[:, 1:] == index[:, :-1])

    def fingerprint(self) -> str:
        digest = hashlib.sha256(self.shards.manifest_hash.encode())
        for row in (self.starts, self.bounds):
            digest.update(row.tobytes())
        digest.update(f"{self.length} {self.stride} {self.boundaries}".encode())
        return digest.hexdigest()


def token_folder(  # noqa: PLR0913  the options of this file format
    path: Path,
    target: str | None = None,
    seed: int = 0,
    valid: SplitSize = 0.05,
    test: SplitSize = 0.05,
    length: Length = 128,
    stride: Length | None = None,
    by: Literal["document", "place"] | None = None,
    boundaries: bool = False,
    check: bool = True,
) -> Data:
    """Token shards made by `sonde data tokens`.

    Args:
        path: the folder
        target: refused, since the target is the next token; every file format has this argument
        valid: fraction (or with by='place' a count of tokens) held out for validation
        test: fraction (or with by='place' a count of tokens) held out for the test
        length: tokens per window
        stride: tokens between the starts of two windows; by default the length
        by: 'document' assigns whole documents to a split by a hash of their tokens; 'place' cuts the sequence at two positions;
            by default 'document' if there are 100 or more
        boundaries: give each token the index of its document, and do not predict the first token of the next document
        check: verify the checksum of every shard first
    """
    if target is not None:
        raise BadInput(f"'{path.name}' holds tokens and has no target", fix="leave 'target' out")
    shards, tokenizer = open_shards(path, check)
    ends, hashes = shards.documents
    by = by or ("document" if len(ends) >= MIN_DOCUMENTS else "place")
    if by == "document":
        ranges = _split_by_hash(ends, hashes, valid, test)
    else:
        total = int(shards.offsets[-1])
        n_valid, n_test = split_size(total, valid, "valid"), split_size(total, test, "test")
        if n_valid + n_test >= total:
            raise BadInput(f"valid {valid:g} and test {test:g} leave nothing of {total} tokens for training", fix="lower valid or test")
        cuts = [0, total - n_valid - n_test, total - n_test, total]
        ranges = [(np.array([a]), np.array([b])) for a, b in zip(cuts, cuts[1:])]
    window = (length, stride or length)
    train, valid_source, test_source = (ShardSource(shards, a, b, window, boundaries) if (b - a).sum() else None for a, b in ranges)
    report: dict[str, int | str] = {"documents": len(ends), "split by": by}
    report |= {f"{split} tokens": int((b - a).sum()) for split, (a, b) in zip(("train", "valid", "test"), ranges, strict=True)}
    if train is None:
        raise BadInput(f"'{path.name}' leaves no text for training", fix="lower valid or test")
    reader = TextReader(tokenizer, length)
    return Data(train, valid_source, test_source, name=path.name, task="other", classes=tokenizer.tokens, report=report, reader=reader)


def _split_by_hash(ends: np.ndarray, hashes: np.ndarray, valid: float, test: float) -> list[tuple[np.ndarray, np.ndarray]]:
    """(starts, stops) of the documents of train, valid and test; documents with equal tokens are always in the same split."""
    if not 0 <= valid + test < 1:
        raise BadInput(f"valid {valid:g} and test {test:g} leave nothing for training", fix="give fractions that add up to less than 1")
    uniform = hashes / 2.0**64
    split = np.where(uniform < valid, 1, np.where(uniform < valid + test, 2, 0))
    starts = np.concatenate([[0], ends[:-1]])
    return [(starts[split == which], ends[split == which]) for which in range(3)]


def open_shards(path: str | Path, check: bool = True) -> tuple[Shards, Tokenizer]:
    """The shards of a folder and their tokenizer; raises DataUnusable if a file is missing, truncated or changed.

    Args:
        path: the folder
        check: also verify the checksum of every shard, which reads all of them
    """
    path = Path(path)
    if (path / "plan.json").is_file() and not (path / "manifest.json").exists():
        raise _unusable(
            path, "the folder is incomplete", "run the same `sonde data tokens` command again to finish it, or remove the folder"
        )
    try:
        manifest = read_json(path / "manifest.json", 1 << 30)
        records, dtype = manifest["shards"], manifest["dtype"]
        if manifest["format"] != FORMAT or dtype not in ("uint16", "uint32"):
            raise DataUnusable(f"format {manifest['format']} is not {FORMAT}")
        tokenizer = load(path / "tokenizer.json")
        if sha256_file(path / "tokenizer.json") != manifest["tokenizer.sha256"]:
            raise DataUnusable("tokenizer.json is not the one the tokens were made with")
        for number, record in enumerate(records):
            for suffix, bytes_each in (("tokens", np.dtype(dtype).itemsize), ("documents", 16)):
                file = path / f"{number:05d}.{suffix}"
                if not file.is_file() or file.stat().st_size != record[suffix] * bytes_each:
                    raise DataUnusable(f"{file.name} is missing or truncated")
                if check and sha256_file(file) != record[f"{suffix}.sha256"]:
                    raise DataUnusable(f"{file.name} is damaged: its checksum does not match")
        sizes = tuple(int(record["tokens"]) for record in records)
    except SondeError as error:
        raise _unusable(path, error.what) from error
    except (KeyError, TypeError, ValueError, AttributeError, OSError) as error:
        raise _unusable(path, f"manifest.json is not a manifest of shards: {error}") from error
    names = tuple(f"{number:05d}" for number in range(len(records)))
    return Shards(path, dtype, names, sizes, hashlib.sha256(dump_json(manifest)).hexdigest()), tokenizer


def _unusable(path: Path, what: str, fix: str = "make them again with `sonde data tokens`") -> DataUnusable:
    return DataUnusable(f"the token shards of '{path.name}' cannot be used: {what}", where=str(path), fix=fix)
