"""GloVe: word vectors with dot products that approximate the logarithms of co-occurrence counts (Pennington, Socher, Manning, 2014).

    minimize  sum over i, j of  f(x_ij) (w_i . u_j + b_i + c_j - log x_ij)^2         f(x) = min(1, (x / most)^power)

x_ij sums 1 / distance over all positions where words i and j are in one window.  It is weighted least squares, by AdaGrad
over the cells in random order; the vector of a word is w + u.  Counts are gathered in sorted runs on disk and merged by
ranges of pairs, so that memory is bounded whatever the text.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from typing import IO, Any, final

import numpy as np
from sklearn.base import BaseEstimator

from ..core.errors import BadInput, NumericalStop
from ..core.options import Count
from ..core.seeds import key
from ..engine.progress import Progress
from ..kernels.words import Counts, Side, Weighting, count, glove, rows
from ._base import NonNegative, Positive, checked_arguments
from .word_vectors import WordVectors, documents
from .words_corpus import Corpus, Split, disk_errors, words

ENTRY = np.dtype([("row", np.int32), ("column", np.int32), ("count", np.float64)])
MEGABYTE = 1 << 20


def cooccurrence(tokens: np.ndarray, V: int, window: int, memory: int = 512) -> Iterator[np.ndarray]:
    """Entries (row <= column, count) of the symmetric count matrix of a text, by rising pair, in parts; `memory` in megabytes."""
    most = memory * MEGABYTE // 64  # a slot of the table or an entry of a merge, with the copies made of it on the way
    most = min(most, 2 * window * (len(tokens) + 1))
    with disk_errors(), tempfile.TemporaryFile() as pair_file, tempfile.TemporaryFile() as weight_file:
        sizes = []
        for pairs, weights in count(tokens, V, window, 1 << max(most, 4 * window).bit_length()):
            pair_file.write(pairs.tobytes())
            weight_file.write(weights.tobytes())
            sizes.append(len(pairs))
        pair_file.flush()
        weight_file.flush()
        if not sum(sizes):
            return
        cuts = np.cumsum(sizes)[:-1]
        runs = [np.split(np.memmap(file, kind, mode="r"), cuts) for file, kind in ((pair_file, np.int64), (weight_file, np.float64))]
        yield from _merge_runs(runs[0], runs[1], V, most)


def _merge_runs(pair_runs: list[np.ndarray], weight_runs: list[np.ndarray], V: int, most: int) -> Iterator[np.ndarray]:
    """Runs of rising pairs as one, the weights of equal pairs added; about `most` entries at a time."""
    total = sum(map(len, pair_runs))
    samples = np.sort(np.concatenate([run[:: max(total // 4096, 1)] for run in pair_runs]))
    parts = -(-total // most)
    edges = [0, *samples[[len(samples) * k // parts for k in range(1, parts)]].tolist(), V * V]
    for low, high in zip(edges, edges[1:], strict=False):
        slices = [slice(*np.searchsorted(run, (low, high))) for run in pair_runs]
        pairs = np.concatenate([run[span] for run, span in zip(pair_runs, slices, strict=True)])
        weights = np.concatenate([run[span] for run, span in zip(weight_runs, slices, strict=True)])
        if not len(pairs):
            continue
        order = np.argsort(pairs, kind="stable")
        pairs = pairs[order]
        first = np.flatnonzero(np.diff(pairs, prepend=-1))
        entries = np.empty(len(first), ENTRY)
        entries["row"], entries["column"] = np.divmod(pairs[first], V)
        entries["count"] = np.add.reduceat(weights[order], first)
        entries["count"][entries["row"] == entries["column"]] *= 2  # either of two equal words is the other's neighbor
        yield entries


@final
class GloVe(BaseEstimator):
    """After `fit`: vectors_ (a `WordVectors`), losses_ (mean weighted square of a cell, by epoch), n_cells_, n_seen_ (words read).

    Args:
        width: numbers in a vector
        window: maximal distance of a neighbor
        most: counts from here on have full weight (x_max)
        power: exponent of the weight of smaller counts (alpha)
        min_count: words that occur less often are left out
        epochs: passes over the cells
        lr: learning rate of AdaGrad
        threads: with 1 the same seed gives the same bits; more share the vectors without locks
        memory: megabytes that counts may take, in the table that gathers them and in one part of the shuffled cells
        split: string -> words; by default runs of letters in lower case
        random_state: seed of the start and of the order
        quiet: show no progress
    """

    def __init__(  # noqa: PLR0913  (settings of an estimator are flat, so that a grid can name them)
        self,
        width: Count = 100,
        window: Count = 10,
        most: Positive = 100.0,
        power: NonNegative = 0.75,
        min_count: Count = 5,
        epochs: Count = 25,
        lr: Positive = 0.05,
        threads: Count = 1,
        memory: Count = 512,
        split: Split | None = None,
        random_state: int = 0,
        quiet: bool = False,
    ) -> None:
        self.width = width
        self.window = window
        self.most = most
        self.power = power
        self.min_count = min_count
        self.epochs = epochs
        self.lr = lr
        self.threads = threads
        self.memory = memory
        self.split = split
        self.random_state = random_state
        self.quiet = quiet

    def fit(self, X: Any, y: Any = None) -> GloVe:
        """X: path of a text (a line is a sentence), sentences (strings, rows of words or ids), or one array of ids; y is not looked at."""
        arguments = checked_arguments(self)
        width, epochs = arguments.width, arguments.epochs
        corpus = Corpus.read(X, arguments.min_count, self.split or words, self.quiet)
        V = len(corpus.words)
        rng = np.random.default_rng(key(self.random_state, "glove"))
        with disk_errors(), ExitStack() as stack:
            cells = _Shuffled(arguments.memory * MEGABYTE // (4 * ENTRY.itemsize), stack)
            cells.fill(cooccurrence(corpus.tokens, V, arguments.window, arguments.memory), rng)
            if not cells.entries:
                raise BadInput("no sentence of the text has two words", fix="give longer sentences")
            weighting = Weighting(arguments.most, arguments.power)
            left, right = (_side(V, width, rng) for _ in range(2))
            self.losses_, self.n_cells_ = [], 0
            with Progress(f"GloVe, {V:,} words", epochs * cells.entries, unit="pair", quiet=self.quiet) as progress:
                for epoch in range(epochs):
                    loss, done, seen = 0.0, 0, 0
                    for part in cells.epoch(rng):
                        loss += glove(part, left, right, weighting, arguments.lr, arguments.threads)
                        done, seen = done + part.cells(), seen + len(part)
                        if not np.isfinite(loss):
                            raise NumericalStop("the loss is not finite", where=f"epoch {epoch + 1}", fix="lower lr")
                        progress.tick(epoch * cells.entries + seen)
                        progress.note({"loss": loss / done})
                    self.losses_.append(loss / done)
                    self.n_cells_ = done
        self.vectors_ = WordVectors(corpus.words, (left.vectors + right.vectors)[:, :width], corpus.counts)
        self.n_seen_ = corpus.seen
        return self

    def transform(self, X: Any) -> np.ndarray:
        """The mean vector (N, D) of each document's known words; a document without any has zeros."""
        return documents(self, X)


