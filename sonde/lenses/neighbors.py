"""Nearest neighbors of token embeddings, by cosine similarity."""

from __future__ import annotations

from typing import Annotated, Any

import torch
from torch.nn import functional as F

from ..core.errors import BadInput, nearest
from ..core.options import Range
from ..core.reading import Reading, Subject, Table
from .tools.readonly import guard
from .tools.tiny import letters
from .tools.tokens import BLANK, embedding, frequent, no_embedding, spell_tokens, token_names


def why_not(subject: Subject) -> str:
    """Why the lens does not apply to a subject, or ''; `guard` turns it into an error."""
    if missing := no_embedding(subject):
        return missing
    return "" if embedding(subject.model).num_embeddings > 1 else "there is only one token"


@guard
def read(
    subject: Subject, tokens: Annotated[int, Range(1, 10_000)] = 20, near: Annotated[int, Range(1, 100)] = 5, of: str | None = None
) -> Reading:
    """The nearest tokens of the most frequent tokens of the batch, or of the tokens you name.

    Args:
        tokens: how many tokens
        near: how many neighbors of each
        of: tokens to look up, separated by spaces
    """
    names, table = spell_tokens(subject), embedding(subject.model).weight.detach()
    which = frequent(subject.batch, tokens) if of is None else torch.tensor([_token_id(word, names) for word in of.split()])
    cosines, others = closest(table, which, near)
    columns: dict[str, list[Any]] = {"token": token_names(which, names)}
    for rank in range(others.shape[1]):
        words = token_names(others[:, rank], names)
        columns[f"nearest {rank + 1}"] = [f"{word}  {cosine:.2f}" for word, cosine in zip(words, cosines[:, rank].tolist(), strict=True)]
    what = "The most frequent tokens of the batch" if of is None else "Tokens"
    note = f"{what} and their nearest neighbors among all {len(table):,}, with the cosine similarity."
    return Table("Nearest tokens", columns, note=note, results={"cosines": cosines, "tokens": others})


def closest(table: Any, which: Any, near: int) -> tuple[Any, Any]:
    """Cosines and indices (n, near) of the nearest rows of a table to some of its rows, without the rows themselves."""
    unit = F.normalize(table.double(), dim=1)
    cosine = unit[which] @ unit.T
    cosine[range(len(which)), which] = -2.0
    top = cosine.topk(min(near, len(table) - 1), dim=1)
    return top.values, top.indices


def _token_id(word: str, names: list[str]) -> int:
    for spelling in (word, BLANK + word):  # a sub-word at the beginning of a word includes the space before it
        if spelling in names:
            return names.index(spelling)
    raise BadInput(f"there is no token '{word}'", where="of", fix=nearest(word, names))


def tiny() -> Subject:
    """A small subject for the contract tests."""
    return letters()
