"""Word vectors beside gensim on the novels of the data folder: words per second with two threads, and agreement with people.

    SONDE_DATA=... OMP_NUM_THREADS=2 python benchmarks/words.py speed [rounds]
    SONDE_DATA=... OMP_NUM_THREADS=2 python benchmarks/words.py quality [skip-gram|cbow] [seeds]
    SONDE_DATA=... OMP_NUM_THREADS=2 python benchmarks/words.py glove

Both sides get the same sentences, gensim as lists of words, ours as the numbers of these words (`Corpus`).  100 numbers,
window 5, 5 noise words, threshold 1e-3, words that occur five times or more, the same rate. `speed` times one epoch of
training on sentences already read, since gensim reports that; words are counted before thinning out, as gensim does.
`quality` trains five epochs and reports Spearman's rank correlation with ten sets of human ratings, and the share of
analogies answered right.
"""

from __future__ import annotations

import os
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from _clock import table, turns

from sonde.estimators.glove import GloVe
from sonde.estimators.word2vec import Word2Vec
from sonde.estimators.word_vectors import WordVectors
from sonde.estimators.words_corpus import Corpus, words

OURS, THEIRS = "sonde", "gensim"
THREADS = int(os.environ.get("OMP_NUM_THREADS", 2))
WAYS = {"skip-gram": 1, "cbow": 0}
SAME: dict[str, Any] = {"window": 5, "sample": 1e-3, "min_count": 5}


class Text(NamedTuple):
    """A row of words for each paragraph of the novels, and the same as each side reads it."""

    rows: list[list[str]]
    corpus: Corpus


def novels() -> Text:
    rows: list[list[str]] = []
    with tarfile.open(Path(os.environ["SONDE_DATA"], "text/english-novels.tar.xz")) as tar:
        for member in tar:
            if (file := tar.extractfile(member)) is not None:
                rows += filter(None, map(words, file.read().decode().split("\n")))
    return Text(rows, Corpus.read(rows, SAME["min_count"], words))


def ours(model: str, text: Text, epochs: int = 1, seed: int = 0) -> tuple[WordVectors, float]:
    """Vectors, and the seconds their training took."""
    word2vec = Word2Vec(100, model, negatives=5, epochs=epochs, lr=0.025, threads=THREADS, random_state=seed, quiet=True, **SAME)
    start = time.perf_counter()
    word2vec.fit(text.corpus)
    return word2vec.vectors_, time.perf_counter() - start


def theirs(model: str, text: Text, epochs: int = 1, seed: int = 0) -> tuple[WordVectors, float]:
    """The same by gensim, whose vocabulary is not timed either."""
    from gensim.models import Word2Vec as Theirs

    word2vec = Theirs(vector_size=100, sg=WAYS[model], negative=5, alpha=0.025, workers=THREADS, seed=seed + 1, **SAME)
    word2vec.build_vocab(text.rows)
    start = time.perf_counter()
    word2vec.train(text.rows, total_examples=len(text.rows), epochs=epochs)
    seconds = time.perf_counter() - start
    return WordVectors(word2vec.wv.index_to_key, word2vec.wv.vectors), seconds


def speed(rounds: int) -> bool:
    text = novels()
    seen = text.corpus.seen
    print(f"{seen:,} words, {THREADS} thread(s)")
    met = True
    for model in WAYS:

        def measure(train: Callable, model: str = model) -> Callable[[], float]:
            return lambda: seen / train(model, text)[1]

        best = turns({OURS: measure(ours), THEIRS: measure(theirs)}, rounds)
        met &= table(f"{model}, one epoch", best, "words/s", OURS, {THEIRS: 1.3})
    return met


def evaluate(vectors: WordVectors) -> dict[str, float]:
    folder = Path(os.environ["SONDE_DATA"], "word-vectors")
    rated = {path.stem.removeprefix("EN-"): vectors.rate(path).spearman for path in sorted(folder.glob("EN-*.txt"))}
    return {
        **rated,
        "mean of sets": float(np.mean(list(rated.values()))),
        "analogies": vectors.answer(folder / "questions-words.txt").accuracy,
    }


def quality(model: str, seeds: int) -> bool:
    """Mean over seeds; met where ours is not worse than gensim by more than two standard errors of their difference."""
    text = novels()
    results: dict[str, list[dict[str, float]]] = {OURS: [], THEIRS: []}
    for seed in range(seeds):
        for name, train in ((OURS, ours), (THEIRS, theirs)):
            results[name].append(evaluate(train(model, text, 5, seed)[0]))
    print(f"{model}, five epochs, mean over {seeds} seed(s)\n  {'':14} {OURS:>8} {THEIRS:>8}")
    for name in results[OURS][0]:
        print(f"  {name:14} " + " ".join(f"{np.mean([one[name] for one in side]):8.3f}" for side in results.values()))
    scores = [np.array([one["mean of sets"] for one in side]) for side in results.values()]
    margin = 2 * np.sqrt(sum(s.var(ddof=1) / seeds for s in scores)) if seeds > 1 else 0.02
    return bool(scores[0].mean() >= scores[1].mean() - margin)


def glove() -> bool:
    text = novels()
    start = time.perf_counter()
    fit = GloVe(threads=THREADS, epochs=15).fit(text.corpus)
    seconds = time.perf_counter() - start
    print(f"GloVe: {fit.n_cells_:,} cells, 15 passes, {seconds:.0f} s, loss {fit.losses_[0]:.4f} to {fit.losses_[-1]:.4f}")
    for name, value in evaluate(fit.vectors_).items():
        print(f"  {name:14} {value:8.3f}")
    return fit.losses_[-1] < fit.losses_[0]


if __name__ == "__main__":
    part, *rest = sys.argv[1:] or ["speed"]
    if part == "speed":
        done = speed(int(rest[0]) if rest else 3)
    elif part == "quality":
        done = quality(rest[0] if rest else "skip-gram", int(rest[1]) if rest[1:] else 1)
    else:
        done = glove()
    sys.exit(0 if done else 1)
