"""Word vectors: a toy language they must learn, gensim as the judge of files, answers and figures, and every way to go wrong."""

from __future__ import annotations

import gzip
import os
from contextlib import ExitStack

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

import sonde.estimators
from sonde.core.errors import BadInput, NumericalStop
from sonde.estimators import glove, words_corpus
from sonde.estimators.glove import GloVe, cooccurrence
from sonde.estimators.word2vec import Word2Vec
from sonde.estimators.word_vectors import WordVectors
from sonde.estimators.words_corpus import Corpus, words
from sonde.kernels import available

BEASTS, CARS = ["cat", "dog", "horse", "cow"], ["car", "bus", "train", "truck"]


def toy(sentences=1500, seed=0):
    """Beasts eat and sleep, vehicles drive and honk; nothing else tells them apart."""
    draw = np.random.default_rng(seed)
    acts = {True: ["eats", "sleeps", "purrs", "drinks"], False: ["drives", "honks", "parks", "brakes"]}
    kinds = draw.integers(2, size=sentences) == 1
    return [[draw.choice(BEASTS if k else CARS), draw.choice(acts[bool(k)]), draw.choice(acts[bool(k)]), "today"] for k in kinds]


SETTINGS = {"width": 16, "epochs": 8, "min_count": 1, "sample": 0, "quiet": True, "window": 3}
WAYS = [(model, loss) for model in ("skip-gram", "cbow") for loss in ("negative", "hierarchical")]


@pytest.fixture(scope="module")
def fitted():
    return Word2Vec(**SETTINGS, lr=0.1).fit(toy())


@pytest.fixture
def table():
    draw = np.random.default_rng(3)
    names = ["the", "of", "naïve", "König", "co-op", "x", "日本", "Zürich"] + [f"w{i}" for i in range(40)]
    return WordVectors(names, draw.normal(size=(48, 7)).astype(np.float32))


def kinds_are_apart(vectors):
    within = np.mean([vectors.similarity(a, b) for group in (BEASTS, CARS) for a in group for b in group if a < b])
    across = np.mean([vectors.similarity(a, b) for a in BEASTS for b in CARS])
    return within - across


@pytest.mark.parametrize("model, loss", WAYS)
def test_a_toy_language_is_learned(model, loss):
    fit = Word2Vec(model=model, loss=loss, lr=0.1, **SETTINGS).fit(toy())
    assert kinds_are_apart(fit.vectors_) > 0.3
    assert len(fit.losses_) == 8 and fit.losses_[-1] < fit.losses_[0] - 0.1 and fit.n_seen_ == 6000
    assert {word for word, _ in fit.vectors_.most_similar("cat", top=3)} < set(BEASTS)


def test_glove_learns_it_too():
    fit = GloVe(width=8, min_count=1, epochs=30, window=3, quiet=True).fit(toy())
    assert kinds_are_apart(fit.vectors_) > 0.3
    assert fit.losses_[-1] < fit.losses_[0] / 5


@pytest.mark.parametrize("model, loss", WAYS)
def test_loss_of_untrained_vectors_is_log_2_a_row(model, loss):
    """All outputs begin with zeros, so that every row of a question is a coin: with a rate near 0 it stays so."""
    fit = Word2Vec(model=model, loss=loss, lr=1e-12, **{**SETTINGS, "epochs": 2}).fit(toy())
    if loss == "negative":  # a noise word that is the word itself is not asked: a little below 1 + 5
        assert 5.3 * np.log(2) < fit.losses_[0] < 6 * np.log(2)
        assert fit.losses_[1] == pytest.approx(fit.losses_[0], rel=0.01)
    else:
        assert fit.losses_[0] == pytest.approx(fit.losses_[1], rel=0.02) and 2 * np.log(2) < fit.losses_[0] < 5 * np.log(2)


