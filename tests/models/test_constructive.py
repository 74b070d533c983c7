"""Networks written down: against numpy's interpolation, the classical error bound, and scikit-learn's counts."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from sklearn.preprocessing import PolynomialFeatures

from sonde.core.errors import BadInput
from sonde.core.seeds import generator
from sonde.models.constructive import (
    barron_bound,
    barron_units,
    fixed_units,
    fold_zigzag,
    gaussian_barron_norm,
    interpolant,
    monomials,
    sigmoid_steps,
    tensor_entries,
)


def test_the_interpolant_is_numpys() -> None:
    knots, values = [-1.0, 0.2, 0.5, 2.0], [3.0, -1.0, 4.0, 4.5]
    x = torch.linspace(-1, 2, 77, dtype=torch.float64)
    np.testing.assert_allclose(interpolant(knots, values)(x)[:, 0].detach(), np.interp(x, knots, values), atol=1e-12)


@pytest.mark.parametrize("units", [5, 12, 33])
def test_the_interpolant_keeps_its_bound_and_comes_close_to_it(units) -> None:
    knots, x = np.linspace(0, 2, units + 1), torch.linspace(0, 2, 9001, dtype=torch.float64)
    worst = float((interpolant(knots, np.exp(knots))(x)[:, 0].detach() - x.exp()).abs().max())
    bound = (2 / units) ** 2 * math.exp(2) / 8
    assert 0.7 * bound < worst <= bound


def test_sigmoid_steps_converge_to_second_order() -> None:
    x = torch.linspace(0, 1, 2001, dtype=torch.float64)
    errors = [float((sigmoid_steps(np.sin, 0.0, 1.0, 8 + n)(x)[:, 0].detach() - x.sin()).abs().max()) for n in (8, 16, 32)]
    assert errors[0] / errors[1] > 2.5 and errors[1] / errors[2] > 2.5


def test_a_steep_staircase_takes_the_values_at_the_knots() -> None:
    net = sigmoid_steps(np.cos, -1.0, 2.0, 14, steepness=400.0)
    knots = torch.linspace(-1, 2, 7, dtype=torch.float64)
    np.testing.assert_allclose(net(knots)[:, 0].detach(), knots.cos(), atol=1e-12)


def test_barron_units_are_right_on_average_and_within_the_bound() -> None:
    inputs, radius, units, draw = 3, 1.3, 50, generator(0, "barron")
    x = torch.tensor([[0.3, -0.5, 0.9], [0.0, 0.0, 0.0], [-1.0, 0.4, 0.2]], dtype=torch.float64)
    outputs = torch.stack([barron_units(inputs, radius, units, draw)(x) for _ in range(4000)])
    target = torch.exp(-x.square().sum(1) / 2)
    spread = outputs.std(0) / math.sqrt(4000)
    assert ((outputs.mean(0) - target).abs() <= 4 * spread + 1e-12).all()
    assert (outputs - target).square().mean(0).max() < barron_bound(radius, gaussian_barron_norm(inputs), units)


@pytest.mark.parametrize("inputs", [1, 2, 5])
def test_the_barron_norm_of_a_gaussian(inputs) -> None:
    mean, _ = integrate.quad(lambda length: length * stats.chi(inputs).pdf(length), 0, 40)
    assert gaussian_barron_norm(inputs) == pytest.approx(mean, rel=1e-9)


def test_costs_by_hand() -> None:
    assert barron_bound(2.0, 3.0, 9) == 16.0
    assert fixed_units(0.01, 10) == pytest.approx(1e10) and fixed_units(0.01, 1) == pytest.approx(10.0)


@pytest.mark.parametrize("inputs, order", [(1, 3), (2, 3), (4, 2), (3, 5)])
def test_monomials_are_those_of_scikit_learn(inputs, order) -> None:
    assert monomials(inputs, order) == PolynomialFeatures(order).fit(np.zeros((1, inputs))).n_output_features_


def test_full_tensors() -> None:
    assert [tensor_entries(d, 3) for d in (1, 2, 10)] == [4, 15, 1111]


@pytest.mark.parametrize(
    "call",
    [
        lambda: interpolant([0.0, 0.0], [1.0, 2.0]),
        lambda: interpolant([0.0], [1.0]),
        lambda: interpolant([0.0, 1.0], [1.0, math.nan]),
        lambda: sigmoid_steps(np.sin, 0.0, 1.0, 8),
        lambda: sigmoid_steps(np.sin, 1.0, 0.0, 20),
        lambda: fold_zigzag(0),
    ],
)
def test_bad_requests_are_refused_in_one_line(call) -> None:
    with pytest.raises(BadInput) as caught:
        call()
    assert "\n" not in str(caught.value)
