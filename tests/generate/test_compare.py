"""BLEU equals that of sacrebleu."""

from __future__ import annotations

import random

import pytest
import sacrebleu

from sonde.core.errors import BadInput
from sonde.generate import bleu, exact


def theirs(hypotheses: list[list[str]], references: list[list[str]]) -> float:
    texts = [" ".join(words) for words in hypotheses], [[" ".join(words) for words in references]]
    return sacrebleu.corpus_bleu(*texts, tokenize="none", smooth_method="none", force=True).score


@pytest.mark.parametrize("seed", range(8))
def test_the_bleu_of_sacrebleu(seed):
    rng = random.Random(seed)
    references = [[rng.choice("abcde") for _ in range(rng.randint(1, 14))] for _ in range(20)]
    changed = 0.5 * rng.random()
    hypotheses = [[w if rng.random() > changed else rng.choice("abcde") for w in row][: rng.choice([3, 9, 99])] for row in references]
    hypotheses = [[*row, *row[:2]] if seed % 2 else row for row in hypotheses]  # too long and too short ones
    assert bleu(hypotheses, references) == pytest.approx(theirs(hypotheses, references), abs=1e-9)
    assert bleu(references, references) == pytest.approx(100)


def test_edges():
    assert bleu([["a", "b", "c"]], [["a", "b", "c"]]) == 0 == theirs([["a", "b", "c"]], [["a", "b", "c"]])  # no 4-grams at all
    assert bleu([[]], [["a"]]) == 0
    assert exact(["a b", "c"], ["a b", "d"]) == 0.5
    for wrong in ((["a b"], ["a b"]), ([], []), ([["a"]], [["a"], ["b"]])):
        with pytest.raises(BadInput):
            bleu(*wrong)
