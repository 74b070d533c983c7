"""Mistakes about activations, made on purpose, that turn chapter 3 red."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from sonde.atlas import activations as act
from sonde.atlas.exhibit import run
from sonde.models import heads
from sonde.nn import activations
from sonde.nn.activations import Interval, describe
from tests.atlas.mistakes import wrong as failed


def wrong(row):
    """Names of the expectations that did not hold, in one line."""
    return " | ".join(failed(row))


class Plain(nn.Module):
    """A function as a module."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, a):
        return self.function(a)


@pytest.fixture
def instead(monkeypatch):
    """Give an activation another body; its settings are ignored."""

    def put(name, **changes):
        known = describe(name)
        activation = replace(known, **changes)

        def make(**settings):
            return activation

        make.__name__ = name
        monkeypatch.setitem(activations._KNOWN, name, make)
        monkeypatch.setattr(activations, "resolve", lambda function, inputs, owner: inputs)

    return put


def test_act_01_notices_a_step_that_lets_gradients_through(instead):
    instead("step", module=Plain(lambda a: (a >= 0).to(a) + a - a.detach()))
    names = wrong("ACT-01")
    assert "gradient through the step" in names and "hidden layer before a step" in names


def test_act_02_notices_a_tanh_without_its_factor(instead):
    instead("tanh", module=Plain(lambda a: 2 * torch.sigmoid(a) - 1))
    names = wrong("ACT-02")
    assert "tanh as 2 s(2a) - 1" in names and "largest slope of tanh" in names


def test_act_02_notices_an_overflow(instead):
    instead("sigmoid", module=Plain(lambda a: a.exp() / (1 + a.exp())))
    names = wrong("ACT-02")
    assert "sigmoid at -1000 and 1000" in names and "SciPy" not in names


def test_act_03_notices_a_slope_of_1_at_zero(instead):
    instead("relu", module=Plain(lambda a: a * (a >= 0)))
    assert "its derivative at exactly 0" in wrong("ACT-03")


def test_act_04_notices_the_printed_range_of_elu(instead):
    instead("elu", range=Interval())
    names = wrong("ACT-04")
    assert "its range with alpha 1.0" in names and "and measured" in names


def test_act_04_notices_an_overflowing_softplus(instead):
    instead("softplus", module=Plain(lambda a: torch.log(1 + a.exp())))
    assert "softplus at 1000" in wrong("ACT-04")


def test_act_05_notices_the_approximation_in_place_of_gelu(instead):
    instead("gelu", module=nn.GELU("tanh"))
    names = wrong("ACT-05")
    assert "GELU as a Phi(a)" in names and "minimum of gelu" in names and "another function" in names


def test_act_06_notices_the_printed_diagonal(instead):
    def diagonal(z):
        s = z.softmax(-1)
        return torch.diag_embed(s * (1 - s))

    instead("softmax", derivative=diagonal)
    assert wrong("ACT-06").startswith("Jacobian s_i (delta_ij - s_j)")


def test_act_06_notices_a_softmax_that_overflows(instead):
    instead("softmax", module=Plain(lambda z: z.exp() / z.exp().sum(-1, keepdim=True)))
    assert wrong("ACT-06") == "at scores of 1e4"


def test_act_07_notices_weights_that_are_too_small(monkeypatch):
    right = act.initialize
    monkeypatch.setattr(act, "initialize", lambda name: right("normal", std=0.02))
    assert "first / last gradient of ReLU, as a power of 10" in wrong("ACT-07")


@pytest.fixture
def no_training(monkeypatch):
    """The runs take most of the time and are not what these mistakes are about."""
    monkeypatch.setattr(act, "_negative_targets", lambda exhibit: (1.0, {"relu": [1.1, 1.2], "identity": [0.01, 0.02]}))


def test_act_08_notices_wrong_claims(instead, no_training):
    instead("silu", range=Interval())
    instead("sigmoid", derivative=lambda a: a.sigmoid())
    names = wrong("ACT-08")
    assert "ranges that do not hold" in names and "largest gap" in names


@pytest.mark.filterwarnings("ignore::sonde.models.heads.OddPair")
def test_act_08_notices_heads_that_are_mixed_up(monkeypatch, no_training):
    monkeypatch.setitem(heads.TASKS, "binary", replace(heads.TASKS["binary"], activation="sigmoid"))
    names = wrong("ACT-08")
    assert "binary: predictions" in names and "warnings for the usual heads" in names


def test_act_08_notices_a_helper_that_never_warns(monkeypatch, no_training):
    monkeypatch.setattr(heads, "mismatch", lambda *pair: "")
    result = run("ACT-08")
    assert not result.passed and "binary with sigmoid: warnings" in result.why


def test_act_08_notices_a_net_that_trains_a_tenth_as_long(monkeypatch):
    right = act.Recipe
    monkeypatch.setattr(act, "Recipe", lambda **parts: right(**{**parts, "steps": parts["steps"] // 10}))
    monkeypatch.setattr(act, "_heads", lambda exhibit: None)
    assert wrong("ACT-08") == "no activation: error against that floor"


def test_act_07_notices_weights_for_another_activation(monkeypatch):
    """Xavier's weights for ReLU, which halves what passes: 20 layers of them."""
    right = act.initialize
    monkeypatch.setattr(act, "initialize", lambda name: right("xavier_normal"))
    assert "first / last gradient of ReLU, as a power of 10" in wrong("ACT-07")


def test_act_08_notices_an_output_that_fits_anything(monkeypatch):
    right = act.head
    monkeypatch.setattr(act, "head", lambda task, outputs=1, end=None, objective=None: right(task, outputs, end and "identity", objective))
    monkeypatch.setattr(act, "_heads", lambda exhibit: None)
    assert "ReLU output: nets below the floor" in wrong("ACT-08")
