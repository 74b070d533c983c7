"""The lens on activations, against slopes worked out with NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from sonde.core.batch import Batch
from sonde.core.errors import BadInput
from sonde.core.reading import Subject
from sonde.lenses import activations
from sonde.models.mlp import MLP


def test_slopes_by_hand():
    layers = nn.Sequential(nn.Linear(3, 4), nn.Sigmoid(), nn.Linear(4, 5), nn.ReLU(inplace=True), nn.Linear(5, 2))
    with torch.no_grad():
        layers[0].weight.mul_(20)
        layers[2].bias[1] = -100  # this unit answers to nothing
        layers[2].bias[3] = 100
    x = torch.randn(17, 3)
    reading = activations.read(Subject(layers, Batch(x=x)))
    w1, b1, w2, b2 = (p.detach().numpy().astype(float) for p in list(layers.parameters())[:4])
    s = 1 / (1 + np.exp(-(x.numpy() @ w1.T + b1)))
    above = s @ w2.T + b2 > 0
    assert reading.labels == ["1 Sigmoid", "3 ReLU"]
    np.testing.assert_allclose(reading.values["mean slope"], [(s * (1 - s)).mean(), above.mean()], rtol=1e-4)
    np.testing.assert_allclose(reading.values["flat"], [(s * (1 - s) <= 0.01 * 0.25).mean(), (~above).mean()], atol=1e-6)
    np.testing.assert_allclose(reading.values["dead units"], [(s * (1 - s) <= 0.0025).all(0).mean(), (~above).all(0).mean()], atol=1e-6)
    assert reading.values["dead units"][1] >= 0.2 and "3 ReLU" in reading.note


def test_images_have_a_unit_per_channel():
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU())
    with torch.no_grad():
        net[0].bias.copy_(torch.tensor([-100.0, 100, 0, -100]))
    reading = activations.read(Subject(net, Batch(x=torch.rand(5, 1, 6, 7))))
    assert reading.values["dead units"] == [0.5]


def test_a_layer_that_is_used_twice_counts_once():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.act = nn.Tanh()

        def forward(self, x):
            return self.act(self.act(x))

    x = torch.linspace(-2, 2, 12).reshape(6, 2)
    (mean,) = activations.read(Subject(Twice(), Batch(x=x))).values["mean slope"]
    inside = np.tanh(x.numpy())
    assert mean == pytest.approx(np.mean([1 - inside**2, 1 - np.tanh(inside) ** 2]), rel=1e-5)


def test_nothing_to_show_is_said():
    assert "no activation" in activations.why_not(Subject(nn.Linear(2, 3), Batch(x=torch.ones(4, 2))))
    with pytest.raises(BadInput, match="no activation"):
        activations.read(Subject(nn.Linear(2, 3), Batch(x=torch.ones(4, 2))))
    with pytest.raises(BadInput, match="flat"):
        activations.read(Subject(MLP((2, 3, 1)), Batch(x=torch.ones(4, 2))), flat=2)
