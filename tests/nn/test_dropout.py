"""Dropout: chances, scales and torch's own layer."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sonde.core.errors import BadInput
from sonde.nn.dropout import Dropout

X = torch.full((400, 500), 2.0)
"""200,000 units: the share kept is known to 0.3 %"""


@pytest.mark.parametrize("p", [0.0, 0.2, 0.7])
@pytest.mark.parametrize("scale, train, test", [("train", lambda p: 1.0, lambda p: 1.0), ("test", lambda p: 1 - p, lambda p: 1 - p)])
def test_expectation_is_the_same_in_training_and_evaluation(p, scale, train, test):
    layer = Dropout(p, scale=scale)
    assert float(layer(X).mean()) == pytest.approx(2 * train(p), rel=0.02)
    assert float((layer(X) != 0).float().mean()) == pytest.approx(1 - p, abs=0.01)
    layer.eval()
    assert float(layer(X).mean()) == pytest.approx(2 * test(p), rel=1e-5) and torch.equal(layer(X), layer(X))


def test_without_scale_the_two_disagree():
    layer = Dropout(0.25, scale=None)
    assert float(layer(X).mean()) == pytest.approx(1.5, rel=0.02)
    assert torch.equal(layer.eval()(X), X)


def test_keep_prob_is_the_other_way_to_say_it():
    assert Dropout(keep_prob=0.8).p == pytest.approx(0.2) and Dropout().p == 0.5
    assert torch.equal(Dropout(keep_prob=1.0)(X), X) and not Dropout(keep_prob=0.0)(X).any()


def test_the_default_is_torch_bit_for_bit():
    x = torch.randn(31, 7, requires_grad=True)
    outs = []
    for layer in (Dropout(0.3), nn.Dropout(0.3)):
        torch.manual_seed(4)
        out = layer(x)
        outs.append((out, torch.autograd.grad(out.square().sum(), x)[0]))
    assert torch.equal(outs[0][0], outs[1][0]) and torch.equal(outs[0][1], outs[1][1])


@pytest.mark.parametrize("settings", [{"p": 1.1}, {"p": -0.1}, {"keep_prob": 2.0}, {"p": 0.5, "keep_prob": 0.5}, {"scale": "both"}])
def test_bad_settings(settings):
    with pytest.raises(BadInput):
        Dropout(**settings)
