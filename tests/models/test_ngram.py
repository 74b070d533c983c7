"""n-gram models against counts by hand and against Chen and Goodman's formulas over dictionaries."""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sonde.core.errors import BadInput
from sonde.generate import generate
from sonde.models.ngram import Ngram
from sonde.nn.spans import Spans

SMOOTHINGS = ("none", "add", "backoff", "kneser-ney")
V = 7


def text(n: int = 400, tokens: int = V, seed: int = 3) -> torch.Tensor:
    """Rare and frequent tokens, so that all counts of counts are there."""
    return (tokens * torch.rand(n, generator=torch.Generator().manual_seed(seed)) ** 2.5).long()


class Naive:
    """The same models with dictionaries of tuples, one probability at a time."""

    def __init__(self, documents: list[list[int]], vocabulary: int, order: int, smoothing: str, k: float) -> None:
        self.V, self.order, self.smoothing, self.k = vocabulary, order, smoothing, k
        raw = [Counter(tuple(d[i : i + m]) for d in documents for i in range(len(d) - m + 1)) for m in range(order + 1)]
        self.count = raw[:]
        if smoothing == "kneser-ney":
            for m in range(1, order):
                self.count[m] = Counter(gram[1:] for gram in raw[m + 1])  # different tokens before it
        self.after = [defaultdict(dict) for _ in range(order + 1)]
        for m in range(1, order + 1):
            for gram, c in self.count[m].items():
                self.after[m][gram[:-1]][gram[-1]] = c

    def discount(self, m: int, c: int) -> float:
        n = Counter(self.count[m].values())
        y = n[1] / (n[1] + 2 * n[2]) if n[1] and n[2] else 0.5
        if self.smoothing == "backoff" or not all(n[i] for i in (1, 2, 3, 4)):
            return y
        i = min(c, 3)
        discount = i - (i + 1) * y * n[i + 1] / n[i]
        return discount if discount > 0 else y

    def p(self, context: tuple[int, ...], w: int) -> float:
        return self._p(context[-(self.order - 1) :] if self.order > 1 else (), w)

    def _p(self, h: tuple[int, ...], w: int) -> float:
        seen, m = self.after[len(h) + 1].get(h, {}), len(h) + 1
        total = sum(seen.values())
        if self.smoothing == "add":
            return (seen.get(w, 0) + self.k) / (total + self.k * self.V)

        def lower(w: int) -> float:
            return self._p(h[1:], w) if h else 1 / self.V

        if not total:
            return lower(w)
        if self.smoothing == "none":
            return seen.get(w, 0) / total
        if self.smoothing == "kneser-ney":
            left = sum(self.discount(m, c) for c in seen.values()) / total
            return (seen[w] - self.discount(m, seen[w]) if w in seen else 0) / total + left * lower(w)
        if len(seen) == self.V:
            return seen[w] / total
        if w in seen:
            return (seen[w] - self.discount(m, seen[w])) / total
        left = sum(self.discount(m, c) for c in seen.values()) / total
        return left / sum(lower(v) for v in range(self.V) if v not in seen) * lower(w)


@pytest.mark.parametrize("order", [1, 2, 3, 5])
@pytest.mark.parametrize("smoothing", SMOOTHINGS)
def test_every_probability_is_that_of_the_formula(order, smoothing):
    documents = [text(300), text(1, seed=4), text(41, seed=5)]
    ours, naive = Ngram(documents, V, order, smoothing, k=0.3), Naive([d.tolist() for d in documents], V, order, smoothing, 0.3)
    for length in (0, 1, 2, 6):
        contexts = torch.randint(V, (9, length))
        contexts[:4] = documents[0][torch.arange(4).unsqueeze(1) * 7 + torch.arange(length)]  # some that were there
        want = torch.tensor([[naive.p(tuple(row), w) for w in range(V)] for row in contexts.tolist()], dtype=torch.float64)
        torch.testing.assert_close(ours.log_probs(contexts).exp(), want, rtol=1e-10, atol=1e-14)
    held = text(50, seed=6)
    want = torch.tensor([naive.p(tuple(held[:i].tolist()), int(w)) for i, w in enumerate(held)], dtype=torch.float64)
    torch.testing.assert_close(ours.scores(held).exp(), want, rtol=1e-10, atol=1e-14)


