"""Is a sentence or review positive or negative?  One vector from any number of words, with any mixer, in both directions."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from ..core.batch import Data
from ..core.dials import Range
from ..core.recipe import Recipe
from ..data import fetch
from ..data.catalogue import load
from ..models.topologies import Seq2Vec
from ..objectives.categorical import Categorical
from ..optim.build import optimiser
from ..optim.schedules import warmup_cosine
from ._sequence import Batch, Depth, Rate, Width
from ._shown import Shown
from ._texts import made_up


def recipe(
    mixer: str = "gru",
    depth: Depth = 1,
    width: Width = 64,
    bidirectional: bool = True,
    pool: Literal["mean", "last"] = "mean",
    data: Literal["sst2", "sentence_polarity", "imdb", "toy"] | None = None,
    level: Literal["wordpiece", "words", "bpe", "char"] = "wordpiece",
    most: Annotated[int, Range(300, 1_000_000)] = 10_000,
    longest: Annotated[int, Range(4, 65_536)] = 200,
    batch: Batch = 32,
    lr: Rate = 2e-3,
    epochs: Annotated[float, Range(above=0)] = 3.0,
    seed: int = 0,
) -> Recipe:
    """A classifier of texts; beside its accuracy stands that of a bag of words with logistic regression.

    mixer: what reads the tokens; its dials may follow: "gla heads=8"
    depth: mixers one after the other
    width: numbers per token and direction
    bidirectional: a second mixer reads from the end
    pool: the mean over all tokens, or what each direction says when it has read all
    data: real sentences or reviews of a data folder, or made-up sentences; by default SST-2 where it is there
    level: tokens are sub-words in small letters, words, sub-words of bytes, or characters
    most: most words or sub-words
    longest: tokens of a text that are read
    batch: texts per update
    lr: learning rate at the top of its warm-up; falls to a tenth along a cosine
    epochs: passes over the training texts
    """
    which = data or ("sst2" if fetch.find("sentiment/sst2.train.tsv") else "toy")
    made = made_up(seed) if which == "toy" else load(which, seed=seed, level=level, most=most, longest=longest)
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


def _beside(data: Data, tokens: int, model: Any, folder: Path) -> dict[str, str]:
    """The accuracy of the simple thing."""
    return {"baseline": f"a bag of words with logistic regression is right in {baseline(data, tokens):.4f} of the test texts"}


def baseline(data: Data, tokens: int) -> float:
    """Test accuracy of logistic regression on which tokens a text has, by scikit-learn."""
    from scipy.sparse import csr_matrix
    from sklearn.linear_model import LogisticRegression

    def bag(source: Any) -> Any:
        rows = source.rows
        ones = np.ones(len(rows.values), np.float32)
        # a copy: the matrix sorts the tokens of each row where they are
        counts = csr_matrix((ones, rows.values.numpy(), rows.bounds.numpy()), shape=(len(rows), tokens), copy=True)
        counts.sum_duplicates()
        return counts.minimum(1)

    learnt, test = data.splits["train"], data.splits["test"]
    found = LogisticRegression(max_iter=1000).fit(bag(learnt), learnt[:].y.numpy())
    return float(found.score(bag(test), test[:].y.numpy()))
