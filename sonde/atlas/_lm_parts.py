"""What the exhibits of chapter 19 share: a made-up language with topics, and models trained on it once per process."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..core.batch import Batch, Data
from ..core.recipe import Recipe
from ..core.seeds import generator
from ..data.corrupt import Change, SentenceSource, fixed, masking, next_sentence
from ..data.documents import Ragged
from ..data.tensors import TensorSource, fingerprint
from ..data.tokeniser import Tokeniser, special, train
from ..models.bert import Bert
from ..models.language_model import LanguageModel
from ..objectives.categorical import Categorical
from ..objectives.joint import Joint, Part
from ..optim.build import optimiser
from ..optim.schedules import warmup_cosine
from ._exhibit import Exhibit

TOPICS = ("sea", "farm", "court", "music", "war", "kitchen", "sky", "trade")
WORDS = 24
"""of each topic"""
LONG = 4
"""words of a sentence"""


def recipe(model: Callable[[], nn.Module] | nn.Module, data: Data, objective: Any, steps: int, lr: float, **more: Any) -> Recipe:
    """AdamW, warm-up and cosine; evaluated once, at the end."""
    usual = {"schedule": warmup_cosine(warmup=0.1, floor=0.02), "clip": 1.0, "batch": 64, "evaluate_every": steps}
    return Recipe(model=model, data=data, objective=objective, optimiser=optimiser("adamw", lr=lr), steps=steps, **{**usual, **more})


def trained(made: Recipe) -> Any:
    """The model of a recipe after training; nothing is left on the disk."""
    with tempfile.TemporaryDirectory(prefix="sonde-atlas-") as work:
        return Exhibit(Path(work)).train(made, "toy").model().eval()


def weights(model: nn.Module) -> str:
    """Hash of all numbers of a model."""
    return fingerprint(dict(model.state_dict()))


# A language: a document stays with its topic -----------------------------------------------------------------------


@cache
def tokeniser() -> Tokeniser:
    words = [f"{topic}{number}" for topic in TOPICS for number in range(WORDS)]
    return train("words", [" ".join(words)], 1000, ("pad", "unknown", "cls", "sep", "mask"))


@cache
def _numbers() -> Tensor:
    """(topics, words) number of each word's token."""
    told = {token: number for number, token in enumerate(tokeniser().tokens)}
    return torch.tensor([[told[f"{topic}{number}"] for number in range(WORDS)] for topic in TOPICS])


def sentences(n: int, *key: Any) -> Batch:
    """Sentences x (n, 1 + LONG), each behind [CLS], and their topics y (n,)."""
    dice = generator(0, "sentences", *key)
    return _told(torch.randint(len(TOPICS), (n,), generator=dice), dice)


def few(each: int = 1) -> Batch:
    """So many sentences of each topic: all the labels there are."""
    return _told(torch.arange(len(TOPICS)).repeat(each), generator(0, "sentences", "few"))


def _told(topic: Tensor, dice: torch.Generator) -> Batch:
    front = torch.full((len(topic), 1), special(tokeniser(), "cls"))
    return Batch(x=torch.cat([front, _words(topic, dice)], 1), y=topic)


def label_words() -> Tensor:
    """(topics,) a word of each topic that stands for it."""
    return _numbers()[:, 0]


def _words(topic: Tensor, dice: torch.Generator) -> Tensor:
    """(n, LONG) words of each topic."""
    return _numbers()[topic.unsqueeze(1), torch.randint(WORDS, (len(topic), LONG), generator=dice)]


def source(batch: Batch, **others: Tensor) -> TensorSource:
    return TensorSource(**{**batch.fields, **others})  # type: ignore[arg-type]


# BERT on it -------------------------------------------------------------------------------------------------------

BERT_STEPS = 400


def bert() -> Bert:
    return Bert(tokeniser().size, 48, 2, "attention heads=4", 2.0, places=2 * LONG + 3)


def _documents(n: int, *key: Any) -> SentenceSource:
    """Documents of forty sentences about one topic."""
    dice = generator(0, "documents", *key)
    topic = torch.randint(len(TOPICS), (n,), generator=dice)
    words = _words(topic.repeat_interleave(40), dice)
    return SentenceSource([Ragged.of(document) for document in words.view(n, 40, LONG)], special(tokeniser(), "pad"))


def questions() -> Change:
    """Both of BERT's tasks: is it the next sentence, and which words are hidden?"""
    pairs, hidden = next_sentence(tokeniser()), masking(tokeniser())
    return lambda batch, dice: hidden(pairs(batch, dice), dice)


@cache
def asked() -> TensorSource:
    """Questions of documents that were not trained on."""
    return fixed(_documents(50, "valid"), questions(), 0)


@cache
def _bert() -> Bert:
    data = Data(fixed(_documents(600, "train"), questions(), 1), name="documents")
    both = Joint({"tokens": Part("y", "mask"), "pair": Part("follows")})
    return trained(recipe(bert, data, both, BERT_STEPS, 4e-3))


def pretrained_bert() -> Bert:
    """A BERT that knows the language; a copy, free to learn."""
    return copy.deepcopy(_bert())


# GPT on it --------------------------------------------------------------------------------------------------------


def gpt() -> LanguageModel:
    return LanguageModel(tokeniser().size, 48, 2, "attention heads=4", 2.0)


@cache
def _gpt() -> LanguageModel:
    told = for_joint(sentences(16_000, "gpt"))
    data = Data(TensorSource(told.x, told.next, mask=told.inside), name="sentences")
    return trained(recipe(gpt, data, Categorical(tokeniser().size), 300, 4e-3))


def pretrained_gpt() -> LanguageModel:
    """A causal model of the language; a copy, free to learn."""
    return copy.deepcopy(_gpt())


def for_joint(batch: Batch, labelled: bool = True) -> Batch:
    """Sentences with their `next` tokens, asked where `inside`, and whether each is `labelled`."""
    following = torch.cat([batch.x[:, 1:], torch.zeros_like(batch.x[:, :1])], 1)
    inside = (torch.arange(batch.x.shape[1]) < batch.x.shape[1] - 1).expand_as(batch.x)
    return batch.replace(next=following, inside=inside, labelled=torch.full((len(batch),), labelled))


def mixed(labelled: Batch, free: Batch) -> TensorSource:
    """Both, the labelled ones so often that they are half of it."""
    often = labelled[torch.arange(len(free)) % len(labelled)]
    return source(Batch(**{name: torch.cat([often.fields[name], free.fields[name]]) for name in free}))