def test_counts_of_a_toy_text_by_hand():
    words = ["the", "cat", "sat", "on", "the", "mat", "the", "cat", "ran"]
    names = sorted(set(words))  # cat mat on ran sat the
    number = {word: i for i, word in enumerate(names)}
    rows = torch.tensor([number[word] for word in words])
    bigram = Ngram(rows, 6, order=2, smoothing="none").log_probs(torch.tensor([[number["the"]], [number["cat"]], [number["ran"]]])).exp()
    assert bigram[0].tolist() == pytest.approx([2 / 3, 1 / 3, 0, 0, 0, 0])  # the: cat, mat, cat
    assert bigram[1].tolist() == pytest.approx([0, 0, 0, 1 / 2, 1 / 2, 0])  # cat: sat, ran
    assert bigram[2].tolist() == pytest.approx([2 / 9, 1 / 9, 1 / 9, 1 / 9, 1 / 9, 3 / 9])  # nothing follows: the single words
    added = Ngram(rows, 6, order=2, smoothing="add", k=1).log_probs(torch.tensor([[number["the"]], [number["ran"]]])).exp()
    assert added[0].tolist() == pytest.approx([3 / 9, 2 / 9, 1 / 9, 1 / 9, 1 / 9, 1 / 9]) and added[1].tolist() == pytest.approx(
        [1 / 6] * 6
    )
    # Kneser-Ney counts contexts, not tokens: of 7 different pairs 1 ends in cat, though cat came twice, and 2 in the.
    # Five words end one pair, one ends two: Y = 5 / (5 + 2) is taken from each of the six.
    kn = Ngram(rows, 6, order=2).log_probs(torch.zeros(1, 0, dtype=torch.long)).exp()[0]
    rest = 6 * 5 / 7 / 7
    assert float(kn[number["cat"]]) == pytest.approx((1 - 5 / 7) / 7 + rest / 6)
    assert float(kn[number["the"]]) == pytest.approx((2 - 5 / 7) / 7 + rest / 6)


@pytest.mark.parametrize("smoothing", SMOOTHINGS)
@settings(max_examples=30)
@given(data=st.data())
def test_rows_sum_to_one_and_so_do_all_strings(smoothing, data):
    tokens = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=30))
    order = data.draw(st.integers(1, 4))
    model = Ngram(torch.tensor(tokens), 4, order, smoothing, k=0.5)
    strings = torch.tensor(list(itertools.product(range(4), repeat=3)))
    assert float(model.scores(list(strings)).view(64, 3).sum(1).exp().sum()) == pytest.approx(1, abs=1e-12)
    every = model.forward(strings).exp()
    assert float(every.sum(-1).sub(1).abs().max()) < 1e-12 and float(every.min()) >= 0
    if smoothing in ("add", "kneser-ney"):
        assert float(every.min()) > 0


@pytest.mark.parametrize("smoothing", SMOOTHINGS)
def test_going_on_in_pieces_equals_one_pass(smoothing):
    model, x = Ngram(text(), V, 4, smoothing), text(33, seed=8).view(3, 11)
    whole, state, pieces = model(x), None, []
    for part in x.split([1, 1, 6, 3], 1):
        rows, state = model.advance(part, state)
        pieces.append(rows)
    assert torch.equal(torch.cat(pieces, 1), whole)
    lengths = torch.tensor([4, 11, 1])
    rows, state = model.advance(x, spans=Spans.of_lengths(lengths))
    after, _ = model.advance(x[:, :2], state)
    for row, n in enumerate(lengths):
        alone, its = model.advance(x[row : row + 1, :n])
        assert torch.equal(rows[row, :n], alone[0]) and torch.equal(after[row], model.advance(x[row : row + 1, :2], its)[0][0])
    # what `forward` says at a position is what `log_probs` says after it, and what `scores` says of the next token
    assert torch.equal(whole[:, 4], model.log_probs(x[:, :5]))
    torch.testing.assert_close(whole[0, :-1].gather(1, x[0, 1:, None])[:, 0], model.scores(x[0])[1:], rtol=1e-12, atol=0)


def test_a_trigram_ignores_older_words():
    model, x = Ngram(text(), V, 3), text(12, seed=9).view(1, 12)
    other = x.clone()
    other[:, :5] = (other[:, :5] + 1) % V
    assert torch.equal(model(x)[:, 6:], model(other)[:, 6:]) and not torch.equal(model(x)[:, 5], model(other)[:, 5])
    assert torch.equal(model.log_probs(x), model.log_probs(x[:, -2:]))


