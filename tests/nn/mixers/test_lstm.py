"""The LSTM in every convention: torch's, and output gates that see the cell."""

from __future__ import annotations

import pytest
import torch

from sonde.nn.mixers.lstm import LSTM
from tests.nn.mixers.checks import check_all, runnable

KINDS = ["standard", "peephole", "cell_only"]


def spread(layer: LSTM) -> LSTM:
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return layer.double()


def test_standard_equals_torch() -> None:
    mine, theirs = spread(LSTM(7)), torch.nn.LSTM(7, 7, batch_first=True).double()
    with torch.no_grad():
        theirs.weight_ih_l0.copy_(mine.x.weight)
        theirs.weight_hh_l0.copy_(mine.h.weight)
        theirs.bias_ih_l0.copy_(mine.x.bias)
        theirs.bias_hh_l0.zero_()
    x = torch.randn(3, 11, 7, dtype=torch.float64)
    for form in runnable(mine):
        y, state = mine.use(form)(x)
        expected, (h, c) = theirs(x)
        torch.testing.assert_close([y, state["h"], state["c"]], [expected, h[0], c[0]])


@pytest.mark.parametrize("kind", KINDS)
def test_fused_equals_step_with_gradients(kind: str) -> None:
    layer = spread(LSTM(6, hidden=9, output_gate=kind))
    x = torch.randn(3, 8, 6, dtype=torch.float64, requires_grad=True)
    results = []
    for form in runnable(layer):
        y, state = layer.use(form)(x)
        loss = y.square().sum() + (state["h"] * state["c"]).sum()
        results.append([y, *state.values(), *torch.autograd.grad(loss, [x, *layer.parameters()])])
    for a, b in zip(results[0], results[-1]):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("kind", KINDS)
def test_every_convention_keeps_the_promises_of_a_mixer(kind: str) -> None:
    check_all(spread(LSTM(5, output_gate=kind)))


def test_a_peephole_of_zero_is_the_standard_gate() -> None:
    standard, peephole = spread(LSTM(6)), LSTM(6, output_gate="peephole").double()
    peephole.load_state_dict({**standard.state_dict(), "peephole": torch.zeros(6)})
    x = torch.randn(2, 9, 6, dtype=torch.float64)
    torch.testing.assert_close(peephole(x)[0], standard(x)[0])


def test_the_cell_only_gate_by_hand() -> None:
    """One step from nothing: c = s(p_i) tanh(p_g), o = s(U c + b), no input in it."""
    layer = spread(LSTM(3, output_gate="cell_only"))
    x = torch.randn(1, 1, 3, dtype=torch.float64)
    i, _, g = layer.x(x)[0, 0].chunk(3)
    c = torch.sigmoid(i) * torch.tanh(g)
    assert layer.cell is not None
    torch.testing.assert_close(layer(x)[0][0, 0], torch.sigmoid(layer.cell(c)) * torch.tanh(c))


def test_counts_by_convention() -> None:
    count = {kind: sum(p.numel() for p in LSTM(10, 20, kind).parameters()) - 200 for kind in KINDS}  # less the way back
    assert count == {"standard": 2480, "peephole": 2500, "cell_only": 2480 - 200 + 400}


def test_it_begins_by_remembering() -> None:
    assert LSTM(5).x.bias[5:10].eq(1).all() and LSTM(5).x.bias[:5].eq(0).all()
