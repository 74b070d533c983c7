"""Real text and series of a data folder, and generated pairs: known counts, and the error where a file is missing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sonde.core.errors import BadInput, DataUnusable
from sonde.data import catalog, fetch, series
from sonde.data.text.corpora import novel_texts
from sonde.data.toys import sentence_pair

REAL = [name for name in catalog.names() if catalog.function(name).__module__ in ("sonde.data.text.corpora", "sonde.data.series")]
needs = pytest.mark.skipif(fetch.find("sentiment/sst2.train.tsv") is None, reason="no data folder with the real texts")


@pytest.mark.parametrize("name", REAL)
def test_missing_files_are_named(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SONDE_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(fetch, "download", lambda *_: pytest.fail("nothing is downloaded"))
    with pytest.raises(DataUnusable, match="no data folder has '(sentiment|translation|names|music|text|timeseries)/") as caught:
        catalog.load(name)
    assert str(tmp_path) in caught.value.where and "$SONDE_DATA" in caught.value.fix


@needs
@pytest.mark.parametrize("name, sizes", [("sst2", (6920, 872, 1821)), ("sentence_polarity", (8530, 1066, 1066))])
def test_reviews_have_their_counts_and_words(name: str, sizes: tuple[int, int, int], tmp_path: Path) -> None:
    data = catalog.load(name)
    assert tuple(map(len, data.splits.values())) == sizes and data.classes == ("negative", "positive")
    assert abs(float(data.train.y.float().mean()) - 0.5) < 0.03
    batch, tokenizer = data.train[torch.tensor([0, 5])], data.reader.vocabulary
    assert batch.x.shape == (2, int(batch.lengths.max())) and int(batch.x[0, 0]) not in tokenizer.specials.values()
    (tmp_path / "new.txt").write_text("a good film\n\nunfortunately it will rain\n")
    new = data.reader(tmp_path / "new.txt")
    assert new.lengths.tolist() == [3, 4] and tokenizer.decode(new.x[0]) == "a good film"


@needs
def test_imdb_is_balanced() -> None:
    data = catalog.load("imdb", longest=40, level="byte")
    assert tuple(map(len, data.splits.values())) == (22500, 2500, 25000)
    assert [float(source.y.float().mean()) for source in data.splits.values()] == [0.5] * 3


@needs
def test_translations_come_back_and_are_padded_little() -> None:
    data = catalog.load("multi30k", most=1000)
    assert tuple(map(len, data.splits.values())) == (29000, 1014, 1000) and len(data.classes) == 1000
    assert data.features == data.classes  # both sides share their tokens
    first, vocabulary = data.train[:1], data.reader.vocabulary
    assert vocabulary.decode(first.source[0]) == "Zwei junge weiße Männer sind im Freien in der Nähe vieler Büsche."
    assert vocabulary.decode(first.y[0]) == "Two young, White males are outside near many bushes."
    assert first.x[0, 0] == vocabulary.specials["start"] and first.y[0, -1] == vocabulary.specials["end"] == first.source[0, -1]
    sorted_part = data.valid[400:464]
    there = int(sorted_part.lengths.sum()) + int(sorted_part.mask.sum())
    assert there > 0.85 * (sorted_part.source.numel() + sorted_part.y.numel())
    with pytest.raises(BadInput, match="both source and target"):
        catalog.load("multi30k", source="en")


@needs
def test_names_tunes_and_books() -> None:
    data = catalog.load("given_names")
    assert sum(map(len, data.splits.values())) == 29_494 and len(data.classes) == 1 + 26 + 3
    rows = [{tuple(row.tolist()) for row in source.rows.values.split(source.rows.lengths.tolist())} for source in data.splits.values()]
    assert list(map(len, rows)) == list(map(len, data.splits.values())) and not rows[0] & (rows[1] | rows[2]) and not rows[1] & rows[2]
    assert {data.reader.vocabulary.decode(row) for row in data.train[:20].y} <= set(fetch.find("names/names.txt").read_text().split())  # type: ignore[union-attr]
    assert len(novel_texts()) == 33 and novel_texts()[0][0] == "Anon_Clara_1864.txt"
    for name, tokens in (("nottingham", 446_000), ("kjv", 4_000_000), ("wikitext2", 200_000)):
        data = catalog.load(name)
        assert sum(int(data.report[f"{part} tokens"]) for part in ("train", "valid", "test")) > tokens * 0.95 and data.valid is not None


@needs
def test_series_are_cut_in_time() -> None:
    for name, many in (("sunspots", 2820), ("passengers", 144), ("temperatures", 3650)):
        data = catalog.load(name, length=10, ahead=2, valid=20, test=20)
        row = torch.cat([data.train[:1].x[0, :, 0], *(source[:].y[:, 0] for source in data.splits.values())])
        assert [len(source) for source in data.splits.values()] == [many - 40 - 11, 19, 19] and data.train[:].y.shape[1] == 2
        mean, std = (float(data.report[f"{what} of training"]) for what in ("mean", "deviation"))
        if name == "sunspots":
            plain = series.values("timeseries/monthly-sunspots.csv")
            torch.testing.assert_close(row[:100].double() * std + mean, plain[:100], rtol=1e-4, atol=1e-3)
    with pytest.raises(BadInput, match="too few for windows"):
        catalog.load("passengers", length=140)


def test_a_small_language_is_translated_by_its_rules() -> None:
    want = ("the small cat sees a dog", "la kato malgranda vidas hundon")
    assert sentence_pair(("the", "small", "cat"), "sees", ("a", "", "dog")) == want
    assert sentence_pair(("a", "", "tree"), "does not see", ("this", "red", "book")) == (
        "a tree does not see this red book",
        "arbo ne vidas tiu libron rugan",
    )
    data = catalog.load("bilingual", n=200)
    vocabulary = data.reader.vocabulary
    sentences = [{vocabulary.decode(row) for row in source[:].source} for source in data.splits.values()]
    assert list(map(len, sentences)) == [160, 20, 20] and not sentences[0] & sentences[1] and not sentences[0] & sentences[2]


@pytest.mark.parametrize("twice", [False, True])
def test_reversed_rows_are_reversed(twice: bool) -> None:
    data = catalog.load("reversal", n=50, symbols=7, longest=5, twice=twice)
    batch, end = data.train[:], 9
    for i in range(len(batch)):
        tokens = batch.source[i, : batch.lengths[i]].tolist()
        want = [symbol for symbol in reversed(tokens[:-1]) for _ in range(2 if twice else 1)]
        assert batch.y[i][batch.mask[i]].tolist() == [*want, end] and tokens[-1] == end and batch.x[i, 0] == 8


def test_the_rule_is_new_in_every_sequence() -> None:
    batch = catalog.load("in_context", n=200, shots=9, keys=4, values=5).train[:]
    rules = set()
    for x, y, mask in zip(batch.x.tolist(), batch.y.tolist(), batch.mask.tolist()):
        seen: dict[int, int] = {}
        for i in range(0, len(x), 2):
            assert mask[i] == (x[i] in seen) and not mask[i + 1] and y[i] == x[i + 1] == seen.get(x[i], y[i])
            seen[x[i]] = x[i + 1]
        assert mask[-2]
        rules.add(tuple(sorted(seen.items())))
    assert len(rules) > 150


def test_a_tag_needs_the_next_token() -> None:
    batch = catalog.load("tagging", n=20, length=6, symbols=4).train[:]
    assert torch.equal(batch.y[:, :-1] - 4, (batch.x[:, :-1] < batch.x[:, 1:]).long())
    assert batch.mask[:, :-1].all() and not batch.mask[:, -1].any()
