"""The GRU in every convention: torch's, that of the notes, and the gates at their ends."""

from __future__ import annotations

import itertools

import pytest
import torch

from sonde.core.errors import BadInput
from sonde.nn.mixers import mixer
from sonde.nn.mixers.gru import GRU
from tests.nn.mixers.checks import check_all, runnable

CONVENTIONS = list(itertools.product(["keep_old", "take_new"], [False, True]))


def spread(layer: GRU, seed: int = 1) -> GRU:
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return layer.double()


def test_reset_after_equals_torch() -> None:
    mine, theirs = spread(GRU(7, reset_after=True)), torch.nn.GRU(7, 7, batch_first=True).double()
    assert mine.reset_bias is not None
    with torch.no_grad():
        theirs.weight_ih_l0.copy_(mine.x.weight)
        theirs.weight_hh_l0.copy_(mine.h.weight)
        theirs.bias_ih_l0.copy_(mine.x.bias)
        theirs.bias_hh_l0.copy_(torch.cat([torch.zeros(14), mine.reset_bias]))
    x = torch.randn(3, 11, 7, dtype=torch.float64)
    for form in runnable(mine):
        torch.testing.assert_close(mine.use(form)(x)[0], theirs(x)[0])


@pytest.mark.parametrize(("update", "after"), CONVENTIONS)
def test_fused_equals_step_with_gradients(update: str, after: bool) -> None:
    layer = spread(GRU(6, hidden=9, update=update, reset_after=after))
    x = torch.randn(3, 8, 6, dtype=torch.float64, requires_grad=True)
    results = []
    for form in runnable(layer):
        y, state = layer.use(form)(x)
        results.append([y, state["h"], *torch.autograd.grad(y.square().sum() + state["h"].sum(), [x, *layer.parameters()])])
    for a, b in zip(results[0], results[-1]):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(("update", "after"), CONVENTIONS)
def test_every_convention_keeps_the_promises_of_a_mixer(update: str, after: bool) -> None:
    check_all(spread(GRU(5, update=update, reset_after=after)))


@pytest.mark.parametrize("after", [False, True])
def test_the_two_updates_are_one_after_negating_that_gate(after: bool) -> None:
    keep, take = spread(GRU(6, reset_after=after)), spread(GRU(6, update="take_new", reset_after=after))
    with torch.no_grad():
        take.load_state_dict(keep.state_dict())
        for tensor in (take.x.weight, take.x.bias, take.h.weight):
            tensor[6:12] *= -1
    x = torch.randn(2, 9, 6, dtype=torch.float64)
    torch.testing.assert_close(keep(x)[0], take(x)[0])


def test_resets_differ() -> None:
    torch.manual_seed(0)
    before, after = GRU(6), GRU(6, reset_after=True)
    after.load_state_dict({**before.state_dict(), "reset_bias": torch.zeros(6)})
    x = torch.randn(2, 9, 6)
    assert float((before(x)[0] - after(x)[0]).detach().abs().max()) > 1e-2


def test_an_unknown_convention_is_refused() -> None:
    with pytest.raises(BadInput, match="option 'update'.*keep_old, take_new"):
        mixer("gru", 8, update="keep_new")
