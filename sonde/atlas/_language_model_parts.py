"""What the exhibits of chapter 19 share: made-up languages so small that the right answer is known, and models trained on one of them.

Every text is drawn from a seed that the caller passes, the exhibit's.  A model has two: that of its text and that of its training.

B batch, T time, V vocabulary.
"""

from __future__ import annotations

import copy
import re
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..core.batch import Batch, Data
from ..core.recipe import Recipe
from ..core.seeds import generator
from ..data.corrupt import Augmentation, SentenceSource, freeze_changes, masking, next_sentence
from ..data.tensors import TensorSource, fingerprint
from ..data.text.documents import Ragged
from ..data.text.tokenizer import Tokenizer, special, train
from ..models.bert import Bert
from ..models.language_model import LanguageModel
from ..objectives.categorical import Categorical
from ..objectives.joint import Joint, Part
from ..optim.build import optimizer
from ..optim.schedules import warmup_cosine
from .exhibit import Exhibit


def recipe(model: Callable[[], nn.Module] | nn.Module, data: Data, objective: Any, steps: int, lr: float, **more: Any) -> Recipe:
    """AdamW, warm-up and cosine; evaluated once, at the end."""
    usual = {"schedule": warmup_cosine(warmup=0.1, floor=0.02), "clip_norm": 1.0, "batch_size": 64, "evaluate_every": steps}
    return Recipe(model=model, data=data, objective=objective, optimizer=optimizer("adamw", lr=lr), steps=steps, **{**usual, **more})


def train_model(recipe: Recipe, seed: int = 0) -> Any:
    """The model of a recipe after training; nothing is left on the disk."""
    with tempfile.TemporaryDirectory(prefix="sonde-atlas-") as work:
        return Exhibit(Path(work)).train(recipe, "toy", seed=seed).model().eval()


def of_each_seed(exhibit: Exhibit, recipe: Recipe, n: int = 3) -> list[Any]:
    """The models of a recipe, one for each of n seeds."""
    return [train_model(recipe, seed) for seed in exhibit.seeds(n)]


@torch.no_grad()
def right(models: Sequence[Any], x: Tensor, y: Tensor) -> list[float]:
    """Accuracy of each model."""
    return [float((model(x).argmax(-1) == y).float().mean()) for model in models]


@torch.no_grad()
def nats(model: Any, source: Any, n: int | None = None) -> float:
    """Mean of -log p over the targets of a source."""
    return float(Categorical()(model.eval(), source[:n]).loss())


def weights(model: nn.Module) -> str:
    """Hash of all numbers of a model."""
    return fingerprint(dict(model.state_dict()))


@torch.no_grad()
def perturb(seed: int, model: Any) -> Any:
    """Add noise to every weight, so that none has a special value such as 0."""
    for name, parameter in model.named_parameters():
        parameter += 0.3 * torch.randn(parameter.shape, generator=generator(seed, "spread", name))
    return model.eval()


# Languages ----------------------------------------------------------------------------------------------------------

PAIRS, SECOND = 5, 4


def second_order(seed: int, n: int, *key: Any) -> Tensor:
    """A text of PAIRS * SECOND words in SECOND kinds: the kind of a word is the sum of the two before it, the word is any of the kind."""
    rng = generator(seed, "second order", *key)
    word = torch.randint(PAIRS, (n,), generator=rng).tolist()
    kinds = [1, 2]
    jumps = (torch.rand(n, generator=rng) < 0.1).tolist()
    other = torch.randint(SECOND, (n,), generator=rng).tolist()
    for i in range(2, n):
        kinds.append(other[i] if jumps[i] else (kinds[-1] + kinds[-2]) % SECOND)
    return torch.tensor([kind * PAIRS + one for kind, one in zip(kinds, word)])


BRACKETS, INSIDE = 6, 3


def brackets(seed: int, n: int, *key: Any) -> TensorSource:
    """Rows of an opening word, INSIDE fillers, and the closing word that belongs to the opening one; three such to a row."""
    rng = generator(seed, "brackets", *key)
    kind = torch.randint(BRACKETS, (n, 3, 1), generator=rng)
    filler = 2 * BRACKETS + torch.randint(4, (n, 3, INSIDE), generator=rng)
    rows = torch.cat([kind, filler, kind + BRACKETS], 2).flatten(1)
    return TensorSource(rows[:, :-1], rows[:, 1:])


