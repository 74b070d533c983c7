"""Activations against NumPy and SciPy, their claims against what is measured, and wrong names and settings."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import special, stats
from torch import nn

from sonde.core.errors import BadInput
from sonde.nn.activations import Activation, Interval, activation, describe, forget, formula, measure, names, register

A = np.linspace(-5, 5, 37)
AUTHORITY = {
    "identity": A,
    "step": np.heaviside(A, 1.0),
    "sigmoid": special.expit(A),
    "tanh": np.tanh(A),
    "relu": np.maximum(A, 0),
    "leaky_relu": np.where(A > 0, A, 0.01 * A),
    "softplus": np.logaddexp(0, A),
    "elu": np.where(A > 0, A, np.expm1(A)),
    "silu": A * special.expit(A),
    "swish": A * special.expit(A),
    "gelu": A * stats.norm.cdf(A),
    "gelu_tanh": A / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (A + 0.044715 * A**3))),
    "sine": np.sin(A),
    "softmax": special.softmax(A),
}


@pytest.mark.parametrize("name", AUTHORITY)
def test_values(name):
    np.testing.assert_allclose(activation(name)(torch.tensor(A)).numpy(), AUTHORITY[name], rtol=0, atol=1e-12)


def test_every_name_has_an_authority():
    assert {*names(), "swish"} == {*AUTHORITY}


@pytest.mark.parametrize("name", names())
def test_claims_are_measured(name):
    measured = measure(describe(name))
    assert measured.inside and measured.gap < 1e-12, measured
    assert formula(name) and describe(name).slope


@pytest.mark.parametrize(
    "name, settings", [("elu", {"alpha": 0.3}), ("leaky_relu", {"slope": 0.2}), ("leaky_relu", {"slope": 0}), ("sine", {"frequency": 3})]
)
def test_claims_hold_with_other_settings(name, settings):
    measured = measure(describe(name, **settings))
    assert measured.inside and measured.gap < 1e-12, measured


@pytest.mark.parametrize("low, high, ends", [(-1, 1, "()"), (0, 0.9, "()"), (0, math.inf, "()"), (-math.inf, 1, "()"), (0.01, 1, "()")])
def test_a_wrong_range_of_the_sigmoid_is_seen(low, high, ends):
    assert not measure(Activation(nn.Sigmoid(), Interval(low, high, ends))).inside


def test_a_reached_end_is_not_an_open_one():
    assert not measure(Activation(nn.ReLU(), Interval(0, math.inf, "()"))).inside
    assert not measure(Activation(activation("sine"), Interval(-0.9, 0.9, "[]"))).inside


def test_no_overflow_far_out():
    far = torch.tensor([-1e4, 1e4], requires_grad=True)
    for name in names():
        value = activation(name)(far)
        (slope,) = torch.autograd.grad(value.sum(), far)
        assert value.isfinite().all() and slope.isfinite().all(), name


def test_elementwise_gradients_in_float32():
    a = torch.tensor([-2.0, -0.5, 0.25, 3.0], requires_grad=True)
    for name in names():
        known = describe(name)
        if known.elementwise:
            (slope,) = torch.autograd.grad(known.module(a).sum(), a)
            torch.testing.assert_close(slope, known.derivative(a).detach(), rtol=1e-5, atol=1e-6)


def test_a_reader_registers_one():
    def squared_relu():
        """max(a, 0)^2."""
        return Activation(nn.Sequential(nn.ReLU(), Square()), Interval(0, math.inf, "[)"), "2 max(a, 0)", lambda a: 2 * a.clamp(min=0))

    register(squared_relu)
    try:
        assert names()[-1] == "squared_relu" and formula("squared_relu") == "max(a, 0)^2"
        assert measure(describe("squared_relu")).inside and measure(describe("squared_relu")).gap < 1e-12
        assert activation("squared_relu")(torch.tensor([-1.0, 3.0])).tolist() == [0, 9]
    finally:
        forget("squared_relu")
    with pytest.raises(BadInput, match="no activation 'squared_relu'"):
        activation("squared_relu")


def test_a_plain_module_is_enough_to_register():
    def mish():
        return nn.Mish()

    register(mish)
    try:
        assert math.isnan(measure(describe("mish")).gap)
    finally:
        forget("mish")


class Square(nn.Module):
    def forward(self, a):
        return a**2


def relu():
    return nn.ReLU()


def nothing():
    return 3


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: activation("rleu"), "did you mean 'relu'"),
        (lambda: activation("step", at_zero=0.3), "0, 0.5 or 1"),
        (lambda: register(relu), "choose another name"),
        (lambda: register(nothing), "gives int"),
        (lambda: register(lambda: nn.ReLU()), "name of a function"),
        (lambda: forget("relu"), "no activation 'relu' was registered"),
        (lambda: forget("none"), "no activation 'none' was registered"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(BadInput, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)
