"""Mixed targets against torch's cross-entropy with class probabilities."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sonde.core.batch import Batch
from sonde.core.errors import BadInput
from sonde.objectives.categorical import Categorical
from sonde.objectives.gaussian import Gaussian
from sonde.objectives.mixed import Mixed


def test_equals_cross_entropy_with_a_mixed_target():
    torch.manual_seed(0)
    model, x = nn.Linear(3, 5).double(), torch.randn(8, 3, dtype=torch.float64)
    y, other, share = torch.randint(5, (8,)), torch.randint(5, (8,)), torch.rand(8, dtype=torch.float64)
    target = share[:, None] * F.one_hot(y, 5) + (1 - share)[:, None] * F.one_hot(other, 5)
    for smoothing in (0.0, 0.1):
        terms = Mixed(Categorical(5, smoothing))(model, Batch(x=x, y=y, other=other, share=share))
        expected = F.cross_entropy(model(x), target, label_smoothing=smoothing)
        torch.testing.assert_close(terms.loss(), expected, rtol=1e-12, atol=0)
        ours, theirs = (torch.autograd.grad(loss, model.weight)[0] for loss in (terms.loss(), expected))
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_weights_of_examples_still_hold():
    torch.manual_seed(1)
    model, x = nn.Linear(3, 2).double(), torch.randn(4, 3, dtype=torch.float64)
    y, other = torch.randn(2, 4, 2, dtype=torch.float64)
    share, weight = torch.rand(2, 4, dtype=torch.float64)
    loss = Mixed(Gaussian())(model, Batch(x=x, y=y, other=other, share=share, weight=weight)).loss()
    squares = share[:, None] * (model(x) - y).square() + (1 - share)[:, None] * (model(x) - other).square()
    torch.testing.assert_close(loss, (weight[:, None] * squares).sum() / 2 / (2 * weight.sum()))


def test_mixtures_are_not_taken_for_examples():
    batch = Batch(x=torch.zeros(2, 3), y=torch.zeros(2).long(), other=torch.ones(2).long(), share=torch.full((2,), 0.5))
    with pytest.raises(BadInput, match="mixtures of two"):
        Categorical(4)(nn.Linear(3, 4), batch)


def test_an_unmixed_batch_is_judged_as_ever():
    torch.manual_seed(2)
    model, batch = nn.Linear(3, 4), Batch(x=torch.randn(6, 3), y=torch.arange(6) % 4)
    assert Mixed(Categorical(4))(model, batch).loss() == Categorical(4)(model, batch).loss()
