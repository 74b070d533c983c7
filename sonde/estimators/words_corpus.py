"""Text of any size as one row of word ids on disk, read once, with its vocabulary.

Words get provisional ids in the order of their appearance while the text is read; the ids are written to a temporary file.
Then the vocabulary is known and the file is written again with the final ids, without the rare words.  Neither the text nor
its ids are ever in memory as a whole, only the distinct words.
"""

from __future__ import annotations

import io
import lzma
import os
import re
import tempfile
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, final

import numpy as np

from ..core.errors import BadInput, ResourceFault
from ..data.formats import PACKED
from ..engine.progress import Progress
from ._base import to_numpy

BLOCK = 1 << 18
"""ids, or characters of a line, that are handled at once"""
Split = Callable[[str], Iterable[str]]

_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")  # noqa: RUF001 - both apostrophes are in use


def words(text: str) -> list[str]:
    """The words of a text in lower case: runs of letters, with the apostrophes inside them."""
    return _WORD.findall(text.lower())


@final
@dataclass(frozen=True)
class Corpus:
    """Words by falling count, and the text: ids, with -1 after each sentence."""

    words: tuple[str, ...]
    counts: np.ndarray
    tokens: np.ndarray
    seen: int
    """words of the text, rare ones too"""

    @classmethod
    def read(cls, source: Any, min_count: int, split: Split, quiet: bool = True) -> Corpus:
        """From the path of a text, sentences (strings, or rows of words or ids) or one array of ids; one read before is taken as it is."""
        if isinstance(source, Corpus):
            return source
        with disk_errors(), tempfile.TemporaryFile() as spool:
            names, counts = _spool(_sentences(source, split, quiet), spool)
            seen = int(counts.sum())
            if not seen:
                raise BadInput("the text has no words", fix="give sentences of words, or another way to split it")
            order = np.argsort(-counts, kind="stable")
            order = order[: int((counts >= min_count).sum())]
            if not len(order):
                raise BadInput(f"no word occurs {min_count} times, the commonest {counts.max()}", fix="lower min_count")
            final_id = np.full(len(counts) + 1, -2, np.int32)  # provisional ids begin with 1; 0 ends a sentence
            final_id[0] = -1
            final_id[order + 1] = np.arange(len(order))
            tokens = _renumber(spool, final_id)
        return cls(tuple(str(names[i]) for i in order), counts[order], tokens, seen)


def _spool(sentences: Iterator[Iterable[Any]], file: IO[bytes]) -> tuple[list[Any], np.ndarray]:
    """Write provisional ids to the file; give the words by these ids and how often each occurs."""
    ids = _Ids()
    counts = np.zeros(1, np.int64)
    block = array("i")

    def flush() -> None:
        nonlocal counts, block
        totals = np.bincount(np.frombuffer(block, np.int32), minlength=len(counts))
        totals[: len(counts)] += counts
        counts = totals
        file.write(block)
        block = array("i")

    for sentence in sentences:
        block.extend(map(ids.__getitem__, sentence))
        block.append(0)
        if len(block) >= BLOCK:
            flush()
    flush()
    names = list(ids)
    if len({isinstance(name, str) for name in names}) > 1:
        raise BadInput("the text has both words and numbers", fix="give strings, or whole numbers as ids")
    return names, counts[1:]


class _Ids(dict[Any, int]):
    """Word -> provisional id, a new one for a word not seen before."""

    def __missing__(self, word: Any) -> int:
        if not isinstance(word, str | int) or isinstance(word, bool):
            raise BadInput(f"a sentence holds {word!r}, which is not a word", fix="give strings, or whole numbers as ids")
        self[word] = number = len(self) + 1
        return number


def _renumber(spool: IO[bytes], final_id: np.ndarray) -> np.ndarray:
    """The text in final ids, memory-mapped from a temporary file."""
    with tempfile.TemporaryFile() as file:
        spool.seek(0)
        while data := spool.read(4 * BLOCK):
            ids = final_id[np.frombuffer(data, np.int32)]
            file.write(ids[ids > -2].tobytes())
        file.flush()
        return np.memmap(file, np.int32, mode="r")


def _sentences(source: Any, split: Split, quiet: bool) -> Iterator[Iterable[Any]]:
    source = to_numpy(source)
    if isinstance(source, str | Path):
        for line in _lines(Path(source), quiet):
            yield split(line)
        return
    if isinstance(source, np.ndarray) and source.ndim == 1 and source.dtype.kind in "iu":
        source = [source[begin : begin + BLOCK] for begin in range(0, len(source), BLOCK)]
    if not isinstance(source, Iterable):
        raise BadInput(f"text cannot be read from {type(source).__name__}", fix="give a path, sentences, or an array of ids")
    known = len(source) if isinstance(source, Sized) else 0
    with Progress("reading", known, unit="sentence", quiet=quiet or not known) as progress:
        for number, sentence in enumerate(source):
            progress.tick(number)
            yield tokens_of(sentence, split)


def tokens_of(sentence: Any, split: Split) -> Iterable[Any]:
    """The words of one sentence: a string is split, an array of ids listed, a row of words taken as it is."""
    if isinstance(sentence, str):
        return split(sentence)
    sentence = to_numpy(sentence)
    if isinstance(sentence, np.ndarray) and sentence.dtype.kind in "iuU":
        return sentence.ravel().tolist()
    if isinstance(sentence, bytes) or not isinstance(sentence, Iterable):
        raise BadInput(f"a sentence is {type(sentence).__name__}", fix="give each sentence as a string or a list of words")
    return sentence


def _lines(path: Path, quiet: bool) -> Iterator[str]:
    """Lines of a text file, packed or not; a very long line in parts that end between words."""
    if not path.is_file():
        raise BadInput(f"no file '{path.name}' in {path.parent}", fix="check the path; text itself is given as a list of sentences")
    try:
        with ExitStack() as stack:
            raw = stack.enter_context(open(path, "rb"))
            unpack = PACKED.get(path.suffix.lower())
            text = io.TextIOWrapper(stack.enter_context(unpack(raw)) if unpack else raw, encoding="utf-8")
            progress = stack.enter_context(Progress(f"reading {path.name}", os.path.getsize(path), unit="byte", quiet=quiet))
            rest = ""
            while line := text.readline(BLOCK):
                progress.tick(raw.tell())
                cut = len(line) if len(line) < BLOCK else max(map(line.rfind, " \t\n")) + 1
                if cut:
                    yield rest + line[:cut]
                rest = line[cut:] if cut else rest + line
            if rest:
                yield rest
    except (UnicodeDecodeError, EOFError, OSError, lzma.LZMAError, zlib.error) as error:
        raise BadInput(f"'{path.name}' cannot be read as UTF-8 text: {error}", fix="fix the file or give another") from error


@contextmanager
def disk_errors() -> Iterator[None]:
    """Turn an OSError of a temporary file into a ResourceFault."""
    try:
        yield
    except OSError as error:
        raise ResourceFault(
            f"the word ids of the text cannot be kept: {error.strerror}", where=tempfile.gettempdir(), fix="set TMPDIR to a larger disk"
        ) from error
