"""Backpropagation line by line against numbers worked with pencil and paper, and against autograd."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from sonde.core.batch import Batch
from sonde.core.errors import BadInput
from sonde.core.reading import Subject
from sonde.lenses import backprop
from sonde.lenses.tools.tiny import images, values
from sonde.models.mlp import MLP


def rows(reading) -> dict[str, list[float]]:
    return {rule: [float(v) for v in text.split()] for rule, text in zip(reading.values["rule"], reading.values["values"], strict=True)}


def test_the_small_net_by_hand() -> None:
    """x = (2, 1): z = (0, 2), a = (1/2, s(2)), output 2 * 0.5 - s(2) + 0.5, target 1, loss half the square."""
    there, back = backprop.read(backprop.tiny())
    s = 1 / (1 + math.exp(-2))
    out = 1.5 - s
    delta = out - 1
    assert rows(there)["h1 = W h0 + b"] == [0, 2]
    assert rows(there)["h2 = sigmoid(h1)"] == pytest.approx([0.5, s], abs=1e-4)
    assert rows(there)["h3 = W h2 + b"] == pytest.approx([out], abs=1e-4)
    assert rows(there)["L(h3, y)"] == pytest.approx([delta**2 / 2], abs=1e-6)
    hidden = [2 * delta * 0.25, -delta * s * (1 - s)]
    wanted = {
        "δ3 = dL/dh3": [delta],
        "dL/dW = δ3 h2ᵀ": [delta * 0.5, delta * s],
        "dL/db = δ3": [delta],
        "δ2 = Wᵀ δ3": [2 * delta, -delta],
        "δ1 = sigmoid'(h1) * δ2": hidden,
        "dL/dW = δ1 h0ᵀ": [2 * hidden[0], hidden[0], 2 * hidden[1], hidden[1]],
        "dL/db = δ1": hidden,
        "δ0 = Wᵀ δ1": [0.5 * hidden[0] + hidden[1], -hidden[0] + 0.5 * hidden[1]],
    }
    assert list(rows(back)) == list(wanted)
    for rule, numbers in wanted.items():
        assert rows(back)[rule] == pytest.approx(numbers, abs=1e-4), rule


@pytest.mark.parametrize("make", [images, values])
def test_other_chains_equal_autograd(make) -> None:
    subject = make()
    for example in (0, 7):
        assert backprop.read(subject, example=example)[1].results["gap"] < 1e-6


def test_deltas_and_gradients_in_float64() -> None:
    torch.manual_seed(0)
    net = MLP((5, 7, 6, 3), activation="gelu", norm="layer").double()
    x, u = torch.randn(4, 5, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64)
    sent = backprop.backward(backprop.forward(net, x), u)
    ours = {f"{step.name}.{key}": gradient for step in sent for key, gradient in step.gradients.items()}
    theirs = torch.autograd.grad((net(x) * u).sum(), list(net.parameters()))
    for (name, _), gradient in zip(net.named_parameters(), theirs, strict=True):
        torch.testing.assert_close(ours[name], gradient, rtol=1e-10, atol=1e-10)


def test_what_is_no_chain_is_refused() -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(3, 3), nn.Linear(3, 1)

        def forward(self, x):
            return self.two(x + self.one(x))

    subject = values()
    subject.model = Residual()
    assert "do not form a chain" in backprop.why_not(subject)
    subject.model = nn.Embedding(4, 2)
    subject.batch = Batch(x=torch.arange(3), y=torch.ones(3, 2))
    assert backprop.why_not(Subject(None, None)) == "there is no model" and "floating-point" in backprop.why_not(subject)
    with pytest.raises(BadInput, match="there is no example 5"):
        backprop.read(backprop.tiny(), example=5)


@pytest.mark.parametrize("after", [lambda y, x: 2 * y, lambda y, x: y + x[:, :1], lambda y, x: y], ids=["scaled", "skipped", "before"])
def test_what_happens_around_the_layers_is_not_overlooked(after) -> None:
    class Surrounded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.bend, self.two = nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)

        def forward(self, x):
            return after(self.two(self.bend(self.one(x + 1))), x)

    subject = values()
    subject.model = Surrounded()
    assert "do not form a chain" in backprop.why_not(subject)


def test_weights_tied_between_two_layers_have_the_sum_of_both() -> None:
    torch.manual_seed(0)
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight = first.weight
    subject = values()
    subject.model = nn.Sequential(first, nn.Tanh(), second, nn.Tanh(), nn.Linear(3, 1))
    assert backprop.read(subject)[1].results["gap"] < 1e-6
