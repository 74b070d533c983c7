"""A folder of token shards as language-model batches: windows over documents that stay on the disk."""

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
from ..split import size as part_size
from .shards import FORMAT
from .tokenizer import Tokenizer, load
from .windows import TextReader

Length = Annotated[int, Range(1, 1 << 20)]
MANY = 100
"""with so many documents each one goes to a part as a whole"""


@final
@dataclass(frozen=True)
class Shards:
    """All tokens of a folder as one long sequence, and its documents, read lazily."""

    folder: Path
    kind: str
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    """tokens of each shard"""
    manifest: str
    """hash of the manifest, which contains the checksum of every shard"""

    @cached_property
    def offsets(self) -> np.ndarray:
        """Where each shard begins, and the end of the last."""
        return np.concatenate([[0], np.cumsum(self.sizes)]).astype(np.int64)

    @cached_property
    def _maps(self) -> list[Any]:
        kind = np.dtype(self.kind).newbyteorder("<")
        files = (self.folder / f"{name}.tokens" for name in self.names)
        return [np.memmap(file, kind, "r") if size else np.zeros(0, kind) for file, size in zip(files, self.sizes, strict=True)]

    @cached_property
    def documents(self) -> tuple[np.ndarray, np.ndarray]:
        """End of each document in the sequence, and a hash of its tokens."""
        parts = [np.fromfile(self.folder / f"{name}.documents", "<u8").reshape(-1, 2) for name in self.names]
        ends = [part[:, 0].astype(np.int64) + start for part, start in zip(parts, self.offsets[:-1], strict=True)]
        return np.concatenate(ends), np.concatenate([part[:, 1] for part in parts])

    def take(self, positions: np.ndarray) -> np.ndarray:
        """Tokens at some positions of the sequence."""
        shard = np.searchsorted(self.offsets, positions, "right") - 1
        out = np.empty(positions.shape, np.int64)
        for one in np.unique(shard):
            here = shard == one
            out[here] = self._maps[one][positions[here] - self.offsets[one]]
        return out


@final
class ShardSource:
    """Next-token windows over some ranges of the sequence, concatenated: x (B, T) and y (B, T), which is x shifted by one.

    With `boundaries` also `documents` (B, T), the index of each token's document within its row, and a mask without targets
    that begin another document.
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
        segment = np.searchsorted(self.bounds, positions, "right") - 1
        positions = positions - self.bounds[segment] + self.starts[segment]
        tokens = torch.from_numpy(self.shards.take(positions))
        batch = Batch(x=tokens[:, :-1].contiguous(), y=tokens[:, 1:].contiguous(), ids=ids)
        if not self.boundaries:
            return batch
        document = torch.from_numpy(np.searchsorted(self.shards.documents[0], positions, "right"))
        number = (document.diff(dim=1) != 0).cumsum(1)  # index of the document of each target within its row
        inside = F.pad(number, (1, 0))
        return batch.replace(documents=inside[:, :-1].contiguous(), mask=inside[:, 1:] == inside[:, :-1])

    def fingerprint(self) -> str:
        digest = hashlib.sha256(self.shards.manifest.encode())
        for row in (self.starts, self.bounds):
            digest.update(row.tobytes())
        digest.update(f"{self.length} {self.stride} {self.boundaries}".encode())
        return digest.hexdigest()


def token_folder(  # noqa: PLR0913  the options of a kind of file
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
        valid: fraction (or with by='place' a count of tokens) held out for validation
        test: fraction (or with by='place' a count of tokens) held out for the test
        length: tokens per window
        stride: tokens between the starts of two windows; by default the length
        by: split by document, by the hash of its tokens, or cut the sequence at two positions; by default by document if
            there are 100 or more
        boundaries: add the index of the document of each token, and predict no token across documents
        check: verify the checksum of every shard first
    """
    if target is not None:
        raise BadInput(f"'{path.name}' holds tokens and has no target", fix="leave 'target' out")
    shards, tokenizer = open_shards(path, check)
    ends, hashes = shards.documents
    by = by or ("document" if len(ends) >= MANY else "place")
    if by == "document":
        parts = _by_hash(ends, hashes, valid, test)
    else:
        whole = int(shards.offsets[-1])
        n_valid, n_test = part_size(whole, valid, "valid"), part_size(whole, test, "test")
        if n_valid + n_test >= whole:
            raise BadInput(f"valid {valid:g} and test {test:g} leave nothing of {whole} tokens for training", fix="lower valid or test")
        cuts = [0, whole - n_valid - n_test, whole - n_test, whole]
        parts = [(np.array([a]), np.array([b])) for a, b in zip(cuts, cuts[1:])]
    window = (length, stride or length)
    train, valid_part, test_part = (ShardSource(shards, a, b, window, boundaries) if (b - a).sum() else None for a, b in parts)
    report: dict[str, int | str] = {"documents": len(ends), "split by": by}
    report |= {f"{part} tokens": int((b - a).sum()) for part, (a, b) in zip(("train", "valid", "test"), parts, strict=True)}
    if train is None:
        raise BadInput(f"'{path.name}' leaves no text for training", fix="lower valid or test")
    reader = TextReader(tokenizer, length)
    return Data(train, valid_part, test_part, name=path.name, task="other", classes=tokenizer.tokens, report=report, reader=reader)


