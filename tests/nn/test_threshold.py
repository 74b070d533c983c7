"""Threshold units against NumPy, all small Boolean functions, and wrong shapes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sonde.core.errors import BadInput
from sonde.nn.threshold import StepActivation, ThresholdLayer, boolean, corners, step


@pytest.mark.parametrize("at_zero", [0, 0.5, 1])
def test_step_is_heaviside(at_zero):
    a = torch.tensor([-math.inf, -3.0, -1e-300, 0.0, -0.0, 1e-300, 2.0, math.inf], dtype=torch.float64, requires_grad=True)
    out = StepActivation(at_zero)(a)
    np.testing.assert_array_equal(out.detach().numpy(), np.heaviside(a.detach().numpy(), at_zero))
    (slope,) = torch.autograd.grad(out.sum(), a)
    assert slope.tolist() == [0] * 8


def test_nan_stays_nan():
    assert step(torch.tensor([math.nan, 1.0])).isnan().tolist() == [True, False]


def test_layer_is_a_matrix_product_and_a_step():
    draw = np.random.default_rng(0)
    weight, bias, x = draw.normal(size=(3, 5)), draw.normal(size=3), draw.normal(size=(7, 5))
    sums = x @ weight.T + bias
    layer = ThresholdLayer(weight, bias)
    np.testing.assert_allclose(layer.before(torch.tensor(x)).numpy(), sums, atol=1e-14)
    np.testing.assert_array_equal(layer(torch.tensor(x)).numpy(), sums > 0)
    np.testing.assert_array_equal(ThresholdLayer(weight, bias, labels="pm1")(torch.tensor(x)).numpy(), np.sign(sums))
    assert list(layer.parameters()) == [] and set(layer.state_dict()) == {"weight", "bias"}


def test_corners_count_in_binary():
    assert corners(3).tolist() == [[int(bit) for bit in f"{number:03b}"] for number in range(8)]
    assert corners(1).tolist() == [[0], [1]]


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5).flatmap(lambda n: st.lists(st.integers(0, 1), min_size=2**n, max_size=2**n)))
def test_any_truth_table(table):
    inputs = len(table).bit_length() - 1
    net = boolean(table)
    assert net(corners(inputs))[:, 0].tolist() == table
    assert len(net[0].bias) == sum(table)


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: boolean([0, 1, 1]), "truth table"),
        (lambda: boolean([1]), "truth table"),
        (lambda: boolean([]), "truth table"),
        (lambda: boolean([0, 2]), "truth table"),
        (lambda: boolean([[0, 1], [1, 0]]), "truth table"),
        (lambda: ThresholdLayer([[1.0, 2.0]], [1.0, 2.0]), "do not fit"),
        (lambda: ThresholdLayer([1.0, 2.0], [1.0]), "do not fit"),
        (lambda: ThresholdLayer([[1.0]], [1.0], at_zero=2), "0, 0.5 or 1"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(BadInput, match=words):
        call()
