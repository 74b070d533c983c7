"""Word vectors: one pass of skip-gram or CBOW over a text, counts of neighboring words, and one pass of GloVe.

    word2vec    -sum over rows j: log sigmoid(sign_j in_i . out_j)        rows: the word and negative samples, or a path in the tree
    GloVe       sum over i, j: min(1, (x_ij / most)^power) (w_i . u_j + b_i + c_j - log x_ij)^2

A text is a row of int32 word ids in which an id below 0 ends a sentence.  Every pass changes its vectors in place.  The
compiled kernel shares them between threads without locks; on one thread it gives the same bits every time.  Without it
the loops here give the same values up to rounding, slowly.

V words, D width, P padded width.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
import torch

from ..core.errors import BadInput
from .library import available, function

PIECE = 8192
"""words per piece, with one learning rate and one random stream; windows do not cross pieces"""
LINE = 64
WHOLE, GOLDEN = (1 << 64) - 1, 0x9E3779B97F4A7C15


def rows(count: int, width: int, dtype: Any = np.float32) -> np.ndarray:
    """Zeros (count, P) with each row on whole cache lines; large arrays of NumPy lie on large pages, which random reads need."""
    size = np.dtype(dtype).itemsize
    padded = -(-width * size // LINE) * LINE // size
    raw = np.zeros(count * padded + LINE // size, dtype)
    begin = -raw.ctypes.data % LINE // size
    return raw[begin : begin + count * padded].reshape(count, padded)


@final
@dataclass(frozen=True)
class Noise:
    """Negative sampling by an alias table: column i gives i where 32 random bits are below share[i], else alias[i]."""

    share: np.ndarray
    alias: np.ndarray
    negatives: int

    @property
    def most(self) -> int:
        return self.negatives + 1


@final
@dataclass(frozen=True)
class Tree:
    """A binary tree for hierarchical softmax: the path of word w is node[first[w]:first[w + 1]], left where label is 1."""

    first: np.ndarray
    node: np.ndarray
    label: np.ndarray

    @property
    def most(self) -> int:
        return int(np.diff(self.first).max(initial=1))


@final
@dataclass(frozen=True)
class Pass:
    """Options of a pass: subsampling thresholds (uint32 for each word), window, negatives or tree, threads."""

    keep: np.ndarray
    answers: Noise | Tree
    window: int
    bag: bool
    threads: int = 1
    piece: int = PIECE

    def pieces(self, tokens: np.ndarray) -> int:
        return -(-len(tokens) // self.piece)


@final
@dataclass
class Tally:
    """Sum of negative log-likelihoods, number of predictions, and number of words after subsampling."""

    loss: float = 0.0
    pairs: int = 0
    kept: int = 0


@final
@dataclass(frozen=True)
class Rate:
    """The learning rate of piece p: start - fall p."""

    start: float
    fall: float = 0.0


class _Arguments(ctypes.Structure):
    """Mirrors `arguments` of words.c."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("tokens", "keep", "share", "alias", "first", "node", "label", "inputs", "outputs")),
        *((name, ctypes.c_void_p) for name in ("loss", "pairs", "kept")),
        *((name, ctypes.c_int64) for name in ("length", "words", "stride", "window", "bag", "negatives", "most")),
        *((name, ctypes.c_int64) for name in ("piece", "begin", "end", "threads")),
        ("seed", ctypes.c_uint64),
        *((name, ctypes.c_double) for name in ("rate", "fall")),
    ]


def train(tokens: np.ndarray, inputs: np.ndarray, outputs: np.ndarray, how: Pass, pieces: range, seed: int, rate: Rate) -> Tally:
    """One pass over some pieces of a text; `inputs` (V, P) and `outputs` (V or nodes, P) are updated in place.  Seed: 64 bits."""
    if not available():
        return _train_slowly(tokens, inputs, outputs, how, pieces, seed, rate)
    loss, pairs, kept = ctypes.c_double(), ctypes.c_int64(), ctypes.c_int64()
    noise = how.answers if isinstance(how.answers, Noise) else None
    tree = how.answers if isinstance(how.answers, Tree) else None
    call = _Arguments(
        *(_at(x) for x in (tokens, how.keep)),
        *((_at(noise.share), _at(noise.alias)) if noise else (None, None)),
        *((_at(tree.first), _at(tree.node), _at(tree.label)) if tree else (None, None, None)),
        *(_at(x) for x in (inputs, outputs)),
        *(ctypes.addressof(x) for x in (loss, pairs, kept)),
        *(len(tokens), len(inputs), inputs.shape[1], how.window, how.bag, noise.negatives if noise else 0, how.answers.most),
        *(how.piece, pieces.start, pieces.stop, how.threads),
        seed,
        *(rate.start, rate.fall),
    )
    _function("words_train", inputs)(ctypes.byref(call))
    return Tally(loss.value, pairs.value, kept.value)


