"""Mistakes about embeddings, made on purpose, that turn chapter 14 red."""

from __future__ import annotations

import numpy as np
import torch

from sonde.atlas import word_embeddings
from sonde.data.text import tokenizer
from sonde.estimators import glove, word2vec
from sonde.kernels import words
from sonde.models import language_model
from sonde.models.elmo import Elmo
from sonde.nn.positions import Positions
from tests.atlas.mistakes import Mistakes


def _shuffled(text):
    """The same words without any order."""
    row = np.random.default_rng(0).permutation([word for sentence in text for word in sentence]).tolist()
    return [row[i : i + 4] for i in range(0, len(row), 4)]


mistakes = Mistakes()

mistakes.add("EMB-01", "a code that is not one hot", red=("distances of different", "distance(cat, dog)")).replace(
    word_embeddings.F, "one_hot", lambda right, *args: (x := right(*args)) * torch.arange(1, x.shape[-1] + 1)
)
mistakes.add("EMB-02", "a lookup of the next row", red=("lookup", "rows with a gradient")).replace(
    language_model, "embed", lambda table, tokens: table(tokens + 1)
)
mistakes.add("EMB-02", "a gradient for every row", red="rows with a gradient").replace(
    language_model, "embed", lambda table, tokens: table(tokens) + 1e-16 * table.weight.sum(0)
)
mistakes.add("EMB-03", "a window too wide on one side", red="pairs of a 5-word sentence").replace(
    word2vec, "window_pairs", lambda right, sentence, window: right(sentence, window + 1)
)
mistakes.add("EMB-03", "a kernel that learns nothing", red=("fall of the loss", "similarity(cat, dog)"), green="full softmax").replace(
    word2vec, "train", lambda right, *args: right(*args[:6], words.Rate(0.0))
)
# All sentences as one: cats and cars then stand near each other.
mistakes.add("EMB-03", "a window that crosses sentences", red="similarity(cat, dog)").replace(
    word_embeddings, "_language", lambda right, seed: _shuffled(right(seed))
)
mistakes.add("EMB-04", "a fit that ends too soon", red="weighted square of a cell", green="first pass").replace(
    word_embeddings, "PASSES", 100
)
mistakes.add("EMB-05", "a model that does not look around", red="between the senses").replace(
    Elmo, "layers", lambda right, self, tokens, **more: right(self, tokens, **more)[:1].repeat(2, 1, 1, 1)
)
mistakes.add("EMB-06", "places that are all the same", red="and with places").replace(
    Positions, "code", lambda self, positions: torch.ones(len(positions), self.width)
)


@mistakes.add("EMB-01", "a tokenizer that loses capitals", red="there and back")
def lose_capitals(monkeypatch):
    right = tokenizer.train

    def small(kind, texts, **more):
        vocabulary = right(kind, texts, **more)
        decode = type(vocabulary).decode
        monkeypatch.setattr(type(vocabulary), "decode", lambda self, tokens: decode(self, tokens).lower())
        return vocabulary

    monkeypatch.setattr(tokenizer, "train", small)


@mistakes.add("EMB-04", "counts that are not weighed", red="1 / distance").replace(glove, "count")
def flat(right, *args):
    return ((pairs, np.ones_like(weights)) for pairs, weights in right(*args))


@mistakes.add("EMB-04", "a fit without biases", red="weighted square of a cell").replace(words, "glove")
def plain(right, counts, left, right_, *rest):
    loss = right(counts, left, right_, *rest)
    left.bias[:] = right_.bias[:] = 0
    left.vectors[:, 2:] = 0  # and with fewer numbers than the rank
    return loss


@mistakes.each
def test_notices(mistake, monkeypatch):
    mistake.assert_noticed(monkeypatch)
