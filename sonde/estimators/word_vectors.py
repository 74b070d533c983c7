"""Word vectors: nearest words and analogies, evaluation (human ratings, analogy questions), files in word2vec's formats.

similarity(a, b) = a . b / (norm(a) norm(b))
a is to b as c is to the word nearest to  b/norm(b) - a/norm(a) + c/norm(c)         3CosAdd
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, final

import numpy as np

from ..core.errors import BadInput, nearest
from ..data.formats import read_bytes
from . import _words_formats as formats
from ._base import check_fitted
from .words_corpus import tokens_of, words


@final
@dataclass(frozen=True)
class Ratings:
    """Agreement with people who rated pairs of words: rank correlation, pairs it is over, pairs with an unknown word."""

    spearman: float
    pairs: int
    missing: int


@final
@dataclass(frozen=True)
class Analogies:
    """Correct and total questions by group; questions with an unknown word are left out."""

    groups: dict[str, tuple[int, int]]
    missing: int

    @property
    def accuracy(self) -> float:
        right, total = (sum(part) for part in zip(*self.groups.values(), strict=True))
        return right / max(total, 1)


@final
class WordVectors:
    """A vector (D,) for each of V words, by falling frequency; `counts` (V,) where they are known."""

    def __init__(self, words: Sequence[str], vectors: np.ndarray, counts: np.ndarray | None = None) -> None:
        if vectors.ndim != 2 or len(words) != len(vectors):
            raise BadInput(f"{len(words)} words cannot have vectors of the shape {vectors.shape}", fix="give one row for each word")
        self.words, self.vectors, self.counts = tuple(words), vectors, counts
        self._index = {word: i for i, word in enumerate(self.words)}
        if len(self._index) < len(self.words):
            twice = next(word for i, word in enumerate(self.words) if self._index[word] != i)
            raise BadInput(f"the word '{twice}' has two vectors", fix="give each word once")

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: object) -> bool:
        return word in self._index

    def index(self, word: str) -> int:
        """The row of a word; an unknown word is refused with the closest known one."""
        if word not in self._index:
            similar = [w for w in self.words if w[:1] == word[:1] and abs(len(w) - len(word)) <= 2][:5000]
            raise BadInput(f"'{word}' has no vector", fix=nearest(word, similar) if similar else "it is rare or absent in the text")
        return self._index[word]

    def vector(self, word: str) -> np.ndarray:
        """The vector (D,) of a word."""
        return self.vectors[self.index(word)]

    @cached_property
    def unit(self) -> np.ndarray:
        """Vectors (V, D) of length 1; one of zeros stays so."""
        norm = np.linalg.norm(self.vectors, axis=1, keepdims=True)
        return self.vectors / np.where(norm > 0, norm, 1)

    def similarity(self, a: str, b: str) -> float:
        """Cosine of the angle between two words, -1 to 1."""
        return float(self.unit[self.index(a)] @ self.unit[self.index(b)])

    def most_similar(self, positive: str | Iterable[str], negative: str | Iterable[str] = (), top: int = 10) -> list[tuple[str, float]]:
        """The words nearest to a word, or to the sum of some less that of others, with their cosines; the given words are left out."""
        plus, minus = ([side] if isinstance(side, str) else list(side) for side in (positive, negative))
        if not plus + minus:
            raise BadInput("no words are given", fix="give at least one word")
        indices = [self.index(word) for word in plus + minus]
        signs = np.repeat([1.0, -1.0], [len(plus), len(minus)]).astype(self.vectors.dtype)
        goal = signs @ self.unit[indices]
        cosine = self.unit @ (goal / (np.linalg.norm(goal) or 1.0))
        cosine[indices] = -np.inf
        top = min(top, len(self) - len(set(indices)))
        best = np.argpartition(-cosine, top - 1)[:top] if top > 0 else np.zeros(0, np.int64)
        return [(self.words[i], float(cosine[i])) for i in best[np.argsort(-cosine[best], kind="stable")]]

    def analogy(self, a: str, b: str, c: str, top: int = 1) -> list[tuple[str, float]]:
        """`a` is to `b` as `c` is to ...: analogy('man', 'king', 'woman')."""
        return self.most_similar([b, c], [a], top)

    def rate(self, path: str | Path) -> Ratings:
        """Against human ratings: a file of lines 'word word number'."""
        from scipy.stats import spearmanr

        ratings, cosines, missing = [], [], 0
        for number, line in _rows(Path(path)):
            if len(line) != 3 or not re.fullmatch(r"-?\d+(\.\d*)?(e-?\d+)?", line[2]):
                raise BadInput(f"'{Path(path).name}' has no two words and a number in line {number}", fix="give rows 'word word number'")
            a, b = (self._row_of(word) for word in line[:2])
            if a is None or b is None:
                missing += 1
                continue
            ratings.append(float(line[2]))
            cosines.append(float(self.unit[a] @ self.unit[b]))
        if len(ratings) < 2:
            raise BadInput(f"of the pairs in '{Path(path).name}' {len(ratings)} have vectors", fix="use ratings of words of the text")
        return Ratings(float(spearmanr(ratings, cosines).statistic), len(ratings), missing)

    def answer(self, path: str | Path, max_words: int = 300_000) -> Analogies:
        """Against questions: a file of lines 'a b c d', in groups that begin with ': name'.  Among the `max_words` most frequent words."""
        questions: dict[str, list[list[int]]] = {}
        group, missing = "", 0
        for number, line in _rows(Path(path)):
            if line[0] == ":":
                group = " ".join(line[1:])
                continue
            if len(line) != 4:
                raise BadInput(f"'{Path(path).name}' has no four words in line {number}", fix="give rows 'a b c d' and ': name' of a group")
            indices = [self._row_of(word) for word in line]
            if any(i is None or i >= max_words for i in indices):
                missing += 1
            else:
                questions.setdefault(group, []).append([i for i in indices if i is not None])
        if not questions:
            raise BadInput(f"no question of '{Path(path).name}' has vectors for its words", fix="use questions about words of the text")
        return Analogies({name: (self._right(np.array(rows), max_words), len(rows)) for name, rows in questions.items()}, missing)

    def _right(self, questions: np.ndarray, max_words: int, block: int = 256) -> int:
        """How many rows (a, b, c, d) have d as the word nearest to b - a + c."""
        right = 0
        for part in np.split(questions, range(block, len(questions), block)):
            a, b, c, d = part.T
            cosine = (self.unit[b] - self.unit[a] + self.unit[c]) @ self.unit[:max_words].T
            np.put_along_axis(cosine, part[:, :3], -np.inf, 1)
            right += int((cosine.argmax(1) == d).sum())
        return right

    def _row_of(self, word: str) -> int | None:
        """The row of a word as written, or else in lower case."""
        return self._index.get(word, self._index.get(word.lower()))

    def save(self, path: str | Path, binary: bool = False) -> None:
        """In word2vec's text or binary format, which gensim and others read."""
        formats.save(Path(path), self.words, self.vectors, binary)

    @classmethod
    def load(cls, path: str | Path, binary: bool | None = None) -> WordVectors:
        """From word2vec's text or binary format, or GloVe's text without a first line; the format is detected."""
        return cls(*formats.load(Path(path), binary))


def _rows(path: Path) -> Iterable[tuple[int, list[str]]]:
    """Number and fields of each line of a file that has any."""
    text = read_bytes(path).decode("utf-8", "replace")
    return ((number, line.split()) for number, line in enumerate(text.splitlines(), 1) if line.strip())


def documents(estimator: Any, X: Any) -> np.ndarray:
    """For an estimator with `vectors_` and `split`: the mean vector of each document's known words."""
    check_fitted(estimator)
    table = estimator.vectors_
    if isinstance(X, str):
        raise BadInput("one string is not a list of documents", fix="give a list of them")
    id_lists = [[i for w in tokens_of(text, estimator.split or words) if (i := table._index.get(str(w))) is not None] for text in X]
    return np.array([table.vectors[ids].mean(0) if ids else np.zeros(table.vectors.shape[1]) for ids in id_lists], np.float32)