def _at(array: np.ndarray) -> int:
    assert array.flags.c_contiguous
    return array.ctypes.data


def _function(name: str, like: np.ndarray) -> Any:
    return function(name, torch.float64 if like.dtype == np.float64 else torch.float32)


# ------------------------------------------------------------------------------------------------- the same as plain loops


@final
class _Random:
    """splitmix64"""

    def __init__(self, state: int) -> None:
        self.state = state

    def __call__(self) -> int:
        self.state = (self.state + GOLDEN) & WHOLE
        z = ((self.state ^ self.state >> 30) * 0xBF58476D1CE4E5B9) & WHOLE
        z = ((z ^ z >> 27) * 0x94D049BB133111EB) & WHOLE
        return z ^ z >> 31


def _train_slowly(tokens: np.ndarray, inputs: np.ndarray, outputs: np.ndarray, how: Pass, pieces: range, seed: int, rate: Rate) -> Tally:
    tally = Tally()
    for p in pieces:
        draw = _Random(_Random(seed ^ (p * 0xD1342543DE82EF95 & WHOLE))())
        step = rate.start - rate.fall * p
        for sentence in _sentences(tokens[p * how.piece : (p + 1) * how.piece]):
            kept = [w for w in sentence if how.keep[w] == 0xFFFFFFFF or draw() & 0xFFFFFFFF <= how.keep[w]]
            tally.kept += len(kept)
            if len(kept) < 2:
                continue
            question = _ask(how.answers, kept[0], draw, len(inputs))
            for i in range(len(kept)):
                reach = 1 + ((draw() & 0xFFFFFFFF) * how.window >> 32)
                row, sign = question
                if i + 1 < len(kept):
                    question = _ask(how.answers, kept[i + 1], draw, len(inputs))
                context = kept[max(i - reach, 0) : i] + kept[i + 1 : i + 1 + reach]
                x = inputs[context].mean(0, keepdims=True) if how.bag else inputs[context]
                z = np.clip(-sign * (x @ outputs[row].T), -30, 30)
                error = step * sign / (1 + np.exp(-z))
                change = error @ outputs[row]
                np.add.at(outputs, row, error.T @ x)
                np.add.at(inputs, context, change)
                tally.loss += float(np.log1p(np.exp(z.astype(np.float64))).sum())
                tally.pairs += len(x)
    return tally


def _sentences(tokens: np.ndarray) -> Iterator[list[int]]:
    for part in np.split(tokens, np.flatnonzero(tokens < 0)):
        yield part[part >= 0].tolist()


def _ask(answers: Noise | Tree, word: int, draw: _Random, words: int) -> tuple[list[int], np.ndarray]:
    """The output rows of a word, and a label of +1 or -1 for each."""
    if isinstance(answers, Tree):
        path = slice(answers.first[word], answers.first[word + 1])
        return answers.node[path].tolist(), np.where(answers.label[path], 1.0, -1.0)
    row = [word]
    for bits in (draw() for _ in range(answers.negatives)):
        column = (bits >> 32) * words >> 32
        noise = column if bits & 0xFFFFFFFF < answers.share[column] else int(answers.alias[column])
        row += [noise] * (noise != word)
    return row, np.array([1.0] + [-1.0] * (len(row) - 1))


# ------------------------------------------------------------------------------------------------- GloVe


class _Counting(ctypes.Structure):
    """Mirrors `counting` of words.c."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("tokens", "key", "weight", "at", "used")),
        *((name, ctypes.c_int64) for name in ("length", "words", "window", "capacity", "limit")),
    ]


def count(tokens: np.ndarray, words: int, window: int, capacity: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Sums of 1 / distance over all co-occurrences of two words at most `window` apart, as sorted runs of (pair, weight).

    A pair is smaller id * words + larger id; a run has increasing pairs and at most about `capacity` (a power of two) of them.
    Summed over the runs, weights are those of the symmetric count matrix, on its diagonal half of it.
    """
    if window > capacity // 2:
        wanted = 1 << (2 * window - 1).bit_length()
        raise BadInput(
            f"a window of {window} words does not fit a table of {capacity} pairs", where="count", fix=f"use a capacity of {wanted} or more"
        )
    if not available():
        yield from _count_slowly(tokens, words, window, capacity)
        return
    at, limit = ctypes.c_int64(), capacity // 2
    key, weight = np.zeros(capacity, np.uint64), np.zeros(capacity)
    while at.value < len(tokens):
        used = ctypes.c_int64()
        places = (_at(tokens), _at(key), _at(weight), ctypes.addressof(at), ctypes.addressof(used))
        # One word adds at most `window` entries past the limit.
        call = _Counting(*places, len(tokens), words, window, capacity, limit - window)
        _function("words_count", weight)(ctypes.byref(call))
        taken = np.flatnonzero(key)
        order = taken[np.argsort(key[taken])]
        yield (key[order] - 1).astype(np.int64), weight[order]
        key[:], weight[:] = 0, 0.0


