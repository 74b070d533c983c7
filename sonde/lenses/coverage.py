"""Coverage: which share of a text's n-grams occurred in the training text, for n = 1 to 5."""

from __future__ import annotations

import math
from typing import Annotated, Any

import torch

from ..core.options import Range
from ..core.reading import Bars, Reading, Subject
from ..models.ngram import Ngram
from .tools.readonly import guard
from .tools.tiny import letters
from .tools.tokens import ends, no_tokens, original, spell_tokens

ROWS = 512
"""rows of the training part taken at a time"""


def why_not(subject: Subject) -> str:
    if missing := no_tokens(subject):
        return missing
    return "" if getattr(subject.data, "train", None) is not None else "there is no training text"


@guard
def read(subject: Subject, order: Annotated[int, Range(1, 12)] = 5, most: Annotated[int, Range(1)] = 2_000_000) -> Reading:
    """Share of the n-grams of the batch that also occur in the training text, counting repeats.

    Args:
        order: the longest grams
        most: how many training tokens to read
    """
    train, texts = training_text(subject.data.train, most), rows(subject.batch)
    size = 1 + max(int(row.max()) for row in (*train, *texts))
    shares, counts = gram_coverage(train, texts, size, order)
    names = [f"{n} token{'s' if n > 1 else ''}" for n in range(1, order + 1)]
    read_all = sum(map(len, train))
    return Bars(
        "Grams of the text that training had seen",
        {"% seen": [100 * share for share in shares]},
        axes=["gram"],
        note=f"{counts[0]:,} tokens in {len(texts):,} texts, against {read_all:,} tokens of training. "
        f"A new text of the same kind tells how much of it can be memorized; {max(size, len(spell_tokens(subject))):,} different tokens.",
        labels=names,
        results={"shares": shares, "grams": counts},
    )


def gram_coverage(train: list[Any], texts: list[Any], vocabulary: int, order: int) -> tuple[list[float], list[int]]:
    """For n = 1 ... order the share of the texts' grams that are in the training text, and how many grams there are."""
    model = Ngram(train, vocabulary, order, "none")
    matches, counts = [0.0] * order, [0] * order
    for row in texts:
        for m, share in enumerate(model.coverage(row)):
            if (n := len(row) - m) > 0:
                matches[m] += share * n
                counts[m] += n
    return [hits / n if n else math.nan for hits, n in zip(matches, counts, strict=True)], counts


def training_text(source: Any, most: int) -> list[Any]:
    """The training text as rows of tokens: the whole of it where windows overlap, else row by row."""
    source = getattr(source, "windows", source)  # as they were before anything was hidden
    if getattr(source, "tokens", None) is not None:
        return [source.tokens[:most].long()]
    texts: list[Any] = []
    for start in range(0, len(source), ROWS):
        if most <= 0:
            break
        texts += (new := rows(source[torch.arange(start, min(start + ROWS, len(source)))]))
        most -= sum(map(len, new))
    return texts


def rows(batch: Any) -> list[Any]:
    """The texts of a batch without padding."""
    return [row[:end].long() for row, end in zip(original(batch), ends(batch).tolist(), strict=True) if end]


def tiny() -> Subject:
    return letters()
