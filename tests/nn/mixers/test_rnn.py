"""The vanilla RNN against torch's, and its options."""

from __future__ import annotations

import pytest
import torch

from sonde.nn.mixers.rnn import RNN
from tests.nn.mixers.checks import check_all, runnable


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_equals_torch(activation: str) -> None:
    torch.manual_seed(0)
    mine, theirs = RNN(7, activation=activation).double(), torch.nn.RNN(7, 7, nonlinearity=activation, batch_first=True).double()
    with torch.no_grad():
        theirs.weight_ih_l0.copy_(mine.x.weight)
        theirs.weight_hh_l0.copy_(mine.h.weight)
        theirs.bias_ih_l0.copy_(mine.x.bias.uniform_(-1, 1))
        theirs.bias_hh_l0.zero_()
    x = torch.randn(3, 11, 7, dtype=torch.float64)
    for form in runnable(mine):
        torch.testing.assert_close(mine.use(form)(x)[0], theirs(x)[0])


def test_relu_keeps_the_promises_of_a_mixer() -> None:
    check_all(RNN(5, activation="relu").double())


def test_a_state_of_its_own_width_is_led_back() -> None:
    mine = RNN(6, hidden=10)
    y, state = mine(torch.randn(2, 4, 6))
    assert y.shape == (2, 4, 6) and state["h"].shape == (2, 10)
    assert RNN(6).out is None  # the state is the output


def test_recurrent_weights_begin_as_turns() -> None:
    W = RNN(9).h.weight
    torch.testing.assert_close(W @ W.mT, torch.eye(9))