def _count_slowly(tokens: np.ndarray, words: int, window: int, capacity: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    counts: dict[int, float] = {}
    for sentence in _sentences(tokens):
        for at, word in enumerate(sentence):
            for distance, other in enumerate(reversed(sentence[max(at - window, 0) : at]), 1):
                pair = min(word, other) * words + max(word, other)
                counts[pair] = counts.get(pair, 0.0) + 1 / distance
            if len(counts) > capacity // 2 - window:
                yield _run(counts)
                counts = {}
    yield _run(counts)


def _run(counts: dict[int, float]) -> tuple[np.ndarray, np.ndarray]:
    pairs = sorted(counts)
    return np.array(pairs, np.int64), np.array([counts[pair] for pair in pairs])


@final
@dataclass
class Side:
    """The vectors (V, P) of one side of the count matrix and their biases (V,), with the squared-gradient sums of AdaGrad."""

    vectors: np.ndarray
    bias: np.ndarray
    squares: np.ndarray = field(init=False)
    bias_squares: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.squares = rows(len(self.vectors), self.vectors.shape[1], self.vectors.dtype)
        self.squares[:] = 1  # as published: the first step has the rate itself
        self.bias_squares = np.ones_like(self.bias)


@final
@dataclass(frozen=True)
class Weighting:
    """The weight of a count x is min(1, (x / most)^power)."""

    most: float = 100.0
    power: float = 0.75


class _FitArguments(ctypes.Structure):
    """Mirrors `fitting` of words.c."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("row", "column", "count", "inputs", "outputs", "in_squares", "out_squares")),
        *((name, ctypes.c_void_p) for name in ("in_bias", "out_bias", "in_bias_squares", "out_bias_squares", "loss")),
        *((name, ctypes.c_int64) for name in ("entries", "stride", "threads")),
        *((name, ctypes.c_double) for name in ("rate", "most", "power")),
    ]


@final
@dataclass(frozen=True)
class Counts:
    """Entries of a symmetric count matrix, each pair of words once: int32 row and column, float64 count."""

    row: np.ndarray
    column: np.ndarray
    count: np.ndarray

    def __len__(self) -> int:
        return len(self.row)

    def cells(self) -> int:
        """Number of entries of the full symmetric matrix."""
        return 2 * len(self) - int((self.row == self.column).sum())


def glove(counts: Counts, left: Side, right: Side, weighting: Weighting, rate: float, threads: int = 1) -> float:
    """One pass of AdaGrad over the entries in their order, each in both directions; returns the weighted sum of squares."""
    if not available():
        return _glove_slowly(counts, left, right, weighting, rate)
    loss = ctypes.c_double()
    call = _FitArguments(
        *(_at(x) for x in (counts.row, counts.column, counts.count)),
        *(_at(x) for x in (left.vectors, right.vectors, left.squares, right.squares)),
        *(_at(x) for x in (left.bias, right.bias, left.bias_squares, right.bias_squares)),
        ctypes.addressof(loss),
        *(len(counts), left.vectors.shape[1], threads),
        *(rate, weighting.most, weighting.power),
    )
    _function("words_glove", left.vectors)(ctypes.byref(call))
    return loss.value


def _glove_slowly(counts: Counts, left: Side, right: Side, weighting: Weighting, rate: float) -> float:
    loss = 0.0
    for row, column, x in zip(counts.row.tolist(), counts.column.tolist(), counts.count.tolist()):
        for i, j in {(row, column): None, (column, row): None}:
            w, u = left.vectors[i].copy(), right.vectors[j].copy()
            gap = w @ u + left.bias[i] + right.bias[j] - np.log(x)
            g = min(1.0, (x / weighting.most) ** weighting.power) * gap
            for values, squares, gradient in (
                (left.vectors[i], left.squares[i], g * u),
                (right.vectors[j], right.squares[j], g * w),
                (left.bias[i : i + 1], left.bias_squares[i : i + 1], g),
                (right.bias[j : j + 1], right.bias_squares[j : j + 1], g),
            ):
                values -= rate * gradient / np.sqrt(squares)
                squares += gradient * gradient
            loss += float(g * gap)
    return loss
