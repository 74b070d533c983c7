"""Data order: every example once an epoch, a pure function of (seed, step)."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sonde.core.errors import BadInput, DataUnusable
from sonde.core.seeds import key
from sonde.data.order import Order

sizes = st.integers(1, 97)


@given(n=sizes, batch_size=sizes, seed=st.integers(0, 2**40), epoch=st.integers(0, 5), shuffle=st.booleans())
def test_each_index_exactly_once_an_epoch(n: int, batch_size: int, seed: int, epoch: int, shuffle: bool) -> None:
    order = Order(n, batch_size, seed, shuffle)
    first = epoch * order.steps_per_epoch
    batches = [order.at(first + i) for i in range(order.steps_per_epoch)]
    assert sorted(torch.cat(batches).tolist()) == list(range(n))
    assert [len(b) for b in batches[:-1]] == [batch_size] * (len(batches) - 1) and 1 <= len(batches[-1]) <= batch_size
    assert all(b.dtype == torch.int64 for b in batches)


@given(n=sizes, batch_size=sizes, seed=st.integers(0, 9))
def test_dropping_the_last_gives_whole_batches_only(n: int, batch_size: int, seed: int) -> None:
    if n < batch_size:
        with pytest.raises(BadInput, match="drop_last"):
            Order(n, batch_size, seed, drop_last=True)
        return
    order = Order(n, batch_size, seed, drop_last=True)
    seen = torch.cat([order.at(i) for i in range(order.steps_per_epoch)])
    assert len(seen) == n // batch_size * batch_size == len(seen.unique())


@given(steps=st.lists(st.integers(0, 60), min_size=1, max_size=8))
def test_a_step_depends_on_nothing_before_it(steps: list[int]) -> None:
    walked = Order(23, 5, seed=3)
    for step in steps:
        assert torch.equal(walked.at(step), Order(23, 5, seed=3).at(step))


def test_the_permutation_is_that_of_torch_with_the_derived_key() -> None:
    order = Order(11, 4, seed=7)
    expected = torch.randperm(11, generator=torch.Generator().manual_seed(key(7, "order", 2)))
    assert torch.equal(order.at(2 * 3 + 1), expected[4:8])
    assert order.steps_per_epoch == 3


def test_epochs_and_seeds_differ_and_unshuffled_is_in_order() -> None:
    order, other = Order(50, 50, seed=1), Order(50, 50, seed=2)
    assert not torch.equal(order.at(0), order.at(1)) and not torch.equal(order.at(0), other.at(0))
    plain = Order(5, 2, seed=1, shuffle=False)
    assert [plain.at(i).tolist() for i in range(4)] == [[0, 1], [2, 3], [4], [0, 1]]


def test_nothing_to_order_is_said_clearly() -> None:
    with pytest.raises(DataUnusable, match="no examples"):
        Order(0, 4, seed=0)
