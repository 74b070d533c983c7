"""Part-of-speech tagging of generated sentences, where the tag of some words depends on the next word."""

from __future__ import annotations

from typing import Annotated

from ..core.batch import Data
from ..core.options import Range
from ..core.recipe import Recipe
from ..data.split import split, subsets
from ..data.text.corpora import LinesReader
from ..data.text.documents import DocumentSource, Ragged
from ..data.text.tokenizer import special, train
from ..models.topologies import Tagger
from ..objectives.categorical import Categorical
from ..optim.build import optimizer
from ..optim.schedules import warmup_cosine
from .tools.sequence import BatchSize, Depth, LearningRate, ModelWidth, StepCount
from .tools.texts import grammar


def recipe(
    mixer: str = "gru",
    depth: Depth = 1,
    width: ModelWidth = 32,
    bidirectional: bool = True,
    n: Annotated[int, Range(50, 1_000_000)] = 2000,
    batch_size: BatchSize = 32,
    lr: LearningRate = 5e-3,
    steps: StepCount = 200,
    seed: int = 0,
) -> Recipe:
    """Sentences of a small grammar with a tag for each word; read in one direction, a third of the tags stays ambiguous.

    Args:
        mixer: sequence mixer by name (`sonde list mixers`), with its options: "gla heads=8"
        depth: layers of mixers
        width: model dimension per direction
        bidirectional: a second mixer reads from the end, and so sees the next word
        n: sentences, 80 % of them for training
        batch_size: sentences per update
        lr: peak learning rate: linear warm-up, then cosine decay to a tenth
        steps: updates
    """
    data = _sentences(n, seed)
    size, kinds = data.reader.vocabulary.size, len(data.classes)
    return Recipe(
        model=lambda: Tagger(size, kinds, width=width, depth=depth, mixer=mixer, bidirectional=bidirectional),
        data=data,
        objective=Categorical(classes=kinds),
        optimizer=optimizer("adamw", lr=lr, weight_decay=0.01),
        schedule=warmup_cosine(warmup=0.1, floor=0.1),
        clip_norm=1.0,
        batch_size=batch_size,
        steps=steps,
        evaluate_every=max(steps // 10, 1),
    )


def _sentences(n: int, seed: int) -> Data:
    sentences, tags = grammar(n, seed)
    texts = [" ".join(words) for words in sentences]
    tokenizer = train("words", texts, 1000, specials=("pad", "unknown"))
    classes = tuple(sorted({tag for row in tags for tag in row}))
    number = {tag: i for i, tag in enumerate(classes)}
    labels = Ragged.of([number[tag] for tag in row] for row in tags)
    whole = DocumentSource(Ragged(*tokenizer.encode_all(texts)), special(tokenizer, "pad"), labels)
    parts, reader = subsets(whole, split(n, seed=seed)), LinesReader(tokenizer, 64)
    return Data(*parts, name="made-up sentences", task="other", classes=classes, report={"sentences": n}, reader=reader)
