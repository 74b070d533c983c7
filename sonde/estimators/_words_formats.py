"""word2vec's files of vectors: a line 'V D', then for each word its name, a space and D numbers, as text or as float32."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from ..core.errors import BadInput, ResourceFault
from ..core.files import replace_file
from ..data.formats import read_bytes

LONGEST = 1 << 16
"""bytes a word may have in a binary file; more means that the file is something else"""


def save(path: Path, words: Sequence[str], vectors: np.ndarray, binary: bool) -> None:
    """Replace the file atomically."""
    for word in words:
        if not word or word != "".join(word.split()):
            raise BadInput(f"the word {word!r} cannot be saved in this format", fix="leave out words that are empty or hold spaces")
    try:
        replace_file(path, b"".join(_chunks(words, vectors.astype("<f4"), binary)))
    except OSError as error:
        raise ResourceFault(
            f"'{path.name}' cannot be written: {error.strerror}", where=str(path), fix="check the folder and the free disk space"
        ) from error


def _chunks(words: Sequence[str], vectors: np.ndarray, binary: bool) -> Iterator[bytes]:
    yield f"{len(words)} {vectors.shape[1]}\n".encode()
    for word, vector in zip(words, vectors, strict=True):
        name = word.encode()
        # Nine digits bring back every bit of a float32.
        yield name + b" " + vector.tobytes() + b"\n" if binary else name + (" %.9g" * len(vector) % tuple(vector)).encode() + b"\n"


def load(path: Path, binary: bool | None = None) -> tuple[list[str], np.ndarray]:
    """Words and vectors (V, D); `binary` None looks which it is."""
    data = read_bytes(path)
    head, _, body = data.partition(b"\n")
    sizes = head.split()
    titled = len(sizes) == 2 and all(part.isdigit() for part in sizes)
    if not titled:
        if binary:
            raise _damage_error(path, "its first line is not the number of words and the width")
        return _text(path, data, None)
    V, D = map(int, sizes)
    if binary is None:
        binary = _numbers(body.partition(b"\n")[0].split()[1:]) is None
    if not 0 < V <= len(body) or not 0 < D <= len(body):
        raise _damage_error(path, f"it promises {V} words of width {D} and has {len(body)} bytes")
    return _binary(path, body, V, D) if binary else _text(path, body, (V, D))


def _binary(path: Path, body: bytes, V: int, D: int) -> tuple[list[str], np.ndarray]:
    if len(body) < V * (4 * D + 1):
        raise _damage_error(path, f"it promises {V} words of width {D} and has only {len(body)} bytes")
    words, vectors, at = [], np.empty((V, D), np.float32), 0
    for i in range(V):
        while body[at : at + 1] == b"\n":  # some writers end a row with one, some do not
            at += 1
        space = body.find(b" ", at, at + LONGEST)
        if space < 0 or space + 1 + 4 * D > len(body):
            raise _damage_error(path, f"it ends in word {i + 1} of {V}")
        words.append(_name(path, body[at:space], i))
        at = space + 1 + 4 * D
        vectors[i] = np.frombuffer(body, "<f4", D, space + 1)
    if body[at:].strip():
        raise _damage_error(path, f"there are {len(body) - at} bytes after the last of {V} words")
    return words, _finite(path, words, vectors)


def _text(path: Path, body: bytes, sizes: tuple[int, int] | None) -> tuple[list[str], np.ndarray]:
    lines = body.rstrip(b"\n").split(b"\n")
    V, D = sizes or (len(lines), len(lines[0].split()) - 1)
    if sizes and not body.endswith(b"\n"):
        raise _damage_error(path, "its last line has no end")
    if len(lines) != V:
        raise _damage_error(path, f"it promises {V} words and has {len(lines)}")
    words, vectors = [], np.empty((V, max(D, 0)), np.float32)
    for i, line in enumerate(lines):
        name, *fields = line.rstrip().split(b" ")
        row = _numbers(fields)
        if row is None or len(row) != D or not D:
            raise _damage_error(path, f"word {i + 1} does not have {max(D, 1)} numbers")
        words.append(_name(path, name, i))
        vectors[i] = row
    return words, _finite(path, words, vectors)


def _numbers(fields: Sequence[bytes]) -> np.ndarray | None:
    try:
        return np.array(fields, dtype="S").astype(np.float64) if fields else None
    except ValueError:
        return None


def _name(path: Path, name: bytes, i: int) -> str:
    try:
        if name:
            return name.decode("utf-8")
    except UnicodeDecodeError:
        pass
    raise _damage_error(path, f"word {i + 1} is empty or no UTF-8")


def _finite(path: Path, words: list[str], vectors: np.ndarray) -> np.ndarray:
    bad = ~np.isfinite(vectors).all(1)
    if bad.any():
        raise _damage_error(path, f"the vector of '{words[int(bad.argmax())]}' is not finite")
    return vectors


def _damage_error(path: Path, why: str) -> BadInput:
    return BadInput(f"'{path.name}' is not a complete word-vector file: {why}", fix="download the file again")
