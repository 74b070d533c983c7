"""Recipes over texts: each learns its task, shows what it learned, and says which data it used."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import sonde
from sonde.core.batch import Batch
from sonde.core.errors import BadInput, DataUnusable
from sonde.data.melody import TUNES, notes
from sonde.data.text.documents import Ragged
from sonde.data.toys import EXAMPLES, toy_sentiment
from sonde.estimators.word2vec import Word2Vec
from sonde.recipes import music, names, sentiment, tagging
from sonde.recipes.tools import texts as _texts


@pytest.fixture
def no_data(monkeypatch, tmp_path):
    """A machine without any data folder."""
    monkeypatch.delenv("SONDE_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def events(run, kind: str) -> str:
    return next(event["text"] for event in run.events if event["event"] == kind)


def test_names_makes_up_names_and_tells_what_counting_gives(no_data, capsys):
    run = sonde.train("names", run=no_data / "run", mixer="gru", depth=1, width=32, lr=1e-2, steps=40, batch_size=32, threads=1)
    assert run.data.name.startswith("names: a few bundled")
    generated = events(run, "made up").split(" (")[0].split(", ")
    assert len(generated) == names.SHOWN and sum(name.isalpha() for name in generated) > 10
    stderr = capsys.readouterr().err
    assert f"made up: {generated[0]}" in stderr and stderr.index("looking at what was learned ...") < stderr.index("made up")
    figures, baseline = run.result["metrics"], float(events(run, "baseline").split()[-1])
    assert figures["valid/loss"] < math.log(len(run.data.classes)) and 1.5 < baseline < 3
    assert "made up" in run.report().read_text(encoding="utf-8")


def test_the_baseline_of_names_is_its_mean_over_letters_and_ends(no_data):
    from sonde.models.ngram import Ngram

    data = names.recipe().build_data()
    rows = [data.valid.rows[i] for i in range(len(data.valid))]
    counted = Ngram([data.train.rows[i] for i in range(len(data.train))], len(data.classes), names.ORDER)
    scores = torch.cat([counted.scores(row)[1:] for row in rows])
    model = torch.nn.Linear(1, 1)
    model.advance = lambda tokens, state=None, spans=None: (torch.zeros(*tokens.shape, len(data.classes)), {})
    baseline = names._sample_names(data, 0, model, no_data)["baseline"]
    assert float(baseline.split()[-1]) == pytest.approx(-float(scores.mean()), abs=1e-4)


def test_names_of_a_file(tmp_path):
    (tmp_path / "towns.txt").write_text("\n".join(f"Town{chr(97 + i)}{chr(97 + i % 7)}" for i in range(26)), encoding="utf-8")
    data = names.recipe(data=tmp_path / "towns.txt").build_data()
    assert data.name == "names: towns.txt" and sum(len(part) for part in data.splits.values()) == 26
    (tmp_path / "few.txt").write_text("a\nb\n", encoding="utf-8")
    with pytest.raises(DataUnusable, match="holds 2 different names"):
        names.recipe(data=tmp_path / "few.txt")
    with pytest.raises(BadInput, match="looks at later tokens"):
        names.recipe(mixer="attention causal=false")


def test_music_writes_a_tune_that_can_be_played(no_data):
    small = {"mixer": "lstm", "depth": 1, "width": 48, "context": 48, "batch_size": 16, "lr": 1e-2}
    run = sonde.train("music", run=no_data / "run", steps=100, threads=1, quiet=True, **small)
    assert "bundled" in run.data.name
    tune = notes((run.path / "tune.abc").read_text(encoding="utf-8"))
    assert (run.path / "tune.mid").read_bytes()[:4] == b"MThd" and f"{len(tune)} notes" in events(run, "tune")
    near, far = (float(part.split()[0]) for part in events(run, "intervals").split("; "))
    assert near < far
    early = sonde.train("music", run=no_data / "early", steps=1, threads=1, quiet=True, **{**small, "lr": 1e-9, "width": 4})
    assert events(early, "tune")  # whatever it sampled, the run ends well


def test_tunes_are_cleaned_and_keep_every_note(no_data):
    source, tunes = _texts.tunes()
    assert "bundled" in source and len(tunes) == len(TUNES)
    for tune, clean in zip(TUNES, tunes):
        assert notes(tune) == notes(clean) and "T:" not in clean and clean.startswith("M:")
    near, far = music.distances([notes(tune) for tune in TUNES], [notes(tune) for tune in TUNES])
    assert near == 0 and far > 0.2


def test_nottingham_tunes_sound_the_same_when_cleaned(data_folder):
    from sonde.data.formats import read_text

    source, tunes = _texts.tunes()
    whole = read_text(data_folder / "music" / "nottingham-abc.txt.gz").split("X:")[1:]
    assert source == "nottingham-abc.txt.gz" and len(tunes) == len(whole) == 1034
    for tune, clean in zip(whole[:20], tunes):
        assert notes("X:" + tune) == notes(clean)


def test_sentiment_beats_a_bag_of_words_where_the_order_counts(no_data):
    run = sonde.train("sentiment", run=no_data / "run", mixer="gru", width=24, lr=1e-2, epochs=14, threads=1, quiet=True)
    assert run.data.name == "made-up sentences"
    simple, accuracy = float(events(run, "baseline").split()[-1]), run.result["metrics"]["test/accuracy"]
    assert simple < 0.95 < accuracy
    (no_data / "mine.txt").write_text("Unfortunately it will rain\n\nThe film was not bad\n", encoding="utf-8")
    assert run.predict(run.data.reader(no_data / "mine.txt")).argmax(1).tolist() == [0, 1]


def test_the_bag_of_words_leaves_the_data_alone():
    data = toy_sentiment()
    before = data.train.rows.values.clone()
    text = [[data.reader.vocabulary.tokens[i] for i in data.train.rows[row]] for row in range(len(data.train))]
    score = sentiment.baseline(data, data.reader.vocabulary.size)
    assert torch.equal(data.train.rows.values, before)
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression

    test = [[data.reader.vocabulary.tokens[i] for i in data.test.rows[row]] for row in range(len(data.test))]
    bag = CountVectorizer(analyzer=lambda words: words, binary=True)
    model = LogisticRegression(max_iter=1000).fit(bag.fit_transform(text), data.train.y)
    assert score == pytest.approx(model.score(bag.transform(test), data.test.y))


def test_made_up_sentences_hold_no_example_and_both_labels():
    data = toy_sentiment()
    spoken = {data.reader.vocabulary.decode(part.rows[i]) for part in data.splits.values() for i in range(len(part))}
    assert len(spoken) == sum(map(len, data.splits.values())) and not spoken & set(EXAMPLES)
    assert 0.4 < float(data.train.y.double().mean()) < 0.6


@pytest.mark.slow
def test_real_sentences_are_judged_better_than_by_a_bag_of_words(data_folder, tmp_path):
    run = sonde.train("sentiment", run=tmp_path / "run", data="sst2", threads=1, quiet=True)
    assert run.result["metrics"]["test/accuracy"] > float(events(run, "baseline").split()[-1]) > 0.8


def test_embeddings_begin_as_word_vectors():
    """Each token has the vector that its number, read as a word, gets; 4 stands there once, 0 and 9 never."""
    rows = [[5, 1, 6], [5, 2, 6, 1], [7, 3, 8], [7, 3]] * 50
    texts = [Ragged.of(rows[:3]), Ragged.of([*rows[3:], [8, 4]])]
    table = sentiment.vectors(texts, 10, 12, seed=3)
    spoken = [" ".join(map(str, row)) for row in [*rows, [8, 4]]]
    vectors = Word2Vec(12, epochs=3, min_count=2, random_state=3, split=str.split, quiet=True).fit(spoken).vectors_
    scale = sentiment.SPREAD / float(np.stack([vectors.vector(str(i)) if str(i) in vectors else np.zeros(12) for i in range(10)]).std())
    assert not table[[0, 4, 9]].any() and len(vectors) == 7
    for word in vectors.words:
        np.testing.assert_allclose(table[int(word)], vectors.vector(word) * scale, rtol=1e-5)


def test_hidden_tokens_are_a_share_and_follow_the_generator():
    batch = Batch(x=torch.full((40, 50), 7))
    hidden = [sentiment._mask_tokens(0.2, 1, batch, torch.Generator().manual_seed(seed)).x for seed in (0, 0, 1)]
    assert set(hidden[0].unique().tolist()) == {1, 7} and abs(float((hidden[0] == 1).double().mean()) - 0.2) < 0.03
    assert torch.equal(hidden[0], hidden[1]) and not torch.equal(hidden[0], hidden[2])


def test_tagging_needs_the_next_word(tmp_path):
    def accuracy(bidirectional: bool) -> float:
        options = {"n": 600, "steps": 80, "lr": 1e-2, "bidirectional": bidirectional}
        return sonde.train("tagging", run=tmp_path / str(bidirectional), threads=1, quiet=True, **options).result["metrics"][
            "test/accuracy"
        ]

    assert accuracy(True) > 0.99 and accuracy(False) < 0.92


def test_the_grammar_is_told_by_the_next_word_alone():
    sentences, kinds = _texts.grammar(200, 3)
    for words, named in zip(sentences, kinds, strict=True):
        assert len(words) == len(named)
        for i, (word, kind) in enumerate(zip(words, named)):
            if word in _texts.AMBIGUOUS and (i == 0 or words[i - 1] == "and"):
                assert kind == ("verb" if words[i + 1] in _texts.ARTICLES else "noun")
    assert {kind for named in kinds for kind in named} == set(tagging.recipe(n=200, seed=3).build_data().classes)