NEXT, TOKENS = 3, 16


def chain(seed: int, n: int, length: int, *key: Any) -> Tensor:
    """Rows in which each token is followed by one of three others, each as likely: ln 3 nats a token, no fewer."""
    rng = generator(seed, "chain", *key)
    rows = [torch.randint(TOKENS, (n,), generator=rng)]
    for _ in range(length - 1):
        rows.append(_followers(seed)[rows[-1], torch.randint(NEXT, (n,), generator=rng)])
    return torch.stack(rows, 1)


@cache
def _followers(seed: int) -> Tensor:
    return torch.rand(TOKENS, TOKENS, generator=generator(seed, "followers")).argsort(1)[:, :NEXT]


def possible(seed: int, rows: Tensor) -> float:
    """Fraction of neighbors that the language allows."""
    return float((_followers(seed)[rows[:, :-1]] == rows[:, 1:].unsqueeze(-1)).any(-1).float().mean())


RULES = 4
"""keys, and values"""


def demonstrations(seed: int, shots: int, n: int = 1000) -> tuple[Tensor, Tensor]:
    """Prompts of this many pairs under a rule of their own and one more key, and its value."""
    rng = generator(seed, "demonstrations", shots)
    rule = RULES + torch.randint(RULES, (n, RULES), generator=rng)
    key = torch.randint(RULES, (n, shots + 1), generator=rng)
    value = rule.gather(1, key)
    return torch.stack([key, value], 2).flatten(1)[:, :-1], value[:, -1]


GOOD, BAD = ("good", "fine", "lovely", "bright"), ("poor", "dull", "awful", "weak")
PLAIN = ("film", "book", "play", "song", "very", "rather", "story", "cast")


def tasks(seed: int, n: int, *key: Any) -> tuple[list[str], list[str]]:
    """Reviews of four words behind the name of a task: classify them, or write them in reverse."""
    rng = generator(seed, "tasks", *key)
    prompts, answers = [], []
    for task, pole, which, position, *others in torch.randint(1 << 20, (n, 7), generator=rng).tolist():
        words = [PLAIN[one % len(PLAIN)] for one in others]
        words.insert(position % 4, (GOOD, BAD)[pole % 2][which % 4])
        prompts.append(f"{('classify', 'reverse')[task % 2]} : {' '.join(words)}")
        answers.append(" ".join(words[::-1]) if task % 2 else ("positive", "negative")[pole % 2])
    return prompts, answers


@cache
def manual() -> str:
    """The text of Python's own manual pages in small letters."""
    from pydoc_data.topics import topics

    return " ".join(re.findall("[a-z]+", " ".join(topics[name] for name in sorted(topics)).lower()))[:100_000]


# A language with topics: a document stays with its own --------------------------------------------------------------

TOPICS = ("sea", "farm", "court", "music", "war", "kitchen", "sky", "trade")
WORDS = 8
"""of each topic"""
LONG = 4
"""words of a sentence"""


@cache
def tokenizer() -> Tokenizer:
    words = [f"{topic}{number}" for topic in TOPICS for number in range(WORDS)]
    return train("words", [" ".join(words)], 1000, ("pad", "unknown", "cls", "sep", "mask"))


@cache
def _numbers() -> Tensor:
    """(topics, words) number of each word's token."""
    token_ids = {token: number for number, token in enumerate(tokenizer().tokens)}
    return torch.tensor([[token_ids[f"{topic}{number}"] for number in range(WORDS)] for topic in TOPICS])


def sentences(seed: int, n: int, *key: Any) -> Batch:
    """Sentences x (n, 1 + LONG), each behind [CLS], and their topics y (n,)."""
    rng = generator(seed, "sentences", *key)
    return _sentence(torch.randint(len(TOPICS), (n,), generator=rng), rng)


def few_labels(seed: int, each: int = 1) -> Batch:
    """So many sentences of each topic: all the labels there are."""
    return _sentence(torch.arange(len(TOPICS)).repeat(each), generator(seed, "sentences", "few"))


def _sentence(topic: Tensor, rng: torch.Generator) -> Batch:
    front = torch.full((len(topic), 1), special(tokenizer(), "cls"))
    return Batch(x=torch.cat([front, _words(topic, rng)], 1), y=topic)