@pytest.mark.skipif(not available(), reason="the same by rounding only")
@pytest.mark.parametrize("maker", [Word2Vec(**SETTINGS), GloVe(width=5, min_count=1, epochs=3, quiet=True)])
def test_a_seed_gives_the_same_bits(maker):
    one, two = (clone(maker).fit(toy(200)) for _ in range(2))
    assert np.array_equal(one.vectors_.vectors, two.vectors_.vectors) and one.losses_ == two.losses_
    other = clone(maker).set_params(random_state=1).fit(toy(200))
    assert not np.array_equal(one.vectors_.vectors, other.vectors_.vectors)


def test_threads_learn_the_same_language():
    fit = Word2Vec(**SETTINGS, lr=0.1, threads=2).fit(toy())
    assert kinds_are_apart(fit.vectors_) > 0.3


def test_two_estimators_outside_the_registry_of_tables():
    """They read text and not rows of numbers: the contract of tables is not theirs."""
    assert not {"Word2Vec", "GloVe", "WordVectors"} & set(sonde.estimators.homes())
    for cls in (Word2Vec, GloVe):
        assert all(f"{name}:" in cls.__doc__ for name in cls().get_params())


def test_documents_in_a_pipeline():
    texts = [" ".join(sentence[:3]) for sentence in toy(300)]
    labels = [text.split()[0] in BEASTS for text in texts]
    steps = make_pipeline(Word2Vec(**SETTINGS, lr=0.1), LogisticRegression()).fit(texts, labels)
    assert steps.score(texts, labels) == 1.0
    assert not steps[0].transform(["", "unheard of"]).any()
    with pytest.raises(BadInput, match="list of"):
        steps[0].transform("one text")


# ------------------------------------------------------------------------------------------------- text


def test_all_sources_give_the_same_text(tmp_path):
    lines = ["The cat's mat, the DOG!", "", "a cat 42 the_dog\tran"]
    rows = [["the", "cat's", "mat", "the", "dog"], [], ["a", "cat", "the", "dog", "ran"]]
    plain, packed = tmp_path / "a.txt", tmp_path / "a.txt.gz"
    plain.write_text("\n".join(lines))
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    expected = ("the", "dog", "cat's", "mat", "a", "cat", "ran"), [3, 2, 1, 1, 1, 1, 1], [0, 2, 3, 0, 1, -1, -1, 4, 5, 0, 1, 6, -1]
    for source in (lines, rows, plain, str(plain), packed, iter(lines), (row for row in rows)):
        corpus = Corpus.read(source, 1, words)
        assert (corpus.words, corpus.counts.tolist(), corpus.tokens.tolist()) == expected


def test_ids_of_any_kind():
    ids = np.array([[5, 5, 7], [9, 5, 7]])
    for source in (ids, torch.tensor(ids), ids.tolist(), [row.astype(np.uint16) for row in ids]):
        corpus = Corpus.read(source, 2, words)
        assert corpus.words == ("5", "7") and corpus.tokens.tolist() == [0, 0, 1, -1, 0, 1, -1]
    assert Corpus.read(ids.ravel().astype(np.uint16), 1, words).tokens.tolist() == [0, 0, 1, 2, 0, 1, -1]


def test_text_is_read_in_small_blocks(monkeypatch, tmp_path):
    """A long line without an end is cut between words only, and counts are the same whatever the block."""
    draw = np.random.default_rng(0)
    text = " ".join(draw.choice(["alpha", "beta", "gamma", "delta"], 3000))
    path = tmp_path / "long.txt"
    path.write_text(text)
    whole = Corpus.read(path, 1, words)
    monkeypatch.setattr(words_corpus, "BLOCK", 64)
    parts = Corpus.read(path, 1, words)
    assert parts.words == whole.words and parts.counts.tolist() == whole.counts.tolist()
    assert parts.tokens[parts.tokens >= 0].tolist() == whole.tokens[whole.tokens >= 0].tolist()


def test_rare_words_go_before_windows_are_made():
    corpus = Corpus.read([["a", "rare", "b"], ["b", "a"]], 2, words)
    assert corpus.tokens.tolist() == [0, 1, -1, 1, 0, -1] and corpus.seen == 5


