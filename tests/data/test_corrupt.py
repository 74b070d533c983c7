"""Hidden parts of text: shares counted, spans put back, the worked example of BERT, next sentences."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sonde.core.batch import Batch
from sonde.core.errors import BadInput, DataUnusable
from sonde.core.seeds import generator
from sonde.data.augment import compose
from sonde.data.corrupt import (
    SentenceSource,
    freeze_changes,
    hide,
    join_pair,
    masking,
    next_sentence,
    restore_spans,
    span_corruption,
    span_numbers,
)
from sonde.data.tensors import WindowSource
from sonde.data.text.documents import Ragged
from sonde.data.text.tokenizer import train

NAMES = ("pad", "start", "end", "mask", "sep", "cls", *(f"sentinel {i}" for i in range(30)))
LETTERS = train("char", ["abcdefghijklmnopqrstuvwxyz"], specials=NAMES)
WORDS = train("words", ["I like some cheese . It tastes good ."], 60, NAMES)


def letters(rows: int, width: int, seed: int = 0) -> Batch:
    return Batch(x=torch.randint(1, 27, (rows, width), generator=generator(seed)), ids=torch.arange(rows))


def test_there_must_be_something_to_mask() -> None:
    with pytest.raises(BadInput, match="special tokens only, so there is none to mask"):
        masking(train("char", [""], specials=("pad", "mask")))


def test_masking_has_its_shares_and_spares_special_tokens() -> None:
    batch = letters(400, 100)
    at = LETTERS.specials
    batch.x[:, 0], batch.x[:, 50], batch.x[:, 90:] = at["cls"], at["sep"], at["pad"]
    out = masking(LETTERS, 0.15)(batch, generator(1))
    ordinary = batch.x < 27
    assert not (out.mask & ~ordinary).any() and torch.equal(out.y, batch.x)
    chosen = out.mask.sum() / ordinary.sum()
    assert abs(float(chosen) - 0.15) < 0.006  # 35,200 draws: a deviation of 0.002
    masked, same = (out.x == at["mask"])[out.mask], (out.x == batch.x)[out.mask]
    assert abs(float(masked.float().mean()) - 0.8) < 0.02 and abs(float(same.float().mean()) - 0.1 - 0.1 / 26) < 0.02
    assert torch.equal(out.x[~out.mask], batch.x[~out.mask]) and not ((out.x > 26) & (out.x != at["mask"]) & ordinary).any()
    again, other = masking(LETTERS, 0.15)(batch, generator(1)), masking(LETTERS, 0.15)(batch, generator(2))
    assert torch.equal(out.x, again.x) and not torch.equal(out.mask, other.mask)
    only = masking(LETTERS, 1.0, (0.0, 0.0, 1.0))(batch, generator(1))
    assert torch.equal(only.x, batch.x) and torch.equal(only.mask, ordinary)


def test_the_worked_example_has_two_targets() -> None:
    first, second = WORDS.encode("I like some cheese"), WORDS.encode("It tastes good")
    at = WORDS.specials
    x, kinds, lengths = join_pair(
        (first[None].long(), torch.tensor([4])), (second[None].long(), torch.tensor([3])), (at["cls"], at["sep"], at["pad"])
    )
    assert [WORDS.tokens[i] for i in x[0]] == ["<cls>", "I", "like", "some", "cheese", "<sep>", "It", "tastes", "good", "<sep>"]
    assert kinds.tolist() == [[0] * 6 + [1] * 4] and lengths.tolist() == [10]
    mask = torch.isin(x, torch.cat([WORDS.encode("some"), WORDS.encode("tastes")]).long())
    out = hide(Batch(x=x, lengths=lengths), mask, at["mask"])
    assert int(out.mask.sum()) == 2 and [WORDS.tokens[i] for i in out.y[out.mask]] == ["some", "tastes"]
    assert int((x < WORDS.size).sum()) - 3 == 7 and [WORDS.tokens[i] for i in out.x[0, [3, 7]]] == ["<mask>"] * 2


@settings(max_examples=60)
@given(width=st.integers(2, 90), rate=st.floats(0.02, 0.9), mean=st.floats(1, 6), seed=st.integers(0, 99))
def test_corrupted_spans_put_back_give_the_text(width: int, rate: float, mean: float, seed: int) -> None:
    lost, spans = span_numbers(width, rate, mean)
    change, batch = span_corruption(LETTERS, rate, mean), letters(5, width, seed)
    if spans > 30:
        with pytest.raises(BadInput, match="30 sentinels"):
            change(batch, generator(seed))
        return
    out = change(batch, generator(seed))
    assert out.source.shape == (5, width - lost + spans + 1) and out.y.shape == out.x.shape == (5, lost + spans + 1)
    assert torch.equal(out.x[:, 1:], out.y[:, :-1]) and (out.x[:, 0] == LETTERS.specials["start"]).all() and out.mask.all()
    marks = [LETTERS.specials[f"sentinel {i}"] for i in range(spans)]
    for i in range(5):
        assert torch.equal(restore_spans(out.source[i], out.y[i], LETTERS), batch.x[i])
        assert [t for t in out.source[i].tolist() if t in marks] == marks == [t for t in out.y[i].tolist() if t in marks]
        assert int(out.source[i, 0]) not in marks  # a row begins with text


def test_every_way_to_cut_is_equally_likely() -> None:
    """5 tokens, 2 lost in one span that is not at the beginning and ends anywhere: with one span it is always the last."""
    out = span_corruption(LETTERS, 0.4, 2.0)(letters(50, 5), generator(0))
    assert (out.source[:, 3] == LETTERS.specials["sentinel 0"]).all()
    # 6 tokens, 3 lost in 2 spans: kept 1+2 or 2+1, cut 1+2 or 2+1, four ways
    x = letters(4000, 6).x
    out = span_corruption(LETTERS, 0.5, 1.5)(Batch(x=x), generator(0))
    kinds, counts = torch.stack([(out.source > 26).long()[:, 1], (out.y > 26).long()[:, 2]], 1).unique(dim=0, return_counts=True)
    assert len(kinds) == 4 and (counts - 1000).abs().max() < 120  # four deviations


def test_next_sentences_are_the_next_or_those_of_another_row() -> None:
    documents = [Ragged.of([[10 * d + s] * (s + 1) for s in range(n)]) for d, n in enumerate((3, 1, 4, 0, 2), start=1)]
    source = SentenceSource(documents, LETTERS.specials["pad"], most=3)
    assert len(source) == 2 + 0 + 3 + 0 + 1
    batch = source[:]
    assert batch.x[:, 0].tolist() == [10, 11, 30, 31, 32, 50] and batch.next[:, 0].tolist() == [11, 12, 31, 32, 33, 51]
    assert batch.lengths.tolist() == [1, 2, 1, 2, 3, 1] and batch.next_lengths.tolist() == [2, 3, 2, 3, 3, 2]
    at, seen = LETTERS.specials, []
    for seed in range(200):
        out = next_sentence(LETTERS)(batch, generator(seed))
        seen.append(out.follows)
        for i in range(6):
            row = out.x[i, : out.lengths[i]].tolist()
            first = [int(batch.x[i, 0])] * int(batch.lengths[i])
            assert row[: len(first) + 2] == [at["cls"], *first, at["sep"]] and row[-1] == at["sep"]
            assert (row[len(first) + 2] == int(batch.next[i, 0])) == bool(out.follows[i]) and len(set(row[len(first) + 2 : -1])) == 1
            assert (out.x[i, out.lengths[i] :] == at["pad"]).all()
            assert out.kinds[i].tolist() == [0] * (len(first) + 2) + [1] * (len(row) - len(first) - 2) + [0] * (out.x.shape[1] - len(row))
    assert abs(float(torch.stack(seen).float().mean()) - 0.5) < 0.06  # 1,200 draws: a deviation of 0.014
    both = compose(next_sentence(LETTERS), masking(LETTERS))(batch, generator(3))
    assert set(both.fields) == {"x", "y", "mask", "kinds", "lengths", "follows", "ids"}
    alone = next_sentence(LETTERS, 1.0)(source[torch.tensor([2])], generator(0))
    assert alone.follows.tolist() == [1]


def test_validation_asks_the_same_every_time() -> None:
    windows = WindowSource(torch.arange(2000) % 26 + 1, 20)
    first, again, other = (freeze_changes(windows, masking(LETTERS), seed) for seed in (0, 0, 1))
    assert first.fingerprint() == again.fingerprint() != other.fingerprint() and len(first) == len(windows)
    part = first[torch.tensor([7, 3])]
    assert torch.equal(part.x, first[:].x[[7, 3]]) and torch.equal(part.ids, torch.tensor([7, 3]))
    assert freeze_changes(windows, span_corruption(LETTERS), 0)[:2].source.shape[0] == 2


def test_wrong_asks() -> None:
    for call, message in (
        (lambda: masking(LETTERS, 0.1, (0.5, 0.1, 0.1)), "add up to 1"),
        (lambda: masking(train("char", ["ab"]), 0.1), "no special token 'mask'"),
        (lambda: span_corruption(train("char", ["ab"])), "no special token 'sentinel 0'"),
        (lambda: span_corruption(LETTERS)(letters(2, 1), generator(0)), "a row of 1 tokens"),
        (lambda: span_corruption(LETTERS)(letters(2, 9).replace(lengths=torch.tensor([9, 4])), generator(0)), "without padding"),
    ):
        with pytest.raises(BadInput, match=message):
            call()
    with pytest.raises(DataUnusable, match="no document has two sentences"):
        SentenceSource([Ragged.of([[1]])], 0)
