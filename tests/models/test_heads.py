"""Output heads: what a task gets, by hand, and which pairs are odd."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch

from sonde.core.batch import Batch
from sonde.core.errors import BadInput
from sonde.models.heads import TASKS, OddPair, head, mismatch

RAW = np.array([[0.3, -1.2, 2.0]])


@pytest.mark.parametrize("task", TASKS)
def test_the_usual_head_is_silent_and_works(task):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        output_head = head(task, 3)
    output = output_head.layer(5)(torch.ones(4, 5))
    assert output.shape == (4, 3)
    y = torch.arange(4) % 3 if task == "classes" else torch.ones(4, 3)
    assert output_head.likelihood()(output_head.layer(5), Batch(x=torch.ones(4, 5), y=y)).loss().isfinite()


@pytest.mark.parametrize(
    "task, expected",
    [
        ("binary", 1 / (1 + np.exp(-RAW))),
        ("classes", np.exp(RAW) / np.exp(RAW).sum()),
        ("counts", np.exp(RAW)),
        ("real", RAW),
    ],
)
def test_predictions_from_raw_outputs(task, expected):
    np.testing.assert_allclose(head(task, 3).likelihood().predict(torch.tensor(RAW)), expected, atol=1e-12)


def test_settings_reach_the_likelihood():
    assert head("classes", 4).likelihood(smoothing=0.1).smoothing == 0.1
    assert head("real").likelihood(variance=4.0).factor == 1 / 8


@pytest.mark.parametrize(
    "task, activation, objective, words",
    [
        ("binary", "sigmoid", "bernoulli", f"(0.5, {1 / (1 + math.exp(-1)):.5g})"),
        ("classes", "softmax", "categorical", f"({1 / (1 + math.e):.5g}, {math.e / (1 + math.e):.5g})"),
        ("real", "relu", "gaussian", "(0, inf)"),
        ("real", "tanh", "laplace", "(-1, 1)"),
        ("counts", "relu", "poisson", "(1, inf)"),
        ("positive", "identity", "gaussian", "(-inf, inf)"),
        ("binary", "identity", "gaussian", "use bernoulli"),
        ("classes", "identity", "bernoulli", "use categorical"),
    ],
)
def test_odd_pairs_say_what_they_reach(task, activation, objective, words):
    assert words in mismatch(task, activation, objective)
    with pytest.warns(OddPair):
        output_head = head(task, 2, activation, objective)
    assert (output_head.activation, output_head.objective) == (activation, objective)


@pytest.mark.parametrize("pair", [("positive", "relu", "gaussian"), ("real", "identity", "laplace"), ("real", "leaky_relu", "gaussian")])
def test_pairs_that_are_not_odd(pair):
    assert mismatch(*pair) == ""


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: head("clases", 3), "did you mean 'classes'"),
        (lambda: head("classes", 1), "cannot have 1 outputs"),
        (lambda: head("real", 0), "cannot have 0 outputs"),
        (lambda: head("real", 2.5), "cannot have 2.5 outputs"),
        (lambda: head("real", objective="gausian"), "did you mean 'gaussian'"),
        (lambda: head("real", activation="rleu"), "did you mean 'relu'"),
        (lambda: mismatch("x", "relu", "gaussian"), "no task 'x'"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(BadInput, match=words):
        call()
