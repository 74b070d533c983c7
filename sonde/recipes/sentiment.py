"""Sentiment classification: is a sentence or review positive or negative?  With any mixer, in one or both directions.

Labeled sentences are few, so the embeddings are initialized with word vectors, learned from reviews without their labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from torch import Generator, Tensor, nn

from ..core import batch as fields
from ..core.batch import Data
from ..core.errors import BadInput
from ..core.options import Range
from ..core.recipe import Recipe
from ..data import fetch
from ..data.catalog import load_kind
from ..data.text.corpora import IMDB, reviews
from ..data.text.documents import DocumentSource, Ragged
from ..data.text.tokenizer import special
from ..models.topologies import Seq2Vec
from ..objectives.categorical import Categorical
from ..optim.build import optimizer
from ..optim.schedules import warmup_cosine
from .tools.final_report import FinalReport
from .tools.sequence import BatchSize, Depth, LearningRate, ModelWidth

TOY = "toy_sentiment"
"""the generated sentences that serve where no data folder has real ones"""
SPREAD = 0.3
"""standard deviation of the initial embeddings; from 0.25 to 1, small ones did best on the validation part"""


def recipe(
    mixer: str = "gru",
    depth: Depth = 1,
    width: ModelWidth = 128,
    bidirectional: bool = True,
    pool: Literal["mean", "last"] = "mean",
    data: str | None = None,
    level: Literal["wordpiece", "words", "bpe", "char"] = "wordpiece",
    most: Annotated[int, Range(300, 1_000_000)] = 10_000,
    longest: Annotated[int, Range(4, 65_536)] = 200,
    unlabeled: Annotated[int, Range(0, 25_000)] = 25_000,
    dropout: Annotated[float, Range(least=0, below=1)] | None = None,
    hidden: Annotated[float, Range(least=0, below=1)] | None = None,
    batch_size: BatchSize = 32,
    lr: LearningRate = 2e-3,
    epochs: Annotated[float, Range(above=0)] = 4.0,
    seed: int = 0,
) -> Recipe:
    """A classifier of texts; at the end its accuracy is compared with logistic regression on a bag of words.

    The run keeps the weights with the best validation accuracy.

    Args:
        mixer: sequence mixer by name (`sonde list mixers`), with its options: "gla heads=8"
        depth: layers of mixers
        width: model dimension per direction
        bidirectional: a second mixer reads from the end
        pool: the mean over all tokens, or the last output of each direction
        data: labeled texts by name (sst2, sentence_polarity and imdb from a data folder, toy_sentiment), or your own (./mine.py);
            by default sst2 where a data folder has it, else toy_sentiment
        level: tokens are lower-case sub-words, words, byte-level sub-words, or characters; for the data sets that have this option
        most: maximum vocabulary size
        longest: maximum number of tokens per text; the rest is cut off
        unlabeled: IMDB reviews used without labels to initialize the embeddings, except for toy_sentiment; 0 initializes at random
        dropout: dropout probability of the embeddings and before the output; by default 0.3,
            and 0 for toy_sentiment, where every word counts
        hidden: fraction of tokens masked in training; by default 0.1, and 0 for toy_sentiment
        batch_size: texts per update
        lr: peak learning rate: linear warm-up, then cosine decay to a tenth
        epochs: passes over the training texts
    """
    which = data or ("sst2" if fetch.find("sentiment/sst2.train.tsv") else TOY)
    dataset = load_kind("texts", which, seed, level=level, most=most, longest=longest)
    if dataset.task != "classes" or not isinstance(dataset.train, DocumentSource):
        raise BadInput(f"'{dataset.name}' does not hold texts with a label each", fix="give a DocumentSource with labels, task='classes'")
    size, classes = dataset.reader.vocabulary.size, len(dataset.classes)
    dropout, hidden = (usual * (which != TOY) if value is None else value for value, usual in ((dropout, 0.3), (hidden, 0.1)))
    model = partial(Seq2Vec, size, classes, "tokens", width, depth, mixer, bidirectional, pool, dropout)
    unknown = special(dataset.reader.vocabulary, "unknown")
    return Recipe(
        model=model,
        data=dataset,
        objective=Categorical(classes=classes),
        optimizer=optimizer("adamw", lr=lr, weight_decay=0.01),
        schedule=warmup_cosine(warmup=0.1, floor=0.1),
        clip_norm=1.0,
        augment=partial(_mask_tokens, hidden, unknown) if hidden else None,
        initialize=partial(_initialize_embeddings, dataset, unlabeled, seed) if unlabeled and which != TOY else None,
        batch_size=batch_size,
        epochs=epochs,
        monitor="valid/accuracy",
        mode="max",
        restore_best=True,
        callbacks=(FinalReport(partial(_compare_baseline, dataset, size)),),
    )


def _mask_tokens(fraction: float, unknown: int, batch: fields.Batch, rng: Generator) -> fields.Batch:
    """Replace some tokens by the unknown token, so that no single word decides."""
    return batch.replace(x=torch.where((torch.rand(batch.x.shape, generator=rng) < fraction).to(batch.x.device), unknown, batch.x))


def _initialize_embeddings(data: Data, unlabeled: int, seed: int, model: nn.Module) -> None:
    """Initialize the embeddings with word vectors of the training texts and of reviews."""
    assert isinstance(model, Seq2Vec) and isinstance(model.entry, nn.Embedding) and isinstance(data.train, DocumentSource)
    rows, (tokens, width) = [data.train.rows], model.entry.weight.shape
    if fetch.find(IMDB) is not None:
        rows.append(Ragged(*data.reader.vocabulary.encode_all(reviews(unlabeled))))
    with torch.no_grad():
        model.entry.weight.copy_(vectors(rows, tokens, width, seed))


def vectors(texts: Sequence[Ragged], tokens: int, width: int, seed: int = 0) -> Tensor:
    """Word vectors (tokens, width) of rows of tokens, scaled to standard deviation SPREAD; 0 for a token that does not occur."""
    from ..estimators.word2vec import Word2Vec

    rows = [row.numpy() for ragged in texts for row in ragged.values.split(ragged.lengths.tolist())]
    embeddings = Word2Vec(width, epochs=3, min_count=2, random_state=seed).fit(rows).vectors_
    table = np.zeros((tokens, width), np.float32)
    table[[int(word) for word in embeddings.words]] = embeddings.vectors
    return torch.from_numpy(table * (SPREAD / table.std()))


def _compare_baseline(data: Data, tokens: int, model: Any, folder: Path) -> dict[str, str]:
    """The test accuracy of a bag of words."""
    return {"baseline": f"logistic regression on a bag of words has a test accuracy of {baseline(data, tokens):.4f}"}


def baseline(data: Data, tokens: int) -> float:
    """Test accuracy of scikit-learn's logistic regression on the set of tokens of each text."""
    from scipy.sparse import csr_matrix
    from sklearn.linear_model import LogisticRegression

    def bag(source: Any) -> Any:
        rows = source.rows
        ones = np.ones(len(rows.values), np.float32)
        # a copy: the matrix sorts the tokens of each row where they are
        counts = csr_matrix((ones, rows.values.numpy(), rows.bounds.numpy()), shape=(len(rows), tokens), copy=True)
        counts.sum_duplicates()
        return counts.minimum(1)

    train_split, test = data.splits["train"], data.splits["test"]
    classifier = LogisticRegression(max_iter=1000).fit(bag(train_split), train_split[:].y.numpy())
    return float(classifier.score(bag(test), test[:].y.numpy()))
