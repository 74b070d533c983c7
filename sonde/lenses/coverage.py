"""Coverage: the fraction of a text's n-grams that occur in the training text, for n = 1 to 5."""

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
"""training rows read at a time"""


def why_not(subject: Subject) -> str:
    """Why the lens does not apply to a subject, or ''; `guard` turns it into an error."""
    if missing := no_tokens(subject):
        return missing
    return "" if getattr(subject.data, "train", None) is not None else "there is no training text"


@guard
def read(subject: Subject, order: Annotated[int, Range(1, 12)] = 5, most: Annotated[int, Range(1)] = 2_000_000) -> Reading:
    """Fraction of the n-grams of the batch that also occur in the training text, counting repeats.

    Args:
        order: the largest n
        most: maximum number of training tokens to read
    """
    train, texts = training_text(subject.data.train, most), rows(subject.batch)
    size = 1 + max(int(row.max()) for row in (*train, *texts))
    fractions, counts = gram_coverage(train, texts, size, order)
    names = [f"{n} token{'s' if n > 1 else ''}" for n in range(1, order + 1)]
    training_tokens = sum(map(len, train))
    return Bars(
        "n-grams of the text that occur in the training text",
        {"% seen": [100 * fraction for fraction in fractions]},
        axes=["n-gram"],
        note=f"{counts[0]:,} tokens in {len(texts):,} texts, compared with {training_tokens:,} training tokens. "
        f"On new text of the same kind this is how much could be memorized. Vocabulary: {max(size, len(spell_tokens(subject))):,} tokens.",
        labels=names,
        results={"shares": fractions, "grams": counts},
    )


def gram_coverage(train: list[Any], texts: list[Any], vocabulary: int, order: int) -> tuple[list[float], list[int]]:
    """For n = 1 ... order: the fraction of the texts' n-grams that are in the training text, and the number of n-grams."""
    model = Ngram(train, vocabulary, order, "none")
    matches, counts = [0.0] * order, [0] * order
    for row in texts:
        for m, fraction in enumerate(model.coverage(row)):
            if (n := len(row) - m) > 0:
                matches[m] += fraction * n
                counts[m] += n
    return [hits / n if n else math.nan for hits, n in zip(matches, counts, strict=True)], counts


def training_text(source: Any, max_tokens: int) -> list[Any]:
    """The training text as rows of tokens: the whole of it where windows overlap, else row by row."""
    source = getattr(source, "windows", source)  # the windows before tokens were masked
    if getattr(source, "tokens", None) is not None:
        return [source.tokens[:max_tokens].long()]
    texts: list[Any] = []
    for start in range(0, len(source), ROWS):
        if max_tokens <= 0:
            break
        texts += (new := rows(source[torch.arange(start, min(start + ROWS, len(source)))]))
        max_tokens -= sum(map(len, new))
    return texts


def rows(batch: Any) -> list[Any]:
    """The texts of a batch without padding."""
    return [row[:end].long() for row, end in zip(original(batch), ends(batch).tolist(), strict=True) if end]


def tiny() -> Subject:
    """A small subject for the contract tests."""
    return letters()
