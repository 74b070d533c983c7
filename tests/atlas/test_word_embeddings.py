"""Mistakes about embeddings, made on purpose, that turn chapter 14 red."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sonde.atlas import word_embeddings
from sonde.atlas.exhibit import run
from sonde.data.text import tokenizer
from sonde.estimators import glove, word2vec
from sonde.kernels import words
from tests.atlas.mistakes import any_of, wrong


@pytest.mark.parametrize("row", ["EMB-01", "EMB-02", "EMB-03", "EMB-04", "EMB-05", "EMB-06"])
def test_the_chapter_holds(row):
    result = run(row)
    assert result.passed, result.why


def test_emb_01_notices_a_tokenizer_that_loses_capitals(monkeypatch):
    right = tokenizer.train

    def small(kind, texts, **more):
        vocabulary = right(kind, texts, **more)
        decode = type(vocabulary).decode
        monkeypatch.setattr(type(vocabulary), "decode", lambda self, tokens: decode(self, tokens).lower())
        return vocabulary

    monkeypatch.setattr(tokenizer, "train", small)
    assert any_of(wrong("EMB-01"), "there and back")


def test_emb_01_notices_a_code_that_is_not_one_hot(monkeypatch):
    right = word_embeddings.F.one_hot
    monkeypatch.setattr(word_embeddings.F, "one_hot", lambda *args: (x := right(*args)) * torch.arange(1, x.shape[-1] + 1))
    names = wrong("EMB-01")
    assert any_of(names, "distances of different") and any_of(names, "distance(cat, dog)")


def test_emb_02_notices_a_lookup_of_the_next_row(monkeypatch):
    from sonde.models import language_model

    monkeypatch.setattr(language_model, "embed", lambda table, tokens: table(tokens + 1))
    names = wrong("EMB-02")
    assert any_of(names, "lookup") and any_of(names, "rows with a gradient")


def test_emb_02_notices_a_gradient_for_every_row(monkeypatch):
    from sonde.models import language_model

    monkeypatch.setattr(language_model, "embed", lambda table, tokens: table(tokens) + 1e-16 * table.weight.sum(0))
    assert any_of(wrong("EMB-02"), "rows with a gradient")


def test_emb_03_notices_a_window_too_wide_on_one_side(monkeypatch):
    right = word2vec.window_pairs
    monkeypatch.setattr(word2vec, "window_pairs", lambda sentence, window: right(sentence, window + 1))
    assert wrong("EMB-03")[0].startswith("pairs of a 5-word sentence")


def test_emb_03_notices_a_kernel_that_learns_nothing(monkeypatch):
    right = word2vec.train
    monkeypatch.setattr(word2vec, "train", lambda *args: right(*args[:6], words.Rate(0.0)))
    names = wrong("EMB-03")
    assert any_of(names, "fall of the loss") and any_of(names, "similarity(cat, dog)") and not any_of(names, "full softmax")


def test_emb_03_notices_a_window_that_crosses_sentences(monkeypatch):
    """All sentences as one: cats and cars then stand near each other."""
    monkeypatch.setattr(word_embeddings, "_language", lambda seed, right=word_embeddings._language: _shuffled(right(seed)))
    assert any_of(wrong("EMB-03"), "similarity(cat, dog)")


def _shuffled(text):
    """The same words without any order."""
    row = np.random.default_rng(0).permutation([word for sentence in text for word in sentence]).tolist()
    return [row[i : i + 4] for i in range(0, len(row), 4)]


def test_emb_04_notices_counts_that_are_not_weighed(monkeypatch):
    right = glove.count

    def flat(*args):
        return ((pairs, np.ones_like(weights)) for pairs, weights in right(*args))

    monkeypatch.setattr(glove, "count", flat)
    assert any_of(wrong("EMB-04"), "1 / distance")


def test_emb_04_notices_a_fit_without_biases(monkeypatch):
    right = words.glove

    def plain(counts, left, right_, *rest):
        loss = right(counts, left, right_, *rest)
        left.bias[:] = right_.bias[:] = 0
        left.vectors[:, 2:] = 0  # and with fewer numbers than the rank
        return loss

    monkeypatch.setattr(words, "glove", plain)
    assert any_of(wrong("EMB-04"), "weighted square of a cell")


def test_emb_04_notices_a_fit_that_ends_too_soon(monkeypatch):
    monkeypatch.setattr(word_embeddings, "PASSES", 100)
    names = wrong("EMB-04")
    assert any_of(names, "weighted square of a cell") and not any_of(names, "first pass")


def test_emb_05_notices_a_model_that_does_not_look_around(monkeypatch):
    from sonde.models.elmo import Elmo

    right = Elmo.layers
    monkeypatch.setattr(Elmo, "layers", lambda self, tokens, **more: right(self, tokens, **more)[:1].repeat(2, 1, 1, 1))
    assert any_of(wrong("EMB-05"), "between the senses")


def test_emb_06_notices_places_that_are_all_the_same(monkeypatch):
    from sonde.nn.positions import Positions

    monkeypatch.setattr(Positions, "code", lambda self, places: torch.ones(len(places), self.width))
    assert any_of(wrong("EMB-06"), "and with places")