def test_perplexity_is_that_of_the_mean_and_infinite_for_the_unseen():
    model = Ngram(torch.tensor([0, 1, 0, 1, 0]), 3, 2, "none")
    assert model.perplexity(torch.tensor([0, 1, 0])) == pytest.approx((3 / 5) ** (-1 / 3))  # p(0) = 3/5, then certain
    assert model.perplexity(torch.tensor([0, 2])) == math.inf
    smooth = Ngram(text(), V, 3)
    held = [text(20, seed=1), text(9, seed=2)]
    mean = torch.cat([smooth.scores(part) for part in held]).mean()
    assert smooth.perplexity(held) == pytest.approx(float((-mean).exp()))


def test_smoothing_helps_on_text_it_never_saw():
    chain = torch.randint(12, (12, 3), generator=torch.Generator().manual_seed(1))
    steps = torch.randint(3, (3000,), generator=torch.Generator().manual_seed(2)).tolist()
    tokens = [0]
    for step in steps:
        tokens.append(int(chain[tokens[-1], step]))
    row = torch.tensor(tokens)
    perplexity = {smoothing: Ngram(row[:800], 12, 4, smoothing).perplexity(row[800:]) for smoothing in ("add", "backoff", "kneser-ney")}
    assert perplexity["kneser-ney"] < perplexity["add"] and perplexity["backoff"] < perplexity["add"] and perplexity["kneser-ney"] < 4


def test_kneser_ney_leaves_something_to_the_unseen_where_few_counts_are_small():
    """n1 to n4 are 3, 1, 1, 4: the discount of 3 would be 3 - 4 Y n4 / n3 < 0."""
    often = (1, 1, 1, 2, 3, 4, 4, 4, 4)
    row = torch.cat([torch.full((n,), i) for i, n in enumerate(often)])
    model = Ngram(row, 10, order=1)
    assert model.log_probs(torch.zeros(1, 0, dtype=torch.long)).exp()[0, 9] > 0.01
    naive = Naive([row.tolist()], 10, 1, "kneser-ney", 1)
    want = [naive.p((), w) for w in range(10)]
    assert model.log_probs(torch.zeros(1, 0, dtype=torch.long)).exp()[0].tolist() == pytest.approx(want)


def test_coverage_counts_grams_that_were_there():
    model = Ngram(torch.tensor([0, 1, 2, 0, 1]), 4, 3)
    tokens = torch.tensor([0, 1, 2, 1, 3])
    assert model.match_lengths(tokens).tolist() == [1, 2, 3, 1, 0]
    assert model.coverage(tokens) == pytest.approx([4 / 5, 2 / 4, 1 / 3])
    assert math.isnan(model.coverage(tokens[:2])[2])
    rows = Ngram([torch.tensor([0, 1]), torch.tensor([2, 3])], 4, 2)
    assert rows.coverage(torch.tensor([0, 1, 2, 3]))[1] == pytest.approx(2 / 3)  # no pair reaches over the end of a document


def test_it_generates_and_never_what_cannot_follow():
    model = Ngram(torch.tensor([0, 1, 2] * 9), 4, 2, "none")
    assert generate(model, torch.tensor([[0], [2]]), 7).tolist() == [[1, 2, 0, 1, 2, 0, 1], [0, 1, 2, 0, 1, 2, 0]]


def test_long_grams_of_a_large_vocabulary_keep_small_keys():
    """50,000 to the power of 8 is no 64-bit number."""
    row = torch.randint(50_000, (300,), generator=torch.Generator().manual_seed(0))
    model = Ngram(row, 50_000, 8)
    assert model.match_lengths(row).max() == 8 and model.coverage(row) == [1.0] * 8


def test_what_cannot_be_is_refused():
    for call, message in (
        (lambda: Ngram(torch.tensor([], dtype=torch.long), 4), "no text to count"),
        (lambda: Ngram([], 4), "no text"),
        (lambda: Ngram(torch.tensor([0, 4]), 4), "token out of range: 4"),
        (lambda: Ngram(torch.tensor([0.5]), 4), "whole numbers"),
        (lambda: Ngram(torch.tensor([0]), 4, smoothing="add", k=0), "k must be above 0"),
        (lambda: Ngram(torch.tensor([0]), 4)(torch.tensor([[7]])), "token out of range: 7"),
        (lambda: Ngram(torch.tensor([0]), 4)(torch.tensor([1])), "batch, time"),
    ):
        with pytest.raises(BadInput, match=message):
            call()