@pytest.mark.parametrize(
    "source, words_",
    [
        ([], "no words"),
        (["", "  ", "1 2 3"], "no words"),
        (["one two three"], "no word occurs 5 times, the commonest 1; lower min_count"),
        (["so so so so so so"], "one word only, 'so'"),
        ([["a", 1] * 9], "both words and numbers"),
        ([["a", None] * 9], "None, which is not a word"),
        ([b"bytes"], "a sentence is bytes"),
        (7, "cannot be read from int"),
        ("nowhere.txt", "no file 'nowhere.txt'"),
        ([["a"], ["b"]] * 9, "has two words"),
    ],
)
@pytest.mark.parametrize("maker", [Word2Vec(quiet=True), GloVe(quiet=True)])
def test_text_without_use_is_refused_in_one_line(maker, source, words_):
    if isinstance(maker, GloVe) and "one word" in words_:
        pytest.skip("a word may be its own neighbor")
    with pytest.raises(BadInput, match=words_) as caught:
        clone(maker).fit(source)
    assert "\n" not in caught.value.render()


def test_a_damaged_text_file_is_refused(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"good \xff\xfe bad")
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"words " * 1000)[:-20])
    for name in ("a.txt", "b.txt.gz"):
        with pytest.raises(BadInput, match=name):
            Word2Vec(quiet=True).fit(tmp_path / name)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_divergence_stops_the_fit():
    with pytest.raises(NumericalStop, match="not finite"):
        Word2Vec(**SETTINGS, lr=1e30).fit(toy(300))


# ------------------------------------------------------------------------------------------------- counts


def test_counts_merge_from_many_runs(monkeypatch):
    draw = np.random.default_rng(5)
    V, window, text = 90, 6, draw.integers(0, 90, 4000).astype(np.int32)
    expected = np.zeros((V, V))
    for d in range(1, window + 1):
        np.add.at(expected, (text[:-d], text[d:]), 1 / d)
    expected = np.triu(expected + expected.T)
    monkeypatch.setattr(glove, "MEGABYTE", 1 << 12)  # 512 "megabytes" are then 2 MB, and 1 is 64 entries
    monkeypatch.setattr(glove, "count", lambda *args: real(*args[:3], 256))
    real = _count()
    parts = list(cooccurrence(text, V, window, memory=1))
    entries = np.concatenate(parts)
    assert len(parts) > 10 and (np.diff(entries["row"].astype(np.int64) * V + entries["column"]) > 0).all()
    got = np.zeros((V, V))
    got[entries["row"], entries["column"]] = entries["count"]
    np.testing.assert_allclose(got, expected, rtol=1e-9)


def _count():
    from sonde.kernels.words import count

    return count


def test_shuffled_cells_are_all_there_in_another_order_each_time():
    entries = np.zeros(1000, glove.ENTRY)
    entries["row"] = np.arange(1000)
    draw = np.random.default_rng(0)
    with ExitStack() as stack:
        cells = glove._Shuffled(150, stack)
        cells.fill([entries[:300], entries[300:]], draw)
        orders = [np.concatenate([part.row for part in cells.epoch(draw, block=64)]) for _ in range(2)]
        assert cells.entries == 1000 and len(cells.files) == 7
    assert all(sorted(order) == list(range(1000)) for order in orders) and not np.array_equal(*orders)


# ------------------------------------------------------------------------------------------------- questions


def test_nearest_words_are_those_of_a_plain_loop(table):
    x = table.vector("x")
    cosine = {w: float(v @ x / np.linalg.norm(v) / np.linalg.norm(x)) for w, v in zip(table.words, table.vectors)}
    expected = sorted((w for w in table.words if w != "x"), key=cosine.get, reverse=True)
    got = table.most_similar("x", top=5)
    assert [w for w, _ in got] == expected[:5]
    assert [c for _, c in got] == pytest.approx([cosine[w] for w in expected[:5]], abs=1e-6)
    assert len(table.most_similar("x", top=1000)) == 47 and table.most_similar("x", top=0) == []
    assert table.similarity("x", "of") == pytest.approx(cosine["of"], abs=1e-6)