def _side(V: int, width: int, rng: np.random.Generator) -> Side:
    vectors = rows(V, width)
    vectors[:, :width] = rng.uniform(-0.5, 0.5, (V, width)) / width
    return Side(vectors, (rng.uniform(-0.5, 0.5, V) / width).astype(np.float32))


@final
class _Shuffled:
    """Entries in random order on disk: split at random into files of about `most` entries, each shuffled whenever it is read."""

    def __init__(self, most: int, stack: ExitStack) -> None:
        self.most, self.stack, self.entries = most, stack, 0
        self.files: list[IO[bytes]] = []

    def fill(self, parts: Iterable[np.ndarray], rng: np.random.Generator) -> None:
        with tempfile.TemporaryFile() as plain:
            for part in parts:
                plain.write(part.tobytes())
                self.entries += len(part)
            for _ in range(0, self.entries, self.most):
                self.files.append(self.stack.enter_context(tempfile.TemporaryFile()))  # noqa: SIM115  (the stack closes it)
            plain.seek(0)
            while data := plain.read(self.most * ENTRY.itemsize):
                entries = np.frombuffer(data, ENTRY)
                file_index = rng.integers(len(self.files), size=len(entries))
                for index, file in enumerate(self.files):
                    file.write(entries[file_index == index].tobytes())

    def epoch(self, rng: np.random.Generator, block: int = 1 << 20) -> Iterator[Counts]:
        """All entries once, in a new random order."""
        for index in rng.permutation(len(self.files)):
            file = self.files[index]
            file.seek(0)
            entries = np.frombuffer(file.read(), ENTRY)
            order = rng.permutation(len(entries))
            for begin in range(0, len(entries), block):
                part = entries[order[begin : begin + block]]
                yield Counts(*(np.ascontiguousarray(part[name]) for name in ("row", "column", "count")))
