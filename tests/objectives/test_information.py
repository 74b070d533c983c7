"""Entropy, divergence and codes against SciPy, torch's formulas and hand-worked numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import distributions as D

from sonde.core.errors import BadInput
from sonde.objectives.information.codes import decode, encode, huffman, mean_length
from sonde.objectives.information.measures import cross_entropy, empirical, entropy, kl, nats_per_unit, probabilities, surprise

P, Q = [0.5, 0.25, 0.25], [1 / 3, 1 / 3, 1 / 3]
weights = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=9)


def test_hand_worked_numbers():
    assert float(entropy(P, "bits")) == 1.5
    assert float(cross_entropy(P, Q, "bits")) == pytest.approx(math.log2(3), rel=1e-15)
    assert float(kl(P, Q, "bits")) == pytest.approx(0.08496, abs=5e-6)
    assert float(kl(Q, P, "bits")) == float(kl(P, Q, 2, "reverse")) == pytest.approx(0.08170, abs=5e-6)
    assert surprise(P, 2).tolist() == [1, 2, 2]
    assert [nats_per_unit("nats"), nats_per_unit("bits"), nats_per_unit(10)] == [1, math.log(2), math.log(10)]


@given(weights, st.sampled_from(["nats", "bits", 3, 10.0]), st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=60)
def test_equals_scipy(raw, base, random):
    p = np.array(raw) / sum(raw)
    q = np.array(random.sample(raw, len(raw))) / sum(raw)
    number = {"nats": math.e, "bits": 2}.get(base, base)
    assert float(entropy(p, base)) == pytest.approx(stats.entropy(p, base=number), abs=1e-12)
    assert float(kl(p, q, base)) == pytest.approx(stats.entropy(p, q, base=number), abs=1e-9)
    assert float(kl(p, q, base)) >= -1e-12 and abs(float(kl(p, p, base))) < 1e-12
    assert float(cross_entropy(p, q, base)) == pytest.approx(stats.entropy(p, base=number) + stats.entropy(p, q, base=number), abs=1e-9)


def test_tables_stand_side_by_side():
    p = torch.tensor([P, Q], dtype=torch.float64)
    torch.testing.assert_close(kl(p, Q), torch.tensor([stats.entropy(P, Q), 0.0], dtype=torch.float64))
    assert entropy(p).shape == (2,)


def test_zeros():
    assert float(entropy([1.0, 0.0])) == 0
    assert float(kl([1.0, 0.0], [0.5, 0.5], "bits")) == 1
    assert float(kl([0.5, 0.5], [1.0, 0.0])) == math.inf
    q = torch.tensor([0.5, 0.5, 0.0], requires_grad=True)
    cross_entropy(torch.tensor([0.25, 0.75, 0.0]), q).backward()
    assert q.grad.tolist() == [-0.5, -1.5, 0.0]


@given(st.lists(st.floats(0.01, 1), min_size=2, max_size=9), st.integers(0, 2**30))
@settings(deadline=None, max_examples=100)
def test_no_divergence_is_below_0_however_close_the_tables(raw, seed):
    p = np.array(raw) / sum(raw)
    q = p * (1 + np.random.default_rng(seed).uniform(-1, 1, len(p)) * 10.0 ** -(seed % 17))
    q /= q.sum()
    divergence = float(kl(p, q))
    assert divergence >= 0 and divergence == pytest.approx(stats.entropy(p, q), rel=1e-9, abs=1e-15)


def test_gradients_of_probabilities_that_are_0():
    """dH/dz_k = -p_k (log p_k + H) and dKL(p, q)/dz_k = p_k (log p_k/q_k - KL) for p = softmax(z): 0 where p is 0 or 1."""
    for measure in (entropy, lambda p: kl(p, [0.5, 0.25, 0.25])):
        z = torch.tensor([1000.0, 0.0, -5.0], dtype=torch.float64, requires_grad=True)
        measure(torch.softmax(z, 0)).backward()
        assert z.grad.tolist() == [0, 0, 0]
    z = torch.tensor([1.0, 0.0, -1000.0], dtype=torch.float64, requires_grad=True)
    p, q = torch.softmax(z, 0), torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64)
    a, b = p.detach().numpy()[:2], q.numpy()[:2]
    for measure, expected in (
        (entropy(p), -a * (np.log(a) + stats.entropy(a))),
        (kl(p, q), a * (np.log(a / b) - (a * np.log(a / b)).sum())),
    ):
        np.testing.assert_allclose(torch.autograd.grad(measure, z, retain_graph=True)[0], [*expected, 0.0], atol=1e-12)


def test_distributions():
    p, q = D.Normal(torch.tensor(0.0), torch.tensor(1.0)), D.Normal(torch.tensor(1.0), torch.tensor(2.0))
    # log(s2/s1) + (s1^2 + (m1 - m2)^2) / 2 s2^2 - 1/2
    assert float(kl(p, q)) == pytest.approx(math.log(2) + 2 / 8 - 0.5, rel=1e-6)
    assert float(kl(p, q, "bits", "reverse")) == pytest.approx((-math.log(2) + 5 / 2 - 0.5) / math.log(2), rel=1e-6)
    assert float(entropy(p)) == pytest.approx(stats.norm.entropy(), rel=1e-6)
    assert float(cross_entropy(p, q)) == pytest.approx(float(entropy(p) + kl(p, q)), rel=1e-6)
    with pytest.raises(BadInput, match="no formula for KL"):
        kl(p, D.Cauchy(torch.tensor(0.0), torch.tensor(1.0)))
    with pytest.raises(BadInput, match="two tables or two distributions"):
        kl(p, P)


def test_empirical_shares_sum_to_one():
    assert empirical([0, 2, 2, 1, 2]).tolist() == [0.2, 0.2, 0.6]
    assert empirical(torch.tensor([1, 1]), size=4).tolist() == [0, 1, 0, 0]
    for bad in ([], [0.5], [-1, 0], [[0]]):
        with pytest.raises(BadInput, match="integers"):
            empirical(bad)
    with pytest.raises(BadInput, match="outcome 3 is not one of 2"):
        empirical([0, 3], size=2)


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: probabilities([0.5, 0.6]), "sum to 1, not 1.1"),
        (lambda: probabilities([[0.5, 0.5], [0.2, 0.2]]), "not 0.4 at 1"),
        (lambda: probabilities([-0.1, 1.1]), ">= 0, not -0.1 at 0"),
        (lambda: probabilities([0.0, 1.0], positive=True), "> 0, not 0 at 0"),
        (lambda: probabilities([float("nan"), 1.0]), "finite, not nan at 0"),
        (lambda: probabilities([]), "axis of outcomes"),
        (lambda: probabilities([[0.5], [0.2, 0.8]]), "regular table"),
        (lambda: kl(P, [0.5, 0.5]), "3 outcomes against 2"),
        (lambda: entropy(P, "bit"), "did you mean 'bits'"),
        (lambda: surprise([1.0, 0.0]), "> 0, not 0 at 1"),
        (lambda: huffman({}), "nothing to code"),
        (lambda: huffman([1.0, 0.0]), "symbol 1 has the weight 0.0"),
        (lambda: mean_length(P, [1, 2]), "2 lengths"),
        (lambda: encode("abc", {"a": "0", "b": "1"}), "symbol 'c' at 2"),
        (lambda: decode("01", {"a": "0", "b": "11"}), "ends inside a word"),
    ],
)
def test_bad_input_is_named(call, words):
    with pytest.raises(BadInput, match=words):
        call()


def test_float32_tables_may_be_off_by_rounding():
    assert float(entropy(torch.softmax(torch.randn(5, 1000, generator=torch.Generator().manual_seed(0)), -1)).sum()) > 0


def test_huffman_by_hand():
    assert huffman({"a": 0.5, "b": 0.25, "c": 0.25}) == {"a": "0", "b": "10", "c": "11"}
    # Cormen's six letters: lengths 1, 3, 3, 3, 4, 4, and 224 bits for a hundred.
    code = huffman({"a": 45, "b": 13, "c": 12, "d": 16, "e": 9, "f": 5})
    assert [len(code[letter]) for letter in "abcdef"] == [1, 3, 3, 3, 4, 4]
    assert huffman({"only": 3}) == {"only": "0"}
    assert sorted(huffman([1, 1, 1, 1], letters=3).values(), key=len) in (
        ["0", "1", "20", "21"],
        ["1", "2", "00", "01"],
        ["2", "0", "10", "11"],
    )


@given(weights, st.integers(2, 5))
@settings(deadline=None, max_examples=60)
def test_a_code_can_be_read_and_is_within_a_letter_of_the_entropy(raw, letters):
    p = np.array(raw) / sum(raw)
    code = huffman(raw, letters)
    words = list(code.values())
    assert not any(a != b and b.startswith(a) for a in words for b in words) and len(set(words)) == len(words)
    assert sum(letters ** -len(word) for word in words) <= 1 + 1e-12
    length, floor = mean_length(p, map(len, words)), stats.entropy(p, base=letters)
    assert floor - 1e-9 <= length <= max(floor + 1, 1)
    message = list(range(len(raw))) * 2
    assert decode(encode(message, code), code) == message