def _by_hash(ends: np.ndarray, hashes: np.ndarray, valid: float, test: float) -> list[tuple[np.ndarray, np.ndarray]]:
    """Ranges of train, valid and test: equal documents are always in the same part."""
    if not 0 <= valid + test < 1:
        raise BadInput(f"valid {valid:g} and test {test:g} leave nothing for training", fix="give fractions that add up to less than 1")
    uniform = hashes / 2.0**64
    part = np.where(uniform < valid, 1, np.where(uniform < valid + test, 2, 0))
    starts = np.concatenate([[0], ends[:-1]])
    return [(starts[part == which], ends[part == which]) for which in range(3)]


def open_shards(path: str | Path, check: bool = True) -> tuple[Shards, Tokenizer]:
    """The shards of a folder and their tokenizer; a file that is missing, truncated or changed is an error."""
    path = Path(path)
    if (path / "plan.json").is_file() and not (path / "manifest.json").exists():
        raise _damage_error(
            path, "the folder is not finished", "give the `sonde data tokens` command that began it again, or remove the folder"
        )
    try:
        manifest = read_json(path / "manifest.json", 1 << 30)
        records, kind = manifest["shards"], manifest["dtype"]
        if manifest["format"] != FORMAT or kind not in ("uint16", "uint32"):
            raise DataUnusable(f"format {manifest['format']} is not {FORMAT}")
        tokenizer = load(path / "tokenizer.json")
        if sha256_file(path / "tokenizer.json") != manifest["tokenizer.sha256"]:
            raise DataUnusable("tokenizer.json is not the one the tokens were made with")
        for number, record in enumerate(records):
            for part, bytes_each in (("tokens", np.dtype(kind).itemsize), ("documents", 16)):
                file = path / f"{number:05d}.{part}"
                if not file.is_file() or file.stat().st_size != record[part] * bytes_each:
                    raise DataUnusable(f"{file.name} is missing or cut short")
                if check and sha256_file(file) != record[f"{part}.sha256"]:
                    raise DataUnusable(f"{file.name} is damaged: its checksum is another")
        sizes = tuple(int(record["tokens"]) for record in records)
    except SondeError as error:
        raise _damage_error(path, error.what) from error
    except (KeyError, TypeError, ValueError, AttributeError, OSError) as error:
        raise _damage_error(path, f"manifest.json is not a manifest of shards: {error}") from error
    names = tuple(f"{number:05d}" for number in range(len(records)))
    return Shards(path, kind, names, sizes, hashlib.sha256(dump_json(manifest)).hexdigest()), tokenizer


def _damage_error(path: Path, what: str, fix: str = "make them again: sonde data tokens") -> DataUnusable:
    return DataUnusable(f"the token shards of '{path.name}' cannot be used: {what}", where=str(path), fix=fix)
