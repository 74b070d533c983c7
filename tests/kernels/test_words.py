"""The kernels of word vectors against autograd and plain loops, in float64, and their promises about threads and seeds."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sonde.core.errors import BadInput
from sonde.estimators._word2vec_sampling import build_noise, build_tree, keep_probabilities
from sonde.kernels import available, why_not, words
from sonde.kernels.words import Counts, Pass, Rate, Side, Tally, Weighting, count, glove, rows, train

V, D = 23, 37
compiled = pytest.mark.skipif(not available(), reason=why_not() or "kernels serve")
forms = pytest.mark.parametrize("fast", [pytest.param(True, marks=compiled), False], ids=["kernel", "loops"])


@pytest.fixture
def text():
    """A text of 300 words in uneven sentences, some empty, some of one word."""
    draw = np.random.default_rng(0)
    tokens = np.minimum(draw.geometric(0.15, 300) - 1, V - 1).astype(np.int32)
    tokens[[0, 7, 8, 10, 60, 61, 140, 299]] = -1
    return tokens


def state(dtype=np.float64, seed=0):
    draw = np.random.default_rng(seed)
    both = [rows(V, D, dtype) for _ in range(2)]
    for x in both:
        x[:, :D] = draw.normal(size=(V, D)) / 3
    return both


def way(text, loss="negative", bag=False, window=3, sample=0.1, **more):
    counts = np.maximum(np.sort(np.bincount(text[text >= 0], minlength=V))[::-1], 1)
    return Pass(
        keep_probabilities(counts, sample), build_noise(counts, 4) if loss == "negative" else build_tree(counts), window, bag, **more
    )


def slowly(monkeypatch, fast):
    monkeypatch.setattr(words, "available", lambda: fast)


@compiled
@pytest.mark.parametrize("bag", [False, True], ids=["skip-gram", "cbow"])
@pytest.mark.parametrize("loss", ["negative", "hierarchical"])
@pytest.mark.parametrize("window", [1, 3, 11])
def test_kernel_equals_loops(monkeypatch, text, loss, bag, window):
    how = way(text, loss, bag, window, piece=64)
    got = []
    for fast in (True, False):
        slowly(monkeypatch, fast)
        inputs, outputs = state()
        tallies = [train(text, inputs, outputs, how, part, 12345, Rate(0.1, 0.013)) for part in (range(2), range(2, 5))]
        got.append((inputs, outputs, [(t.pairs, t.kept) for t in tallies], [t.loss for t in tallies]))
    for a, b in zip(got[0][:2], got[1][:2]):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-12)
    assert got[0][2] == got[1][2]
    np.testing.assert_allclose(got[0][3], got[1][3], rtol=1e-12)
    assert not got[0][0][:, D:].any() and not got[0][1][:, D:].any()


@compiled
def test_float32_is_near_float64(text):
    how = way(text)
    ends = []
    for dtype in (np.float32, np.float64):
        inputs, outputs = state(dtype)
        tally = train(text, inputs, outputs, how, range(how.pieces(text)), 5, Rate(0.05))
        ends.append((inputs, outputs, tally.loss))
    np.testing.assert_allclose(ends[0][0][:, :D], ends[1][0][:, :D], rtol=0, atol=2e-5)
    assert ends[0][2] == pytest.approx(ends[1][2], rel=1e-6)


@forms
@pytest.mark.parametrize("bag", [False, True], ids=["skip-gram", "cbow"])
@pytest.mark.parametrize("loss", ["negative", "hierarchical"])
def test_one_prediction_is_a_step_down_the_gradient_of_its_loss(monkeypatch, fast, bag, loss):
    """Two words, so that each center has one neighbor; the second center begins from what the first left."""
    slowly(monkeypatch, fast)
    counts = np.full(V, 5)
    answers = build_noise(counts, 4) if loss == "negative" else build_tree(counts)
    how = Pass(keep_probabilities(counts, 0), answers, 1, bag)
    text, seed, step = np.array([3, 9], np.int32), 77, 0.2
    inputs, outputs = state()
    wanted = [torch.tensor(x) for x in (inputs, outputs)]
    draw = words._Random(words._Random(seed)())
    questions = [words._ask(answers, 3, draw, V)]
    draw()  # the reach of the first center
    questions.append(words._ask(answers, 9, draw, V))
    total = 0.0
    for (row, sign), near in zip(questions, (9, 3)):
        leaves = [x.clone().requires_grad_() for x in wanted]
        score = leaves[1][row] @ leaves[0][near]
        nll = -torch.nn.functional.logsigmoid(torch.tensor(sign) * score).sum()
        gradients = torch.autograd.grad(nll, leaves)
        wanted = [x - step * g for x, g in zip(wanted, gradients)]
        total += nll.item()
    tally = train(text, inputs, outputs, how, range(1), seed, Rate(step))
    np.testing.assert_allclose(inputs, wanted[0], rtol=0, atol=1e-12)
    np.testing.assert_allclose(outputs, wanted[1], rtol=0, atol=1e-12)
    assert tally == Tally(pytest.approx(total, rel=1e-12), 2, 2)


@forms
def test_bag_gives_each_neighbor_the_whole_error_of_the_mean(monkeypatch, fast):
    """As word2vec has it: the exact gradient would be a third of it for three neighbors."""
    slowly(monkeypatch, fast)
    counts = np.full(V, 5)
    how = Pass(keep_probabilities(counts, 0), build_tree(counts), 1, True)
    inputs, outputs = state()
    before = inputs.copy()
    train(np.array([4, 11, 6], np.int32), inputs, outputs, how, range(1), 1, Rate(1e-3))
    # The center 11 moves both others alike; beyond that each is moved once as the only neighbor of an end.
    row, sign = words._ask(how.answers, 11, words._Random(0), V)
    x, out = before[[4, 6]].mean(0), state()[1]
    error = 1e-3 * (sign * (1 / (1 + np.exp(sign * (out[row] @ x))))) @ out[row]
    np.testing.assert_allclose(inputs[4] - before[4], error, rtol=0, atol=1e-5)  # the other steps changed `out` by about 1e-3


@compiled
def test_a_seed_gives_the_same_bits_and_another_other_ones(text):
    how = way(text)
    ends = []
    for seed in (3, 3, 4):
        inputs, outputs = state(np.float32)
        train(text, inputs, outputs, how, range(how.pieces(text)), seed, Rate(0.05))
        ends.append(inputs)
    assert np.array_equal(ends[0], ends[1]) and not np.array_equal(ends[0], ends[2])


@compiled
def test_threads_see_the_same_pairs(text):
    long = np.tile(text, 30)
    tallies = []
    for threads in (1, 3):
        how = way(text, threads=threads, piece=128)
        inputs, outputs = state(np.float32)
        tallies.append(train(long, inputs, outputs, how, range(how.pieces(long)), 3, Rate(0.01)))
    one, three = tallies
    assert (one.pairs, one.kept) == (three.pairs, three.kept)
    assert three.loss == pytest.approx(one.loss, rel=0.05)  # vectors are shared without locks


@compiled
def test_not_a_number_shows_in_the_loss(text):
    how = way(text)
    inputs, outputs = state()
    inputs[2, 1] = np.nan
    assert np.isnan(train(text, inputs, outputs, how, range(1), 3, Rate(0.05)).loss)


@compiled
def test_a_loss_of_any_size_is_told_as_it_is():
    counts = np.full(V, 5)
    how = Pass(keep_probabilities(counts, 0), build_tree(counts), 2, False)
    inputs, outputs = rows(V, D, np.float64), rows(V, D, np.float64)
    inputs[:, 0], outputs[:, 0] = 5.0, 5.0  # logits of 25: right or wrong by far
    tally = train(np.arange(V, dtype=np.int32), inputs, outputs, how, range(1), 3, Rate(0.0))
    labels = [words._ask(how.answers, w, words._Random(0), V)[1] for w in range(V)]
    draw, total = words._Random(words._Random(3)()), 0.0
    for i, sign in enumerate(labels):
        reach = 1 + ((draw() & 0xFFFFFFFF) * 2 >> 32)
        total += np.log1p(np.exp(-25 * sign)).sum() * (min(i, reach) + min(V - 1 - i, reach))
    assert tally.loss == pytest.approx(total, rel=1e-12)


def test_noise_is_drawn_in_proportion():
    counts = np.array([1000, 300, 50, 7, 1])
    table = build_noise(counts, 1)
    bits = np.random.default_rng(0).integers(0, 1 << 32, (2, 400_000), dtype=np.uint64)
    column = (bits[0] * 5 >> 32).astype(int)
    drawn = np.where(bits[1] < table.share[column], column, table.alias[column])
    expected = counts**0.75 / (counts**0.75).sum()
    np.testing.assert_allclose(np.bincount(drawn, minlength=5) / 400_000, expected, atol=0.003)
    exact = np.bincount(np.arange(5), table.share / 2**32 / 5, 5) + np.bincount(table.alias, (1 - table.share / 2**32) / 5, 5)
    np.testing.assert_allclose(exact, expected, atol=1e-8)


def test_tree_is_huffmans():
    counts = np.array([40, 30, 20, 10, 5, 5, 3])
    huffman = build_tree(counts)
    length = np.diff(huffman.first)
    assert sum(0.5**n for n in length) == 1  # a full binary tree
    # Merging by hand: 3+5=8, 5+8=13, 10+13=23, 20+23=43, 30+40=70, 43+70=113; their sum is the weighted path length.
    assert (length * counts).sum() == 8 + 13 + 23 + 43 + 70 + 113
    paths = [tuple(zip(huffman.node[a:b][::-1], huffman.label[a:b][::-1])) for a, b in zip(huffman.first, huffman.first[1:])]
    assert len(set(paths)) == 7 and {path[0][0] for path in paths} == {5} and set(huffman.node) == set(range(6))


def test_thinning_follows_its_formula():
    counts = np.array([5000, 100, 1])
    share = keep_probabilities(counts, 1e-2) / 0xFFFFFFFF
    f = counts / counts.sum()
    np.testing.assert_allclose(share, np.minimum((np.sqrt(f / 1e-2) + 1) * 1e-2 / f, 1), rtol=1e-6)
    assert (keep_probabilities(counts, 0) == 0xFFFFFFFF).all()


@forms
@pytest.mark.parametrize("capacity", [1 << 6, 1 << 12])
def test_counts_of_neighbors(monkeypatch, fast, capacity, text):
    slowly(monkeypatch, fast)
    window, wanted = 4, np.zeros((V, V))
    for a in range(len(text)):
        for b in range(a + 1, min(a + window, len(text) - 1) + 1):
            if (text[a : b + 1] >= 0).all():
                wanted[min(text[a], text[b]), max(text[a], text[b])] += 1 / (b - a)
    got, runs = np.zeros((V, V)), 0
    for pairs, weights in count(text, V, window, capacity):
        assert (np.diff(pairs) > 0).all() and len(pairs) < capacity
        np.add.at(got.reshape(-1), pairs, weights)
        runs += 1
    np.testing.assert_allclose(got, wanted, rtol=1e-12)
    assert (runs > 1) == (capacity == 64)


@forms
def test_a_window_too_wide_for_the_table_is_refused(monkeypatch, fast, text):
    slowly(monkeypatch, fast)
    assert list(count(text[:20], V, 32, 64))
    for window in (33, 40):
        with pytest.raises(BadInput, match=f"a window of {window} words.*use a capacity of 128 or more"):
            next(iter(count(text[:20], V, window, 64)))


@forms
def test_glove_is_adagrad_on_its_loss(monkeypatch, fast):
    slowly(monkeypatch, fast)
    draw, weighting, lr = np.random.default_rng(1), Weighting(most=8.0), 0.05
    counts = Counts(*(np.array(x, np.int32) for x in ([0, 2, 5, 2], [4, 2, 9, 8])), np.array([3.0, 40.0, 0.5, 8.0]))
    left, right = (Side(rows(V, D, np.float64), draw.normal(size=V)) for _ in range(2))
    for side in (left, right):
        side.vectors[:, :D] = draw.normal(size=(V, D)) / 5
    leaves = [torch.tensor(x, requires_grad=True) for x in (left.vectors, right.vectors, left.bias, right.bias)]
    squares = [torch.ones_like(leaf) for leaf in leaves]
    total = 0.0
    for i, j, x in [(0, 4, 3.0), (4, 0, 3.0), (2, 2, 40.0), (5, 9, 0.5), (9, 5, 0.5), (2, 8, 8.0), (8, 2, 8.0)]:
        gap = leaves[0][i] @ leaves[1][j] + leaves[2][i] + leaves[3][j] - np.log(x)
        loss = min(1.0, (x / 8.0) ** 0.75) * gap**2
        total += loss.item()
        gradients = torch.autograd.grad(loss / 2, leaves)
        with torch.no_grad():
            for leaf, g, sum_ in zip(leaves, gradients, squares):
                leaf -= lr * g / sum_.sqrt()  # as published, by the sum before this square is added
                sum_ += g * g
    assert glove(counts, left, right, weighting, lr) == pytest.approx(total, rel=1e-12)
    for got, leaf in zip((left.vectors, right.vectors, left.bias, right.bias), leaves):
        np.testing.assert_allclose(got, leaf.detach(), rtol=0, atol=1e-12)
    np.testing.assert_allclose(left.squares, squares[0], rtol=0, atol=1e-12)
    assert counts.cells() == 7


def test_rows_lie_on_cache_lines():
    for dtype, width, padded in ((np.float32, 100, 112), (np.float64, 100, 104), (np.float32, 1, 16)):
        x = rows(5, width, dtype)
        assert x.shape == (5, padded) and x.ctypes.data % 64 == 0 and not x.any()
