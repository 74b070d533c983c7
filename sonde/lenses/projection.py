"""Token embeddings projected onto their first two principal components."""

from __future__ import annotations

from typing import Annotated

from ..core.options import Range
from ..core.reading import Reading, Scatter, Subject
from ..estimators.pca import PCA
from .tools.readonly import guard
from .tools.tiny import letters
from .tools.tokens import embedding, frequent, no_embedding, spell_tokens, token_names


def why_not(subject: Subject) -> str:
    """Why the lens does not apply to a subject, or ''; `guard` turns it into an error."""
    if missing := no_embedding(subject):
        return missing
    return "" if min(embedding(subject.model).weight.shape) > 1 else "the embedding has fewer than two dimensions"


@guard
def read(subject: Subject, tokens: Annotated[int, Range(2, 10_000)] = 64) -> Reading:
    """The most frequent tokens of the batch, in the plane of the first two principal components of the whole embedding.

    Args:
        tokens: how many to show
    """
    table = embedding(subject.model).weight.detach().cpu().double().numpy()
    which = frequent(subject.batch, tokens)
    pca = PCA(2).fit(table)
    ratio = pca.explained_variance_ratio_
    x, y = pca.transform(table[which.numpy()]).T
    names = [f"component {i + 1}: {part:.0%} of the variance" for i, part in enumerate(ratio)]
    return Scatter(
        "Token embeddings, first two principal components",
        dict(zip(names, (x, y), strict=True)),
        axes=names,
        note=f"The {len(which)} most frequent tokens of the batch; the components are those of all {len(table):,} tokens. "
        "Where there is no room for all names, those of the more frequent tokens are shown.",
        labels=token_names(which, spell_tokens(subject)),
    )


def tiny() -> Subject:
    """A small subject for the contract tests."""
    return letters()
