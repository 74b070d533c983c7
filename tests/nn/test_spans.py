"""Stretches of a batch: found in lengths, masks and bounds, run in groups of similar length, put back where they were."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import Tensor

from sonde.core.errors import BadInput
from sonde.nn.spans import Spans, State


def places(spans: Spans) -> list[tuple[int, int, int]]:
    return list(zip(spans.row.tolist(), spans.start.tolist(), spans.stop.tolist()))


def summed(x: Tensor, state: State | None, lengths: Tensor) -> tuple[Tensor, State]:
    """A mixer a child can check: running sums, and the last one is the state."""
    alive = torch.arange(x.shape[1]) < lengths.unsqueeze(1)
    before = x.new_zeros(len(x), x.shape[2]) if state is None else state["sum"]
    y = torch.where(alive.unsqueeze(-1), x, 0).cumsum(1) + before.unsqueeze(1)
    return y, {"sum": torch.where((lengths > 0).unsqueeze(-1), y[:, -1], before), "seen": lengths}


def test_where_the_stretches_are() -> None:
    assert places(Spans.of_lengths(torch.tensor([3, 0, 2]))) == [(0, 0, 3), (1, 0, 0), (2, 0, 2)]
    assert places(Spans.of_bounds(torch.tensor([0, 2, 2, 5]))) == [(0, 0, 2), (0, 2, 2), (0, 2, 5)]
    mask = torch.tensor([[0, 1, 1], [1, 1, 0], [1, 1, 1], [0, 0, 0]])
    assert places(Spans.of_mask(mask)) == [(0, 1, 3), (1, 0, 2), (2, 0, 3), (3, 0, 0)]
    assert Spans.of_mask(mask).lengths.tolist() == [2, 2, 3, 0] and len(Spans.of_mask(mask)) == 4


@given(st.lists(st.integers(0, 9), min_size=1, max_size=12), st.sampled_from(["right", "left", "packed"]))
def test_each_stretch_alone(sizes: list[int], how: str) -> None:
    n, longest = torch.tensor(sizes), max(max(sizes), 1)
    if how == "packed":
        spans, x = Spans.of_bounds(torch.cat([torch.zeros(1, dtype=torch.long), n.cumsum(0)])), torch.rand(1, sum(sizes) + 2, 3)
    else:
        x = torch.rand(len(n), longest, 3)
        spans = Spans.of_lengths(n) if how == "right" else Spans.of_mask(torch.arange(longest) >= longest - n.unsqueeze(1))
    initial = {"sum": torch.rand(len(n), 3), "seen": n}
    y, state = spans.apply(summed, x, initial)
    for i, (row, start, stop) in enumerate(places(spans)):
        expected = x[row, start:stop].cumsum(0) + initial["sum"][i]
        torch.testing.assert_close(y[row, start:stop], expected)
        torch.testing.assert_close(state["sum"][i], expected[-1] if stop > start else initial["sum"][i])
        y[row, start:stop] = 0
    assert not y.any() and state["seen"].tolist() == sizes


@given(st.lists(st.integers(0, 300), min_size=1, max_size=30))
def test_groups_are_at_most_half_padding(sizes: list[int]) -> None:
    spans = Spans.of_lengths(torch.tensor(sizes))
    groups = [which.tolist() for which in spans._groups()]
    assert sorted(i for group in groups for i in group) == list(range(len(sizes)))
    for group in groups:
        inside = [sizes[i] for i in group]
        assert max(inside) <= 1 or max(inside) <= 2 * min(inside)
    assert len(groups) <= 10  # powers of two up to 300, not one for each sequence


def test_states_of_different_size_are_filled_up() -> None:
    """A cache grows with its sequence: joined, the shorter ones end in zeros."""
    x = torch.rand(3, 8, 2)

    def cache(x: Tensor, _: State | None, lengths: Tensor) -> tuple[Tensor, State]:
        return x, {"cache": x}

    _, state = Spans.of_lengths(torch.tensor([3, 8, 1])).apply(cache, x)
    assert state["cache"].shape == (3, 8, 2)
    assert torch.equal(state["cache"][1], x[1]) and torch.equal(state["cache"][0, :3], x[0, :3])
    assert not state["cache"][0, 3:].any() and not state["cache"][2, 1:].any()


def test_gradients_reach_inputs_and_states_and_nothing_between() -> None:
    x, first = torch.rand(2, 4, 3, dtype=torch.float64, requires_grad=True), torch.rand(2, 3, dtype=torch.float64, requires_grad=True)
    spans = Spans.of_lengths(torch.tensor([1, 4]))

    def run(x: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        y, state = spans.apply(summed, x, {"sum": first})
        return y, state["sum"]

    assert torch.autograd.gradcheck(run, (x, first))
    (dx,) = torch.autograd.grad(run(x, first)[0].sum(), x)
    assert not dx[0, 1:].any() and dx[1].all()


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: Spans.of_lengths(torch.tensor([[1]])), "one whole number >= 0 for each row"),
        (lambda: Spans.of_lengths(torch.tensor([1, -1])), "one whole number >= 0 for each row"),
        (lambda: Spans.of_lengths(torch.tensor([1.0])), "one whole number >= 0 for each row"),
        (lambda: Spans.of_mask(torch.ones(3)), r"a padding mask is \(batch, time\), not \(3,\)"),
        (lambda: Spans.of_mask(torch.tensor([[1, 1, 1], [1, 0, 1]])), "row 1 of the mask has padding in the middle.*left or on the right"),
        (lambda: Spans.of_bounds(torch.tensor([0, 4, 3])), r"never fall, not \[0, 4, 3\].*give 0, n1, n1 \+ n2"),
        (lambda: Spans.of_bounds(torch.tensor([1, 4])), "begin at 0"),
        (lambda: Spans.of_bounds(torch.tensor([0])), "two or more"),
        (lambda: Spans.of_bounds(torch.tensor([0.0, 1.0])), "whole numbers"),
    ],
)
def test_what_is_no_layout_is_refused(make, message: str) -> None:
    with pytest.raises(BadInput, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_a_batch_that_does_not_fit_is_named_by_its_axis() -> None:
    with pytest.raises(BadInput, match=r"x has 2 rows, packed documents lie in one row \(axis 0 \(batch\)\); make x \(1, time, width\)"):
        Spans.of_bounds(torch.tensor([0, 3])).apply(summed, torch.rand(2, 3, 1))
    with pytest.raises(BadInput, match=r"x has 3 rows, the spans are for 2 rows"):
        Spans.of_lengths(torch.tensor([1, 2])).apply(summed, torch.rand(3, 3, 1))
    with pytest.raises(BadInput, match=r"a span ends at 4, x has 3 tokens \(axis 1 \(time\)\)"):
        Spans.of_lengths(torch.tensor([1, 4])).apply(summed, torch.rand(2, 3, 1))
    with pytest.raises(BadInput, match=r"state 'sum' is for 3 sequences, not 2 \(axis 0 \(batch\)\)"):
        Spans.of_lengths(torch.tensor([1, 2])).apply(summed, torch.rand(2, 3, 1), {"sum": torch.rand(3, 1)})
