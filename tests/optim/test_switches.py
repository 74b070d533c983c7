"""Switches torch lacks: momentum as a rolling average, and Adam without bias correction."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sonde.core.errors import BadInput
from sonde.optim.build import optimizer

START, STEPS = np.linspace(-1.5, 2.0, 7), 10


def walk(rule, steps=STEPS):
    """Weights after some steps on gradients that depend on them and on the step."""
    w = torch.tensor(START, requires_grad=True)
    optimizer = rule.build([{"params": [w], "weight_decay": rule.weight_decay, "names": ["w"]}])
    for step in range(steps):
        w.grad = torch.tensor(gradient(w.detach().numpy(), step))
        optimizer.step()
    return w.detach().numpy()


def gradient(w, step):
    return np.sin(3 * w + step) + w


@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_rolling_average_from_the_formula(decay):
    w, m = START.copy(), np.zeros_like(START)
    for step in range(STEPS):
        m = 0.8 * m + 0.2 * (gradient(w, step) + decay * w)
        w = w - 0.05 * m
    rule = optimizer("sgd", lr=0.05, momentum=0.8, ema=True, weight_decay=decay)
    np.testing.assert_allclose(walk(rule), w, atol=1e-12)


@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_rolling_average_is_the_sum_at_a_smaller_rate(decay):
    average = walk(optimizer("sgd", lr=0.05, momentum=0.8, ema=True, weight_decay=decay))
    total = walk(optimizer("sgd", lr=0.05 * 0.2, momentum=0.8, weight_decay=decay))
    np.testing.assert_allclose(average, total, atol=1e-12)
    # torch's dampening is another rule: its first gradient has full weight
    assert np.abs(average - walk(optimizer("sgd", lr=0.05, momentum=0.8, dampening=0.8, weight_decay=decay))).max() > 1e-3


@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_adam_without_correction_from_the_formula(decay):
    w, v, s = START.copy(), np.zeros_like(START), np.zeros_like(START)
    for step in range(STEPS):
        g = gradient(w, step) + decay * w
        v, s = 0.9 * v + 0.1 * g, 0.99 * s + 0.01 * g * g
        w = w - 0.05 * v / (np.sqrt(s) + 1e-6)
    rule = optimizer("adam", lr=0.05, betas=(0.9, 0.99), eps=1e-6, bias_correction=False, weight_decay=decay)
    np.testing.assert_allclose(walk(rule), w, atol=1e-12)


def test_adam_without_correction_takes_corrected_steps_at_a_rescaled_rate():
    """Correction multiplies step t by sqrt(1 - b2^t) / (1 - b1^t); with eps 0 nothing else differs."""
    raw = walk(optimizer("adam", lr=0.05, eps=0.0, bias_correction=False), steps=1) - START
    corrected = walk(optimizer("adam", lr=0.05, eps=0.0), steps=1) - START
    np.testing.assert_allclose(raw, corrected * 0.1 / np.sqrt(0.001), atol=1e-12)


def test_the_other_setting_is_torch_itself():
    assert optimizer("sgd", lr=0.1, momentum=0.5, ema=False).name == "sgd"
    assert optimizer("adam", lr=0.1, bias_correction=True).name == "adam"


def test_wrong_switches_are_named():
    with pytest.raises(BadInput, match="true or false, not 1"):
        optimizer("sgd", lr=0.1, ema=1)
    with pytest.raises(BadInput, match="has no option 'ema'"):
        optimizer("rmsprop", lr=0.1, ema=True)
    with pytest.raises(BadInput, match="did you mean 'bias_correction'"):
        optimizer("adam", lr=0.1, bias_corection=False)