def test_unknown_words_are_refused_with_the_nearest(fitted):
    for ask in (fitted.vectors_.vector, fitted.vectors_.most_similar, lambda word: fitted.vectors_.analogy("cat", word, "dog")):
        with pytest.raises(BadInput, match="'hrose' has no vector; did you mean 'horse'?"):
            ask("hrose")
    with pytest.raises(BadInput, match="rare or absent"):
        fitted.vectors_.vector("zzzzzz")
    with pytest.raises(BadInput, match="no words are given"):
        fitted.vectors_.most_similar([])
    assert "cat" in fitted.vectors_ and "hrose" not in fitted.vectors_ and len(fitted.vectors_) == 17


def test_a_word_has_one_vector():
    with pytest.raises(BadInput, match="'a' has two vectors"):
        WordVectors(["a", "b", "a"], np.zeros((3, 2)))
    with pytest.raises(BadInput, match="2 words"):
        WordVectors(["a", "b"], np.zeros((3, 2)))


def test_gensim_gives_the_same_answers(table, tmp_path):
    gensim = pytest.importorskip("gensim")
    theirs = gensim.models.KeyedVectors(7)
    theirs.add_vectors(list(table.words), table.vectors)
    for positive, negative in ((["x"], []), (["of", "the"], ["w3"]), (["w1", "w2", "w9"], ["x", "co-op"])):
        a, b = table.most_similar(positive, negative, 7), theirs.most_similar(positive, negative, 7)
        assert [w for w, _ in a] == [w for w, _ in b]
        assert [c for _, c in a] == pytest.approx([c for _, c in b], abs=1e-6)
    draw = np.random.default_rng(8)
    rated, questions = tmp_path / "rated.txt", tmp_path / "asked.txt"
    rated.write_text("".join(f"{a}\t{b}\t{draw.uniform(0, 10):.2f}\n" for a, b in draw.choice(table.words, (60, 2))) + "gone\tx\t3\n")
    ours, judged = table.rate(rated), theirs.evaluate_word_pairs(str(rated), case_insensitive=False)
    assert ours.spearman == pytest.approx(judged[1].statistic, abs=1e-9) and (ours.pairs, ours.missing) == (60, 1)
    rows = [draw.choice(table.words, 4, replace=False) for _ in range(80)]
    # Questions that have an answer: d is the word nearest to b - a + c.
    rows += [[a, b, c, table.analogy(a, b, c)[0][0]] for a, b, c, _ in rows[:30]]
    lines = [" ".join(row) for row in rows]
    questions.write_text("\n".join([": first", *lines[:50], ": second one", *lines[50:], "x of gone the"]))
    score, sections = theirs.evaluate_word_analogies(str(questions), case_insensitive=False, dummy4unknown=False)
    ours = table.answer(questions)
    assert ours.accuracy == pytest.approx(score) and ours.missing == 1 and 30 <= sum(r for r, _ in ours.groups.values()) < 40
    assert ours.groups == {
        s["section"].removeprefix(": "): (len(s["correct"]), len(s["correct"]) + len(s["incorrect"])) for s in sections[:-1]
    }


def test_judging_files_that_are_none(table, tmp_path):
    path = tmp_path / "odd.txt"
    for text, ask, words_ in (
        ("x of\n", table.rate, "line 1"),
        ("x of 3\nx of high", table.rate, "line 2"),
        ("gone away 3", table.rate, "0 have vectors"),
        (": a\nx of the", table.answer, "no four words in line 2"),
        ("gone away for ever", table.answer, "no question"),
    ):
        path.write_text(text)
        with pytest.raises(BadInput, match=words_):
            ask(path)


# ------------------------------------------------------------------------------------------------- files


