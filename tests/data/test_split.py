"""Splits: disjoint and complete for any numbers, fair to each class, weights as in scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.model_selection import StratifiedShuffleSplit
from sklearn.utils.class_weight import compute_class_weight

from sonde.core.errors import BadInput
from sonde.data.split import apportion, check_labels, class_weights, split

part = st.one_of(st.integers(0, 40), st.floats(0, 0.6))


@given(n=st.integers(1, 200), valid=part, test=part, seed=st.integers(0, 99), classes=st.integers(0, 7))
def test_splits_are_disjoint_and_complete(n: int, valid: float, test: float, seed: int, classes: int) -> None:
    labels = torch.randint(0, classes, (n,), generator=torch.Generator().manual_seed(seed)) if classes else None
    try:
        parts = split(n, valid, test, seed, labels)
    except BadInput:
        return
    assert sorted(torch.cat(parts).tolist()) == list(range(n))
    assert len(parts[0]) >= 1
    for size, got in ((valid, parts[1]), (test, parts[2])):
        assert len(got) == (size if isinstance(size, int) else max(1, round(n * size)) if size else 0)
        assert torch.equal(got, got.sort().values)


@given(sizes=st.lists(st.integers(0, 50), min_size=1, max_size=8), share=st.floats(0, 1))
def test_seats_are_within_one_of_the_fair_share(sizes: list[int], share: float) -> None:
    total = int(share * sum(sizes))
    seats = apportion(total, sizes)
    assert sum(seats) == total
    for seat, size in zip(seats, sizes, strict=True):
        assert 0 <= seat <= size and abs(seat - total * size / max(1, sum(sizes))) < 1


def test_class_shares_equal_those_of_scikit_learn() -> None:
    labels = torch.tensor([0] * 70 + [1] * 20 + [2] * 10)
    _, _, test = split(100, 0, 0.3, seed=5, labels=labels)
    (_, theirs) = next(StratifiedShuffleSplit(1, test_size=0.3, random_state=5).split(np.zeros(100), labels.numpy()))
    assert torch.bincount(labels[test]).tolist() == np.bincount(labels.numpy()[theirs]).tolist() == [21, 6, 3]


def test_same_seed_same_split_and_another_seed_another() -> None:
    first, again, other = split(50, 9, 7, seed=1), split(50, 9, 7, seed=1), split(50, 9, 7, seed=2)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True)) and not torch.equal(first[2], other[2])


@pytest.mark.parametrize("valid, test", [(5, 5), (0.5, 0.5), (1.0, 0), (-1, 0), (float("nan"), 0), (True, 0), ("a", 0), (11, 0)])
def test_impossible_parts_are_refused(valid: float, test: float) -> None:
    with pytest.raises(BadInput):
        split(10, valid, test)


def test_class_weights_equal_those_of_scikit_learn() -> None:
    labels = torch.tensor([0, 2, 2, 1, 2, 0, 2])
    expected = compute_class_weight("balanced", classes=np.arange(3), y=labels.numpy())
    np.testing.assert_allclose(class_weights(labels, 3), expected, rtol=1e-6)
    with pytest.raises(BadInput, match="1 of 3 classes have no example to weigh: dog"):
        class_weights(torch.tensor([0, 1, 0]), ["ant", "bee", "dog"])


def test_labels_out_of_range_are_counted_and_named() -> None:
    with pytest.raises(BadInput, match=r"3 of 5 labels are outside 0 to 2: -1 \(1 times\), 3 \(2 times\) \(rows, first at example 1\)"):
        check_labels(torch.tensor([0, 3, -1, 3, 2]), ["a", "b", "c"], "rows")
