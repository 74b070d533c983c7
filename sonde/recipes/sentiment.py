"""Is a sentence or review positive or negative?  One vector from words of any number, with any mixer, in both directions."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch

from ..core.batch import Data
from ..core.dials import Range
from ..core.recipe import Recipe
from ..data import fetch
from ..data.documents import DocumentSource, Ragged
from ..data.tokeniser import special, train
from ..models.topologies import Seq2Vec
from ..objectives.categorical import Categorical
from ..optim.build import optimiser
from ..optim.schedules import warmup_cosine
from ._sequence import Batch, Depth, Rate, Width
from ._shown import Shown, Spelt
from ._texts import reviews


def recipe(
    mixer: str = "gru",
    depth: Depth = 1,
    width: Width = 64,
    bidirectional: bool = True,
    pool: Literal["mean", "last"] = "mean",
    data: Literal["sst2", "imdb", "toy"] | None = None,
    words: Annotated[int, Range(100, 1_000_000)] = 10_000,
    longest: Annotated[int, Range(4, 65_536)] = 200,
    batch: Batch = 32,
    lr: Rate = 2e-3,
    epochs: Annotated[float, Range(above=0)] = 3.0,
    seed: int = 0,
) -> Recipe:
    """A classifier of texts; beside its accuracy stands that of a bag of words with logistic regression.

    mixer: what reads the words; its dials may follow: "gla heads=8"
    depth: mixers one after the other
    width: numbers per word and direction
    bidirectional: a second mixer reads from the end
    pool: the mean over all words, or what each direction says when it has read all
    data: SST-2 sentences or IMDB reviews of a data folder, or made-up sentences; by default SST-2 where it is there
    words: size of the vocabulary; rarer words are all the same one
    longest: words of a text that are read
    batch: texts per update
    lr: learning rate at the top of its warm-up; falls to a tenth along a cosine
    epochs: passes over the training texts
    """
    made = _texts(data or ("sst2" if fetch.find("sentiment/sst2.train.tsv") else "toy"), words, longest, seed)
    size = made.reader.vocabulary.size
    build = partial(Seq2Vec, size, 2, width=width, depth=depth, mixer=mixer, bidirectional=bidirectional, pool=pool)
    shown = Shown(build, partial(_beside, made, size))
    return Recipe(
        model=shown,
        data=made,
        objective=Categorical(classes=2),
        optimiser=optimiser("adamw", lr=lr, weight_decay=0.01),
        schedule=warmup_cosine(warmup=0.1, floor=0.1),
        clip=1.0,
        batch=batch,
        epochs=epochs,
        callbacks=(shown,),
    )


def _texts(which: str, words: int, longest: int, seed: int) -> Data:
    """Texts as numbers of words in small letters; the vocabulary is that of the training texts."""
    found = reviews(which, seed)
    lower = [[text.lower() for text in texts] for texts, _ in found.parts]
    tokeniser = train("words", lower[0], words, specials=("pad", "unknown"))
    pad = special(tokeniser, "pad")

    def part(texts: list[str], labels: list[int]) -> DocumentSource:
        return DocumentSource(Ragged(*tokeniser.encode_all(texts)).cut(longest), pad, torch.tensor(labels))

    learnt, valid, test = (part(texts, labels) for texts, (_, labels) in zip(lower, found.parts, strict=True))
    reader, classes = Spelt(tokeniser, pad, longest, lower=True), ("negative", "positive")
    return Data(learnt, valid, test, name=found.name, task="classes", classes=classes, report={"words": tokeniser.size}, reader=reader)


def _beside(data: Data, words: int, model: Any, folder: Path) -> dict[str, str]:
    """The accuracy of the simple thing."""
    return {"baseline": f"a bag of words with logistic regression is right in {baseline(data, words):.4f} of the test texts"}


def baseline(data: Data, words: int) -> float:
    """Test accuracy of logistic regression on which words a text has, by scikit-learn."""
    from scipy.sparse import csr_matrix
    from sklearn.linear_model import LogisticRegression

    def bag(source: Any) -> Any:
        rows = source.rows
        ones = np.ones(len(rows.values), np.float32)
        counts = csr_matrix((ones, rows.values.numpy(), rows.bounds.numpy()), shape=(len(rows), words))
        counts.sum_duplicates()
        return counts.minimum(1)

    learnt, test = data.splits["train"], data.splits["test"]
    found = LogisticRegression(max_iter=1000).fit(bag(learnt), learnt[:].y.numpy())
    return float(found.score(bag(test), test[:].y.numpy()))