def label_words() -> Tensor:
    """(topics,) one word for each topic, used as its label."""
    return _numbers()[:, 0]


def with_mask(batch: Batch) -> TensorSource:
    """Sentences behind [MASK], which is to become the word that stands for their topic."""
    x = batch.x.clone()
    x[:, 0] = special(tokenizer(), "mask")
    y = label_words()[batch.y].unsqueeze(1).expand_as(x)
    return TensorSource(x, y, mask=(torch.arange(x.shape[1]) == 0).expand_as(x))


def _words(topic: Tensor, rng: torch.Generator) -> Tensor:
    """(n, LONG) words of each topic."""
    return _numbers()[topic.unsqueeze(1), torch.randint(WORDS, (len(topic), LONG), generator=rng)]


def source(batch: Batch) -> TensorSource:
    return TensorSource(**batch.fields)  # type: ignore[arg-type]


# BERT on it -------------------------------------------------------------------------------------------------------


def bert() -> Bert:
    return Bert(tokenizer().size, 48, 2, "attention heads=4", 2.0, max_positions=2 * LONG + 3)


def _documents(seed: int, n: int, *key: Any) -> SentenceSource:
    """Documents of forty sentences about one topic."""
    rng = generator(seed, "documents", *key)
    topic = torch.randint(len(TOPICS), (n,), generator=rng)
    words = _words(topic.repeat_interleave(40), rng)
    return SentenceSource([Ragged.of(document) for document in words.view(n, 40, LONG)], special(tokenizer(), "pad"))


def questions() -> Augmentation:
    """Both of BERT's tasks: is it the next sentence, and which words are hidden?"""
    pairs, hidden = next_sentence(tokenizer()), masking(tokenizer(), 0.3)
    return lambda batch, rng: hidden(pairs(batch, rng), rng)


@cache
def make_questions(text: int) -> TensorSource:
    """Questions of documents that were not trained on."""
    return freeze_changes(_documents(text, 50, "valid"), questions(), text)


@cache
def _bert(text: int, seed: int) -> Bert:
    # Hidden by another seed than the questions above.
    data = Data(freeze_changes(_documents(text, 300, "train"), questions(), text + 1), name="documents")
    both = Joint({"tokens": Part("y", "mask"), "pair": Part("follows")})
    return train_model(recipe(bert, data, both, 160, 8e-3), seed)


def pretrained_bert(text: int, seed: int) -> Bert:
    """A BERT that knows the language, from the documents of seed `text`; a copy, free to learn."""
    return copy.deepcopy(_bert(text, seed))


def bert_answers(text: int, seed: int) -> dict[str, Tensor]:
    """Predictions of that BERT for the questions."""
    model, held = pretrained_bert(text, seed), make_questions(text)[:]
    with torch.no_grad():
        return model(held.x, held.kinds, held.lengths)


# GPT on it --------------------------------------------------------------------------------------------------------


def gpt() -> LanguageModel:
    return LanguageModel(tokenizer().size, 48, 2, "attention heads=4", 2.0)


@cache
def _gpt(text: int, seed: int) -> LanguageModel:
    batch = joint_batch(sentences(text, 8000, "gpt"))
    data = Data(TensorSource(batch.x, batch.next, mask=batch.inside), name="sentences")
    return train_model(recipe(gpt, data, Categorical(tokenizer().size), 100, 8e-3), seed)


def pretrained_gpt(text: int, seed: int) -> LanguageModel:
    """A causal model of the language, from the sentences of seed `text`; a copy, free to learn."""
    return copy.deepcopy(_gpt(text, seed))


def joint_batch(batch: Batch, labeled: bool = True) -> Batch:
    """Sentences with their `next` tokens, asked where `inside`, and whether each is `labeled`."""
    following = torch.cat([batch.x[:, 1:], torch.zeros_like(batch.x[:, :1])], 1)
    inside = (torch.arange(batch.x.shape[1]) < batch.x.shape[1] - 1).expand_as(batch.x)
    return batch.replace(next=following, inside=inside, labeled=torch.full((len(batch),), labeled))


def mix_labeled(labeled: Batch, free: Batch) -> TensorSource:
    """Both, the labeled ones so often that they are half of it."""
    often = labeled[torch.arange(len(free)) % len(labeled)]
    return source(Batch(**{name: torch.cat([often.fields[name], free.fields[name]]) for name in free}))
