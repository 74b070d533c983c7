"""Terms: sums and counts add exactly, so any way to cut a batch gives the loss of the whole."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sonde.core.terms import Term, Terms


def squares(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> Terms:
    """Half squared error with a penalty on the outputs that not every example takes part in."""
    out = model(x).squeeze(-1)
    large = y > 0
    return Terms(nll=((out - y).square().sum() / 2, len(y)), penalty=(out[large].abs().sum(), large.sum(), 0.1))


@given(st.lists(st.integers(0, 13), max_size=4))
def test_uneven_shards_give_loss_and_gradient_of_the_whole(cuts: list[int]) -> None:
    """The authority is torch's own mean losses over the whole batch; some shards are empty."""
    torch.manual_seed(1)
    x, y = torch.randn(13, 3, dtype=torch.float64), torch.randn(13, dtype=torch.float64)
    model = torch.nn.Linear(3, 1).double()
    out = model(x).squeeze(-1)
    whole = torch.nn.functional.mse_loss(out, y) / 2 + 0.1 * torch.nn.functional.l1_loss(out[y > 0], torch.zeros_like(out[y > 0]))
    expected = torch.autograd.grad(whole, list(model.parameters()))

    edges = [0, *sorted(cuts), 13]
    shards = [squares(model, x[a:b], y[a:b]) for a, b in zip(edges, edges[1:], strict=False)]
    total = shards[0]
    for shard in shards[1:]:
        total = total + shard
    counts = total.counts()
    assert counts == {"nll": 13.0, "penalty": float((y > 0).sum())}
    loss = sum(shard.loss(counts) for shard in shards)
    torch.testing.assert_close(loss, whole, rtol=1e-12, atol=0)
    torch.testing.assert_close(total.loss(), whole, rtol=1e-12, atol=0)
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    torch.testing.assert_close(gradients, expected, rtol=1e-11, atol=1e-13)


def test_hand_worked_numbers() -> None:
    terms = Terms(nll=(torch.tensor(6.0), 4), penalty=(torch.tensor(10.0), 5, 0.25))
    assert terms.means() == {"nll": 1.5, "penalty": 2.0}
    assert terms.loss().item() == 1.5 + 0.25 * 2.0
    assert terms.loss({"nll": 8, "penalty": 10}).item() == 0.75 + 0.25


def test_adding_keeps_names_that_stand_on_one_side() -> None:
    both = Terms(a=(torch.tensor(1.0), 2)) + Terms(a=(torch.tensor(3.0), 5), b=(torch.tensor(7.0), 1, 0.5))
    assert {name: (float(t.sum), t.count, t.weight) for name, t in both.items()} == {"a": (4.0, 7, 1.0), "b": (7.0, 1, 0.5)}
    assert list(both) == ["a", "b"] and len(both) == 2


def test_nothing_counted_is_not_a_number_in_a_report_and_nothing_in_a_loss() -> None:
    empty = Terms(nll=(torch.zeros(()), 0))
    assert math.isnan(empty.means()["nll"]) and empty.loss().item() == 0.0
    assert Terms().loss().item() == 0.0


def test_a_term_of_weight_zero_is_reported_but_does_not_pull() -> None:
    w = torch.tensor(2.0, requires_grad=True)
    terms = Terms(nll=(w * 3, 1), shown=(w * 100, 1, 0.0))
    terms.loss().backward()
    assert w.grad == 3.0 and terms.means()["shown"] == 200.0


def test_detach_lets_go_of_the_graph() -> None:
    w = torch.tensor(2.0, requires_grad=True)
    term = Terms(nll=(w * 3, 2, 0.5)).detach()["nll"]
    assert isinstance(term, Term) and not term.sum.requires_grad and (term.count, term.weight) == (2, 0.5)


def test_repr_and_missing_counts() -> None:
    terms = Terms(nll=(torch.tensor(6.0), 4))
    assert repr(terms) == "Terms(nll=6/4)"
    with pytest.raises(KeyError):
        terms.loss({"other": 1})
