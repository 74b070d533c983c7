"""Metrics of generated texts: BLEU and exact match.

    BLEU = 100 min(1, e^(1 - r/c)) (p1 p2 p3 p4)^(1/4)        (Papineni et al. 2002)

p_n is the fraction of n-grams of all hypotheses that occur in their reference, each counted at most as often as there; c and r are
the numbers of tokens of all hypotheses and of all references.  Counts are over the corpus, without smoothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence

from ..core.errors import BadInput

ORDER = 4

Tokens = Sequence[Sequence[Hashable]]
"""texts, each a row of words or of other tokens"""


def bleu(hypotheses: Tokens, references: Tokens) -> float:
    """Corpus BLEU from 0 to 100, one reference for each hypothesis."""
    _check(hypotheses, references)
    if any(isinstance(text, str) for text in (*hypotheses, *references)):
        raise BadInput("BLEU counts tokens, and a string is a row of letters", where="bleu", fix="give text.split()")
    same, total = [0] * ORDER, [0] * ORDER
    for hypothesis, reference in zip(hypotheses, references):
        for n in range(ORDER):
            candidate_ngrams, wanted = _grams(hypothesis, n + 1), _grams(reference, n + 1)
            same[n] += (candidate_ngrams & wanted).total()
            total[n] += candidate_ngrams.total()
    if not all(same):
        return 0.0
    shorter = 1 - sum(map(len, references)) / sum(map(len, hypotheses))
    return 100 * math.exp(min(0, shorter) + sum(math.log(a / b) for a, b in zip(same, total)) / ORDER)


def exact(hypotheses: Sequence[object], references: Sequence[object]) -> float:
    """Fraction of hypotheses that equal their reference."""
    _check(hypotheses, references)
    return sum(a == b for a, b in zip(hypotheses, references)) / len(references)


def _grams(row: Sequence[Hashable], n: int) -> Counter[tuple[Hashable, ...]]:
    return Counter(zip(*(row[i:] for i in range(n))))


def _check(hypotheses: Sequence[object], references: Sequence[object]) -> None:
    if len(hypotheses) != len(references) or not len(references):
        raise BadInput(f"{len(hypotheses)} hypotheses have {len(references)} references", where="compare", fix="give one for each")