@pytest.mark.parametrize("binary", [False, True])
def test_files_bring_back_every_bit(table, tmp_path, binary):
    path = tmp_path / "vectors"
    table.save(path, binary)
    for flag in (binary, None):
        back = WordVectors.load(path, flag)
        assert back.words == table.words and np.array_equal(back.vectors, table.vectors)
    assert os.listdir(tmp_path) == ["vectors"]


@pytest.mark.parametrize("binary", [False, True])
def test_gensim_reads_ours_and_we_read_theirs(table, tmp_path, binary):
    KeyedVectors = pytest.importorskip("gensim").models.KeyedVectors
    table.save(tmp_path / "ours", binary)
    theirs = KeyedVectors.load_word2vec_format(str(tmp_path / "ours"), binary=binary)
    assert tuple(theirs.index_to_key) == table.words and np.array_equal(theirs.vectors, table.vectors)
    theirs.save_word2vec_format(str(tmp_path / "theirs"), binary=binary)
    back = WordVectors.load(tmp_path / "theirs")
    assert back.words == table.words
    np.testing.assert_allclose(back.vectors, table.vectors, rtol=0 if binary else 1e-6)


def test_glove_text_has_no_first_line(tmp_path):
    path = tmp_path / "glove.txt"
    path.write_text("the 1 2.5\nof -1e-3 4\n")
    back = WordVectors.load(path)
    assert back.words == ("the", "of") and back.vectors.tolist() == [[1, 2.5], [np.float32(-1e-3), 4]]


@pytest.mark.parametrize("binary", [False, True])
def test_a_damaged_file_is_refused_in_one_line(table, tmp_path, binary):
    path, good = tmp_path / "vectors", tmp_path / "good"
    table.save(good, binary)
    data = good.read_bytes()
    nan = WordVectors(table.words, np.where(np.arange(7) == 3, np.nan, table.vectors).astype(np.float32))
    nan.save(tmp_path / "nan", binary)
    head = data.index(b"\n")
    spoilt = [data[: len(data) // 2], data[:-8], data.replace(b"48 7", b"49 7", 1), data.replace(b"48 7", b"48 8", 1)]
    spoilt += [b"", b"48 7\n", b"99999999999 7" + data[head:], data.replace("日本".encode(), b"\xff\xfe", 1), data + data[head + 1 :]]
    spoilt += [(tmp_path / "nan").read_bytes(), data.replace(b"\nw3 ", b"\nw4 ", 1) if binary else data.replace(b"w3 ", b"w4 ", 1)]
    for number, bad in enumerate(spoilt):
        path.write_bytes(bad)
        with pytest.raises(BadInput) as caught:
            WordVectors.load(path, binary)
        assert "\n" not in caught.value.render(), number
    with pytest.raises(BadInput, match="no file"):
        WordVectors.load(tmp_path / "absent")


@pytest.mark.parametrize("word", ["", "two words", "line\nbreak"])
def test_words_that_cannot_be_written_are_refused_before_anything_is(tmp_path, word):
    with pytest.raises(BadInput, match="cannot be saved"):
        WordVectors(["a", word], np.ones((2, 3), np.float32)).save(tmp_path / "x")
    assert not list(tmp_path.iterdir())


def test_real_ratings_prefer_real_vectors(fitted):
    """The sets of word pairs as they are: all read, and a toy language knows none of their words."""
    folder = os.path.join(os.environ.get("SONDE_DATA", ""), "word-vectors")
    if not os.path.isdir(folder):
        pytest.skip("no SONDE_DATA")
    draw = np.random.default_rng(0)
    sets = sorted(name for name in os.listdir(folder) if name.startswith("EN-"))
    for name in sets:
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            pairs = [line.split() for line in file if line.strip()]
        names = sorted({word.lower() for pair in pairs for word in pair[:2]})
        rated = WordVectors(names, draw.normal(size=(len(names), 5))).rate(os.path.join(folder, name))
        assert rated.pairs == len(pairs) and rated.missing == 0 and abs(rated.spearman) < 0.6
    assert len(sets) == 10
