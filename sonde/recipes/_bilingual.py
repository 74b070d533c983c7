"""A toy language beside English, for where no real translations are at hand: other words, another order, and agreement.

English says  article adjective noun verb article adjective noun.  The other language puts the verb last and adjectives behind
their noun, and articles and adjectives follow the gender of the noun:  a small cat sees the old house -> kat tino un dom varo lo mira,
where every group has its article last.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..core.batch import Data
from ..core.errors import BadInput
from ..core.seeds import generator
from ..data.corpora import LinesReader
from ..data.pairs import pairs
from ..data.tokeniser import train

NOUNS = {"cat": "kat", "dog": "hunda", "house": "dom", "bird": "avira", "tree": "drevo", "child": "mala", "river": "reka", "stone": "pet"}
"""those that end in -a are of the second gender"""
ADJECTIVES = {"small": "tin", "old": "var", "red": "rub", "quiet": "shom", "green": "vel", "young": "nov"}
VERBS = {"sees": "mira", "hears": "odi", "follows": "segi", "finds": "trova", "likes": "ama"}
ARTICLES = {"a": ("un", "una"), "the": ("lo", "la")}
LONGEST = 16


def bilingual(seed: int = 0, n: int = 6000) -> Data:
    """Sentences of a toy grammar, each once; a tenth as many are for validation, and for the test."""
    if not 10 <= n <= 200_000:
        raise BadInput(f"{n} sentences cannot be", where="the toy grammar", fix="ask for 10 to 200000")
    dice, few = generator(seed, "bilingual"), n // 10
    both: dict[str, str] = {}
    while len(both) < n + 2 * few:
        both |= dict(map(sentence, torch.randint(1 << 40, (n, 2), generator=dice).tolist()))
    sources, targets = list(both)[: n + 2 * few], list(both.values())[: n + 2 * few]
    made = train("words", [*sources[:n], *targets[:n]])
    learnt, held, last = (pairs(sources[a:b], targets[a:b], made, made) for a, b in ((0, n), (n, n + few), (n + few, n + 2 * few)))
    name = "toy grammar, English to another"
    return Data(learnt, held, last, name=name, task="other", classes=made.tokens, reader=LinesReader(made, LONGEST, "source"))


def sentence(numbers: Sequence[int]) -> tuple[str, str]:
    """The sentence that two large numbers stand for, in English and in the other language."""
    (subject, theirs, rest), (thing, other, _) = map(_group, numbers)
    verb = list(VERBS)[rest % len(VERBS)]
    return f"{subject} {verb} {thing}", f"{theirs} {other} {VERBS[verb]}"


def _group(number: int) -> tuple[str, str, int]:
    """A noun with its article and up to two different adjectives, and what is left of the number that chose them."""
    number, count = divmod(number, 3)
    number, first = divmod(number, len(ADJECTIVES))
    number, later = divmod(number, len(ADJECTIVES) - 1)
    number, article = divmod(number, len(ARTICLES))
    number, noun = divmod(number, len(NOUNS))
    known = [list(ADJECTIVES)[i] for i in (first, (first + 1 + later) % len(ADJECTIVES))[:count]]
    (ours, forms), (word, theirs) = list(ARTICLES.items())[article], list(NOUNS.items())[noun]
    second = theirs.endswith("a")
    behind = [ADJECTIVES[adjective] + ("a" if second else "o") for adjective in known]
    return " ".join([ours, *known, word]), " ".join([theirs, *behind, forms[second]]), number
