"""Chapter 8 made wrong on purpose: fans, factors and signs; each exhibit must notice."""

from __future__ import annotations

import math

import pytest
import torch

from sonde.atlas import initialization
from sonde.gradients import mean
from sonde.lenses import flow
from sonde.optim import initialize
from tests.atlas.mistakes import wrong


def test_init_01_notices_a_variance_in_place_of_a_deviation(monkeypatch) -> None:
    right = initialize._KNOWN["normal"]
    monkeypatch.setitem(initialize._KNOWN, "normal", lambda std: right(std**2))
    assert all(name.startswith("Var o") for name in wrong("INIT-01"))


def test_init_02_notices_fans_that_are_swapped(monkeypatch) -> None:
    right = initialize.init._calculate_fan_in_and_fan_out
    monkeypatch.setattr(initialize.init, "_calculate_fan_in_and_fan_out", lambda weight: right(weight)[::-1])
    names = wrong("INIT-02")
    assert "fan_in: variance forward" in names and "fan_out: variance of the gradient" in names
    assert "xavier, normal: variance over the formula" not in names


def test_init_02_notices_the_variance_taken_for_the_deviation(monkeypatch) -> None:
    """C-07: the second argument of N(0, .) is a deviation."""

    def squared(fan, gain, distribution, weight):
        std = gain**2 / fan(*initialize.init._calculate_fan_in_and_fan_out(weight))
        return weight.normal_(std=std) if distribution == "normal" else weight.uniform_(-std * math.sqrt(3), std * math.sqrt(3))

    monkeypatch.setattr(initialize, "_fill_scaled", squared)
    assert "xavier, normal: variance over the formula" in wrong("INIT-02")


def test_init_02_notices_a_uniform_bound_without_its_factor(monkeypatch) -> None:
    right = initialize._fill_scaled

    def narrow(fan, gain, distribution, weight):
        right(fan, gain, distribution, weight)
        return weight.div_(math.sqrt(3)) if distribution == "uniform" else weight

    monkeypatch.setattr(initialize, "_fill_scaled", narrow)
    names = wrong("INIT-02")
    assert "xavier, uniform: variance over the formula" in names and "fan_in, normal: variance over the formula" not in names


def test_init_03_notices_a_factor_that_forgets_the_half(monkeypatch) -> None:
    """E-10: with s^2 = 1/D the variance halves in each layer of ReLU."""
    monkeypatch.setitem(initialize._KNOWN, "he_normal", initialize._KNOWN["fan_in"])
    assert wrong("INIT-03") == ["s^2 = 2/D: how far 1 + the slope of log variance per layer is from 1, over 50 layers"]


def test_init_04_notices_a_start_that_is_not_constant(monkeypatch) -> None:
    monkeypatch.setitem(initialize._KNOWN, "constant", lambda value: initialize.uniform(0.5))
    assert "constant: largest difference between hidden rows after 100 steps" in wrong("INIT-04")


def test_init_05_notices_the_largest_singular_value_in_place_of_the_radius(monkeypatch) -> None:
    monkeypatch.setattr(initialization, "spectral_radius", lambda matrix: float(torch.linalg.matrix_norm(matrix, 2)))
    names = wrong("INIT-05")
    assert "spectral radius after scaling, against numpy" in names and "norm after each of 50 orthogonal matrices" not in names


@pytest.mark.parametrize(
    "clip, name",
    [
        (lambda flat, norm, largest: flat.grad.clamp_(-largest, largest), "(3, 4) clipped to 1"),
        (lambda flat, norm, largest: flat.grad.mul_(largest / norm), "(3, 4) clipped to 10"),
    ],
)
def test_init_06_notices_clipping_by_entry_and_without_a_minimum(monkeypatch, clip, name) -> None:
    monkeypatch.setattr(mean, "clip", clip)
    assert name in wrong("INIT-06")


def test_init_07_notices_a_residual_that_is_left_out(monkeypatch) -> None:
    right = flow.deep_flow
    monkeypatch.setattr(
        flow,
        "deep_flow",
        lambda weights, act, remedy="plain", seed=0: right(
            weights, act, remedy.replace("residual and ", "").replace("residual", "plain"), seed
        ),
    )
    assert "residual: orders of magnitude gained" in wrong("INIT-07")
