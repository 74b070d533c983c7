"""Neighbors: the tokens whose vectors point most nearly where a token's own does, by cosine."""

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
    if missing := no_embedding(subject):
        return missing
    return "" if embedding(subject.model).num_embeddings > 1 else "there is one token only"


@guard
def read(
    subject: Subject, tokens: Annotated[int, Range(1, 10_000)] = 20, near: Annotated[int, Range(1, 100)] = 5, of: str | None = None
) -> Reading:
    """For the commonest tokens of the batch, or for some that are named, those of the largest cosine.

    Args:
        tokens: how many to ask about
        near: how many neighbors to show
        of: the tokens to ask about, as they are written, with blanks between them
    """
    names, table = spell_tokens(subject), embedding(subject.model).weight.detach()
    which = frequent(subject.batch, tokens) if of is None else torch.tensor([_number(word, names) for word in of.split()])
    cosines, others = closest(table, which, near)
    columns: dict[str, list[Any]] = {"token": token_names(which, names)}
    for place in range(others.shape[1]):
        words = token_names(others[:, place], names)
        columns[f"nearest {place + 1}"] = [f"{word}  {cosine:.2f}" for word, cosine in zip(words, cosines[:, place].tolist(), strict=True)]
    what = "The commonest tokens of the batch" if of is None else "Tokens"
    note = f"{what} and the cosines of the nearest of all {len(table):,}."
    return Table("Nearest tokens", columns, note=note, results={"cosines": cosines, "tokens": others})


def closest(table: Any, which: Any, near: int) -> tuple[Any, Any]:
    """Cosines and numbers (n, near) of the rows of a table nearest to some of its rows, themselves left out."""
    unit = F.normalize(table.double(), dim=1)
    cosine = unit[which] @ unit.T
    cosine[range(len(which)), which] = -2.0
    top = cosine.topk(min(near, len(table) - 1), dim=1)
    return top.values, top.indices


def _number(word: str, names: list[str]) -> int:
    for spelling in (word, BLANK + word):  # sub-words that begin a word carry its blank
        if spelling in names:
            return names.index(spelling)
    raise BadInput(f"there is no token '{word}'", where="of", fix=nearest(word, names))


def tiny() -> Subject:
    return letters()
