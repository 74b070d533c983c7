"""Mistakes about language models, made on purpose, that turn chapter 19 red."""

from __future__ import annotations

from functools import cache, partial

import torch

from sonde.atlas import _language_model_parts, language_models
from sonde.atlas.exhibit import Exhibit
from sonde.models import elmo, ngram
from sonde.nn import adapters
from tests.atlas.mistakes import Mistakes


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


mistakes = Mistakes()

mistakes.add("LM-01", "probabilities that are none", red="all 64 strings").replace(
    language_models, "score", lambda right, model, *rest, **how: right(model, *rest, **how) + 0.01
)
mistakes.add("LM-02", "a discount that nobody gets back", red="add up to").replace(
    ngram, "_discount_counts", lambda right, *args: (right(*args)[0], right(*args)[1] * 0.9)
)
mistakes.add("LM-02", "a trigram that looks too far", red="E-46").replace(
    language_models, "Ngram", lambda right, text, V, order, how: right(text, V, order + 1, how)
)
mistakes.add("LM-04", "a model that learned nothing", red="RNN", setup=untrained)
mistakes.add("LM-05", "weights that do not add up", red="add up to", setup=untrained).replace(
    elmo.LayerMix, "weights", property(lambda self: self.s.exp())
)
mistakes.add("LM-06", "a generator that takes anything", red="generate() with BERT").replace(
    language_models,
    "generate",
    lambda right, model, x, new: x[:, :new] if isinstance(model, language_models.Bert) else right(model, x, new),
)
mistakes.add("LM-07", "a count that leaves something out", red="large, with pooler").replace(
    language_models, "size", lambda right, model, *without: right(model, *without, "positions")
)
mistakes.add("LM-09", "a third target", red=("terms of the loss", "what it is asked")).replace(
    language_models, "hide", lambda right, batch, chosen, mask: right(batch, chosen | (torch.arange(chosen.shape[1]) == 2), mask)
)
mistakes.add("LM-10", "pre-training without effect", red=("next-sentence", "better than from scratch"), setup=untrained)
mistakes.add("LM-12", "a model that writes no words", red="letters or more that exist", setup=untrained)
mistakes.add("LM-13", "a weight that is ignored", red=("pure classifier", "L_cls + L_LM / 2"), setup=untrained).replace(
    language_models, "Part", lambda right, y, mask, weight=1.0: right(y, mask)
)
mistakes.add("LM-14", "a count that leaves something out", red="gpt3: parameters").replace(
    language_models, "size", lambda right, model, *without: right(model, *without, "positions")
)
mistakes.add("LM-15", "an answer given away", red=("stops before the answer", "not in it", "16 shots"), setup=untrained).replace(
    language_models, "few_shot", lambda right, *args: right(*args) + " I'd be happy to work on another project."
)
mistakes.add("LM-16", "a lost span", red="restored", setup=untrained).replace(
    language_models, "restore_spans", lambda right, source, target, tokenizer: right(source, target, tokenizer).roll(1)
)
mistakes.add("LM-16", "a model that trains a quarter as long", red="reverse: answers right").replace(
    language_models.toy, "recipe", lambda right, model, data, objective, steps, lr: right(model, data, objective, steps // 4, lr)
)
mistakes.add("LM-17", "a model that cannot translate", red="without a mistake", setup=untrained).replace(
    language_models.translation, "recipe", lambda right, **how: right(**{**how, "steps": 2})
).replace(language_models.translation, "TOYS", 500)


@mistakes.add("LM-03", "one embedding for each place", red="|V| d", setup=untrained).replace(language_models.FeedForwardLM, "__init__")
def three(right, self, *args):
    right(self, *args)
    self.other = torch.nn.Embedding(self.vocabulary, self.width)


@mistakes.add("LM-05", "a body that learns", red=("what may learn", "receives a gradient", "bit for bit"), setup=untrained).replace(
    language_models, "ElmoFeatures"
)
def thawed(right, body):
    features = right(body)
    body.requires_grad_(True)
    return features


@mistakes.add("LM-05", "a direction that is missing", red="reader of the past alone").replace(elmo.Elmo, "layers")
def twice_forward(right, self, *args, **more):
    layers = right(self, *args, **more)
    half = layers.shape[-1] // 2
    return torch.cat([layers[..., :half], layers[..., :half]], -1)


@mistakes.add("LM-08", "an output matrix of its own", red="the table of embeddings itself", setup=untrained).replace(
    language_models.Bert, "logits"
)
def apart(right, self, x):
    table = self.embedding
    self.embedding = torch.nn.Embedding.from_pretrained(table.weight.detach().clone(), freeze=False)
    try:
        return right(self, x)
    finally:
        self.embedding = table


@mistakes.add("LM-11", "a leak", red="mean over prefixes", setup=untrained)
def let_the_model_look_ahead(monkeypatch):
    right = language_models.partial

    def leak(kind, *args, **how):
        if kind is not language_models.LanguageModel:
            return kind
        return lambda **more: right(kind, *args, **how)(noncausal=True, mixer="attention causal=false positions=none")

    monkeypatch.setattr(language_models, "partial", leak)
    monkeypatch.setattr(_language_model_parts, "train_model", lambda recipe, seed: recipe.build_model())


@mistakes.add("LM-15", "weights that change", red="E-41", setup=untrained).replace(language_models, "generate")
def learns(right, model, *args, **how):
    with torch.no_grad():
        next(model.parameters()).add_(1e-3)
    return right(model, *args, **how)


@mistakes.add("LM-18", "an adapter that does not begin at zero", red="bit for bit", setup=untrained).replace(
    adapters.Bottleneck, "__init__"
)
def random(right, self, *args):
    right(self, *args)
    torch.nn.init.normal_(self.up.weight)


@mistakes.each
def test_notices(mistake, monkeypatch):
    mistake.assert_noticed(monkeypatch)
