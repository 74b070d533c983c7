"""Text as language-model batches: windows x (B, T) of tokens and y (B, T), shifted by one."""

from __future__ import annotations

import hashlib
import os
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, final

from ...core.batch import Batch, Data
from ...core.errors import BadInput, DataUnusable
from ...core.options import Range
from .. import fetch
from ..formats import read_bytes, read_text
from ..split import SplitSize, size
from ..tensors import WindowSource
from .tokenizer import Tokenizer, TokenKind, train

SHAKESPEARE = ("text/tinyshakespeare.txt", "tinyshakespeare.txt", "tinyshakespeare/input.txt")
"""where a data folder may hold it; the last is its name at the download address"""
SHAKESPEARE_MIRRORS = ("https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/",)
SHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
EXCLUDED = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"}

Length = Annotated[int, Range(1, 1 << 20)]
VocabularySize = Annotated[int, Range(2, 1 << 24)]


@final
class TextReader:
    """A file of new text -> Batch of windows with the vocabulary of the training text."""

    def __init__(self, vocabulary: Tokenizer, length: int) -> None:
        self.vocabulary, self.length = vocabulary, length

    def __call__(self, path: str | Path) -> Batch:
        return WindowSource(self.vocabulary.encode(read_text(Path(path))), self.length)[:]


def windows(
    texts: tuple[str, str, str],
    name: str,
    length: int,
    stride: int | None,
    level: TokenKind,
    most: int = 8000,
    specials: Sequence[str] = (),
) -> Data:
    """Windows over the texts of train, valid and test; a part without text is None, one too short for a window is an error."""
    vocabulary = train(level, [texts[0]], most, specials)
    rows = [vocabulary.encode(text) for text in texts]
    report: dict[str, int | str] = {f"{part} tokens": len(row) for part, row in zip(("train", "valid", "test"), rows, strict=True)}
    if level == "char":
        report["characters not in training text"] = sum(int((row == 0).sum()) for row in rows[1:])
    train_source, valid, test = (WindowSource(row, length, stride) if len(row) else None for row in rows)
    if train_source is None:
        raise BadInput(f"'{name}' holds no text for training")
    reader = TextReader(vocabulary, length)
    return Data(train_source, valid, test, name=name, task="other", classes=vocabulary.tokens, report=report, reader=reader)


def split_in_order(texts: str | Sequence[str], valid: SplitSize, test: SplitSize, between: str = "") -> tuple[str, str, str]:
    """The texts (or characters) of train, valid and test, in their order, each joined to one text."""
    n_valid, n_test = size(len(texts), valid, "valid"), size(len(texts), test, "test")
    n = len(texts) - n_valid - n_test
    if n < 1:
        raise BadInput(
            f"{len(texts)} {'characters' if isinstance(texts, str) else 'texts'} cannot give {n_valid} and {n_test} "
            "and leave any for training",
            fix="lower valid or test",
        )
    first, second, third = texts[:n], texts[n : n + n_valid], texts[n + n_valid :]
    return between.join(first), between.join(second), between.join(third)


def text_file(  # noqa: PLR0913  the options of a kind of file
    path: Path,
    target: str | None = None,
    seed: int = 0,
    valid: SplitSize = 0.05,
    test: SplitSize = 0.05,
    length: Length = 128,
    stride: Length | None = None,
    level: TokenKind = "char",
    most: VocabularySize = 8000,
    specials: tuple[str, ...] = (),
) -> Data:
    """Plain text: the first part trains, the next is for validation, the last for the test; the seed changes nothing.

    Args:
        valid: fraction or count of characters
        test: fraction or count of characters
        length: tokens per window
        stride: tokens between the starts of two windows; by default the length
        level: tokens are characters, bytes, words or sub-words learned from the training part
        most: largest vocabulary of words or sub-words
        specials: names of special tokens, such as 'mask', to add to the vocabulary
    """
    if target is not None:
        raise BadInput(f"'{path.name}' is plain text and has no target column", fix="leave 'target' out")
    text = read_text(path)
    if not text:
        raise BadInput(f"'{path.name}' is empty", where=str(path.parent), fix="give a file with text")
    parts = split_in_order(text, valid, test)
    if any(0 < len(part) <= length for part in parts):
        raise BadInput(
            f"'{path.name}' has {len(text)} characters, too few for windows of {length} in each part",
            fix="use a smaller length ('context' in a recipe) or a longer text",
        )
    return windows(parts, path.name, length, stride, level, most, specials)


