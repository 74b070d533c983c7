"""word2vec: word vectors that predict which words occur near each other (Mikolov et al., 2013).

    skip-gram    each word near the center c predicts c                   p(c; near)
    CBOW         the mean of the words near c predicts c                  p(c; mean of near)

Instead of a softmax over all words, c is classified against some noise words (negative sampling), or its path in a Huffman
tree is predicted (hierarchical softmax).  Frequent words are subsampled, the window has a random size up to `window`, and the
learning rate falls linearly to 0.  The noise words of a center are shared by its whole window.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, final

import numpy as np
from sklearn.base import BaseEstimator

from ..core.errors import BadInput, NumericalStop
from ..core.options import Count
from ..core.seeds import key
from ..engine.progress import Progress
from ..kernels.words import Pass, Rate, Tally, rows, train
from ._base import NonNegative, Positive, checked_arguments
from ._word2vec_sampling import build_noise, build_tree, keep_probabilities
from .word_vectors import WordVectors, documents
from .words_corpus import Corpus, Split, words

SPAN = 1 << 20
"""words between two updates of the progress bar"""


@final
class Word2Vec(BaseEstimator):
    """After `fit`: vectors_ (a `WordVectors`), losses_ (mean negative log-likelihood of a prediction, by epoch), n_seen_ (words read).

    Args:
        width: numbers in a vector
        model: 'skip-gram' or 'cbow'
        loss: 'negative' (sampling) or 'hierarchical' (softmax)
        window: maximal distance of a neighbor from the center
        negatives: noise words for each center
        sample: words with a higher relative frequency than this are subsampled; 0 keeps all
        min_count: words that occur less often are left out
        epochs: passes over the text
        lr: initial learning rate; by default 0.025 for skip-gram and 0.05 for CBOW
        threads: with 1 the same seed gives the same bits; more share the vectors without locks
        split: string -> words; by default runs of letters in lower case
        random_state: seed
        quiet: show no progress
    """

    def __init__(  # noqa: PLR0913  (settings of an estimator are flat, so that a grid can name them)
        self,
        width: Count = 100,
        model: Literal["skip-gram", "cbow"] = "skip-gram",
        loss: Literal["negative", "hierarchical"] = "negative",
        window: Count = 5,
        negatives: Count = 5,
        sample: NonNegative = 1e-3,
        min_count: Count = 5,
        epochs: Count = 5,
        lr: Positive | None = None,
        threads: Count = 1,
        split: Split | None = None,
        random_state: int = 0,
        quiet: bool = False,
    ) -> None:
        self.width = width
        self.model = model
        self.loss = loss
        self.window = window
        self.negatives = negatives
        self.sample = sample
        self.min_count = min_count
        self.epochs = epochs
        self.lr = lr
        self.threads = threads
        self.split = split
        self.random_state = random_state
        self.quiet = quiet

    def fit(self, X: Any, y: Any = None) -> Word2Vec:
        """X: path of a text (a line is a sentence), sentences (strings, rows of words or ids), or one array of ids; y is not looked at."""
        arguments = checked_arguments(self)
        width, cbow = arguments.width, self.model == "cbow"
        lr = (0.05 if cbow else 0.025) if arguments.lr is None else arguments.lr
        corpus = Corpus.read(X, arguments.min_count, self.split or words, self.quiet)
        V = len(corpus.words)
        if V < 2:
            raise BadInput(f"the text has one word only, '{corpus.words[0]}'", fix="give more text, or lower min_count")
        answers = build_tree(corpus.counts) if self.loss == "hierarchical" else build_noise(corpus.counts, arguments.negatives)
        how = Pass(keep_probabilities(corpus.counts, arguments.sample), answers, arguments.window, cbow, arguments.threads)
        inputs, outputs = rows(V, width), rows(V, width)
        inputs[:, :width] = np.random.default_rng(key(self.random_state, "word2vec")).uniform(-1, 1, (V, width)) / width
        self.losses_ = self._train(corpus, inputs, outputs, how, lr, arguments.epochs)
        self.vectors_ = WordVectors(corpus.words, np.ascontiguousarray(inputs[:, :width]), corpus.counts)
        self.n_seen_ = corpus.seen
        return self

    def transform(self, X: Any) -> np.ndarray:
        """The mean vector (N, D) of each document's known words; a document without any has zeros."""
        return documents(self, X)

    def _train(self, corpus: Corpus, inputs: np.ndarray, outputs: np.ndarray, how: Pass, lr: float, epochs: int) -> list[float]:
        """Mean loss of each epoch."""
        pieces, step, losses = how.pieces(corpus.tokens), max(SPAN // how.piece, 1), []
        fall = lr / (epochs * pieces)
        title = f"{self.model}, {len(corpus.words):,} words"
        with Progress(title, epochs * len(corpus.tokens), unit="word", quiet=self.quiet) as progress:
            for epoch in range(epochs):
                rate, tally = Rate(lr - fall * epoch * pieces, fall), Tally()
                for begin in range(0, pieces, step):
                    part = range(begin, min(begin + step, pieces))
                    done = train(corpus.tokens, inputs, outputs, how, part, key(self.random_state, "epoch", epoch), rate)
                    tally = Tally(tally.loss + done.loss, tally.pairs + done.pairs, tally.kept + done.kept)
                    if not np.isfinite(tally.loss):
                        raise NumericalStop("the loss is not finite", where=f"epoch {epoch + 1}, rate {rate.start:.3g}", fix="lower lr")
                    progress.tick(epoch * len(corpus.tokens) + min(part.stop * how.piece, len(corpus.tokens)))
                    progress.note({"loss": tally.loss / max(tally.pairs, 1)})
                if not tally.pairs:
                    raise BadInput("no sentence of the text has two words", fix="give longer sentences, or sample=0")
                losses.append(tally.loss / tally.pairs)
        return losses


def window_pairs(sentence: Sequence[Any], window: int) -> list[tuple[Any, Any]]:
    """(center, neighbor) for every two words at most `window` apart, center by center: what skip-gram learns from."""
    return [
        (center, sentence[near])
        for at, center in enumerate(sentence)
        for near in range(max(at - window, 0), min(at + window + 1, len(sentence)))
        if near != at
    ]
