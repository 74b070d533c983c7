"""Mistakes about language models, made on purpose, that turn chapter 19 red."""

from __future__ import annotations

from functools import cache, partial

import pytest
import torch

from sonde.atlas import _language_model_parts, language_models
from sonde.atlas.exhibit import Exhibit
from sonde.models import elmo, ngram
from sonde.nn import adapters
from tests.atlas.mistakes import any_of, wrong


@pytest.fixture
def untrained(monkeypatch):
    """Training takes two steps, of two seeds and on little data: for mistakes that show without it."""
    right = _language_model_parts.recipe
    monkeypatch.setattr(
        _language_model_parts, "recipe", lambda model, data, objective, steps, lr, **more: right(model, data, objective, 2, lr, **more)
    )
    monkeypatch.setattr(Exhibit, "seeds", lambda self, n=3: range(2))
    for name, few in (("_documents", 20), ("sentences", 500), ("second_order", 2000)):
        monkeypatch.setattr(_language_model_parts, name, partial(_fewer, getattr(_language_model_parts, name), few))
    for name in ("_bert", "_gpt", "make_questions"):
        monkeypatch.setattr(_language_model_parts, name, cache(getattr(_language_model_parts, name).__wrapped__))


def _fewer(draw, most, seed, n, *key):
    return draw(seed, min(n, most), *key)


def test_lm_01_notices_probabilities_that_are_none(monkeypatch):
    right = language_models.score
    monkeypatch.setattr(language_models, "score", lambda model, *rest, **how: right(model, *rest, **how) + 0.01)
    assert any_of(wrong("LM-01"), "all 64 strings")


def test_lm_02_notices_a_discount_that_nobody_gets_back(monkeypatch):
    right = ngram._discount_counts
    monkeypatch.setattr(ngram, "_discount_counts", lambda *args: (right(*args)[0], right(*args)[1] * 0.9))
    assert any_of(wrong("LM-02"), "add up to")


def test_lm_02_notices_a_trigram_that_looks_too_far(monkeypatch):
    right = language_models.Ngram
    monkeypatch.setattr(language_models, "Ngram", lambda text, V, order, how: right(text, V, order + 1, how))
    assert any_of(wrong("LM-02"), "E-46")


def test_lm_03_notices_one_embedding_for_each_place(monkeypatch, untrained):
    right = language_models.FeedForwardLM.__init__

    def three(self, *args):
        right(self, *args)
        self.other = torch.nn.Embedding(self.vocabulary, self.width)

    monkeypatch.setattr(language_models.FeedForwardLM, "__init__", three)
    assert any_of(wrong("LM-03"), "|V| d")


def test_lm_04_notices_a_model_that_learned_nothing(untrained):
    assert any_of(wrong("LM-04"), "RNN")


def test_lm_05_notices_a_body_that_learns(monkeypatch, untrained):
    right = language_models.ElmoFeatures

    def thawed(body):
        features = right(body)
        body.requires_grad_(True)
        return features

    monkeypatch.setattr(language_models, "ElmoFeatures", thawed)
    names = wrong("LM-05")
    assert any_of(names, "what may learn") and any_of(names, "receives a gradient") and any_of(names, "bit for bit")


def test_lm_05_notices_a_direction_that_is_missing(monkeypatch):
    right = elmo.Elmo.layers

    def twice_forward(self, *args, **more):
        layers = right(self, *args, **more)
        half = layers.shape[-1] // 2
        return torch.cat([layers[..., :half], layers[..., :half]], -1)

    monkeypatch.setattr(elmo.Elmo, "layers", twice_forward)
    assert any_of(wrong("LM-05"), "reader of the past alone")


def test_lm_05_notices_weights_that_do_not_add_up(monkeypatch, untrained):
    monkeypatch.setattr(elmo.LayerMix, "shares", property(lambda self: self.s.exp()))
    assert any_of(wrong("LM-05"), "add up to")


def test_lm_06_notices_a_generator_that_takes_anything(monkeypatch):
    right = language_models.generate
    monkeypatch.setattr(
        language_models, "generate", lambda model, x, new: x[:, :new] if isinstance(model, language_models.Bert) else right(model, x, new)
    )
    assert any_of(wrong("LM-06"), "generate() with BERT")


@pytest.mark.parametrize("row", ["LM-07", "LM-14"])
def test_a_count_that_leaves_something_out(monkeypatch, row):
    right = language_models.size
    monkeypatch.setattr(language_models, "size", lambda model, *without: right(model, *without, "positions"))
    assert any_of(wrong(row), "gpt3: parameters" if row == "LM-14" else "large, with pooler")