def text_set(
    name: str,
    summary: str,
    unit: str,
    read: Callable[[], str | list[str]],
    separator: str = "\n",
    held_out: float = 0.05,
    tokens: TokenKind = "char",
    vocabulary_size: int = 8000,
) -> Callable[..., Data]:
    """Make the function that loads a data set of windows over texts, split in their order.

    Args:
        unit: what the texts are, in the plural
        read: gives the texts, or one text that is split by its characters
        separator: between two of them
        held_out: default fraction for validation, and for the test
        tokens: default level of the tokens
        vocabulary_size: default maximum number of words or sub-words
    """

    def load(
        seed: int = 0,
        valid: SplitSize = held_out,
        test: SplitSize = held_out,
        length: Length = 128,
        stride: Length | None = None,
        level: TokenKind = tokens,
        most: VocabularySize = vocabulary_size,
        specials: tuple[str, ...] = (),
    ) -> Data:
        return windows(split_in_order(read(), valid, test, separator), name, length, stride, level, most, specials)

    load.__name__ = load.__qualname__ = name
    load.__doc__ = f"""{summary}

    The first part trains, the next is for validation, the last for the test; the seed changes nothing.

    Args:
        valid: fraction or count of {unit}
        test: fraction or count of {unit}
        length: tokens per window
        stride: tokens between the starts of two windows; by default the length
        level: tokens are characters, bytes, words or sub-words learned from the training part
        most: largest vocabulary of words or sub-words
        specials: names of special tokens, such as 'mask', to add to the vocabulary
    """
    return load


def _shakespeare() -> str:
    def check(path: Path) -> bytes:
        return fetch.check_hash(read_bytes(path), SHAKESPEARE_SHA256, path)

    path = fetch.find(*SHAKESPEARE)
    if path is None:
        path = fetch.download(SHAKESPEARE_MIRRORS, fetch.cache() / SHAKESPEARE[-1], 1 << 24, check)
    check(path)
    return read_text(path)


tiny_shakespeare = text_set(
    "tiny_shakespeare",
    "Tiny-Shakespeare: 1,115,394 characters of his plays, 65 different ones; in the public domain.",
    "characters",
    _shakespeare,
    separator="",
)


def stdlib_text(
    seed: int = 0,
    length: Length = 128,
    stride: Length | None = None,
    level: TokenKind = "byte",
    most: VocabularySize = 8000,
    specials: tuple[str, ...] = (),
    share: Annotated[float, Range(above=0, most=1)] = 1.0,
) -> Data:
    """Source text of the installed Python standard library: a corpus that needs no download.

    Args:
        length: tokens per window
        stride: tokens between the starts of two windows; by default the length
        level: tokens are bytes, characters, words or sub-words learned from the training part
        most: largest vocabulary of words or sub-words
        specials: names of special tokens, such as 'mask', to add to the vocabulary
        share: fraction of the files to use
    """
    texts: tuple[list[str], list[str], list[str]] = ([], [], [])
    files = 0
    for name, text in library():
        # The hash of its name decides the part of a file: 90 % train, 5 % valid, 5 % test.
        position, draw = (number / 256 for number in hashlib.sha256(name.encode()).digest()[:2])
        if draw >= share:
            continue
        texts[0 if position < 0.9 else 1 if position < 0.95 else 2].append(text)
        files += 1
    if not all(texts):
        raise DataUnusable(
            "the source text of Python's standard library is not there",
            where=sysconfig.get_path("stdlib"),
            fix="use a Python with its .py files, or give a text file of your own",
        )
    train, valid, test = ("\n".join(part) for part in texts)
    data = windows((train, valid, test), "stdlib_text", length, stride, level, most, specials)
    return replace(data, report={"files": files, **data.report})


def library() -> Iterator[tuple[str, str]]:
    """(name, text) of each source file of the standard library, sorted by name, without tests and build settings."""
    root = Path(sysconfig.get_path("stdlib"))
    names = []
    for folder, below, files in os.walk(root):
        below[:] = [name for name in below if name not in EXCLUDED]  # installed packages can be much larger than the library
        names += [Path(folder, name).relative_to(root).as_posix() for name in files if name.endswith(".py")]
    for name in sorted(names):
        if name.startswith("_sysconfigdata"):
            continue
        try:
            yield name, (root / name).read_bytes().decode("utf-8")
        except (UnicodeDecodeError, OSError):
            continue  # a few files are in other encodings on purpose