def test_lm_08_notices_an_output_matrix_of_its_own(monkeypatch, untrained):
    right = language_models.Bert.logits

    def apart(self, x):
        table = self.embedding
        self.embedding = torch.nn.Embedding.from_pretrained(table.weight.detach().clone(), freeze=False)
        try:
            return right(self, x)
        finally:
            self.embedding = table

    monkeypatch.setattr(language_models.Bert, "logits", apart)
    assert any_of(wrong("LM-08"), "the table of embeddings itself")


def test_lm_09_notices_a_third_target(monkeypatch):
    right = language_models.hide
    monkeypatch.setattr(
        language_models, "hide", lambda batch, chosen, mask: right(batch, chosen | (torch.arange(chosen.shape[1]) == 2), mask)
    )
    names = wrong("LM-09")
    assert any_of(names, "terms of the loss") and any_of(names, "what it is asked")


def test_lm_10_notices_pre_training_without_effect(untrained):
    names = wrong("LM-10")
    assert any_of(names, "next-sentence") and any_of(names, "better than from scratch")


def test_lm_11_notices_a_leak(monkeypatch, untrained):
    right = language_models.partial
    leaks = lambda kind, *args, **how: lambda **more: right(kind, *args, **how)(ahead=True, mixer="attention causal=false positions=none")  # noqa: E731
    monkeypatch.setattr(
        language_models, "partial", lambda kind, *args, **how: leaks(kind, *args, **how) if kind is language_models.LanguageModel else kind
    )
    monkeypatch.setattr(_language_model_parts, "train_model", lambda recipe, seed: recipe.build_model())
    assert any_of(wrong("LM-11"), "mean over prefixes")


def test_lm_12_notices_a_model_that_writes_no_words(untrained):
    assert any_of(wrong("LM-12"), "letters or more that exist")


def test_lm_13_notices_a_weight_that_is_ignored(monkeypatch, untrained):
    right = language_models.Part
    monkeypatch.setattr(language_models, "Part", lambda y, mask, weight=1.0: right(y, mask))
    names = wrong("LM-13")
    assert any_of(names, "pure classifier") and any_of(names, "L_cls + L_LM / 2")


def test_lm_15_notices_an_answer_given_away(monkeypatch, untrained):
    right = language_models.few_shot
    monkeypatch.setattr(language_models, "few_shot", lambda *args: right(*args) + " I'd be happy to work on another project.")
    names = wrong("LM-15")
    assert any_of(names, "stops before the answer") and any_of(names, "not in it") and any_of(names, "16 shots")


def test_lm_15_notices_weights_that_change(monkeypatch, untrained):
    right = language_models.generate

    def learns(model, *args, **how):
        with torch.no_grad():
            next(model.parameters()).add_(1e-3)
        return right(model, *args, **how)

    monkeypatch.setattr(language_models, "generate", learns)
    assert any_of(wrong("LM-15"), "E-41")


def test_lm_16_notices_a_lost_span(monkeypatch, untrained):
    right = language_models.restore_spans
    monkeypatch.setattr(language_models, "restore_spans", lambda source, target, tokenizer: right(source, target, tokenizer).roll(1))
    assert any_of(wrong("LM-16"), "restored")


def test_lm_16_notices_a_model_that_trains_a_quarter_as_long(monkeypatch):
    right = language_models.toy.recipe
    monkeypatch.setattr(
        language_models.toy, "recipe", lambda model, data, objective, steps, lr: right(model, data, objective, steps // 4, lr)
    )
    assert any_of(wrong("LM-16"), "reverse: answers right")


def test_lm_17_notices_a_model_that_cannot_translate(monkeypatch, untrained):
    right = language_models.translation.recipe
    monkeypatch.setattr(language_models.translation, "recipe", lambda **how: right(**{**how, "steps": 2}))
    monkeypatch.setattr(language_models.translation, "TOYS", 500)
    assert any_of(wrong("LM-17"), "without a mistake")


def test_lm_18_notices_an_adapter_that_does_not_begin_at_zero(monkeypatch, untrained):
    right = adapters.Bottleneck.__init__

    def random(self, *args):
        right(self, *args)
        torch.nn.init.normal_(self.up.weight)

    monkeypatch.setattr(adapters.Bottleneck, "__init__", random)
    assert any_of(wrong("LM-18"), "bit for bit")
