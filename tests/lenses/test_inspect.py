"""A lens leaves no trace even of a model that misbehaves: one that writes buffers, gradients and random states as it runs."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn

from sonde.core import registry
from sonde.core.batch import Batch
from sonde.core.errors import BadInput
from sonde.core.reading import Subject
from sonde.lenses import gradient_norms
from sonde.lenses.tools.readonly import outputs, preserve_state
from sonde.lenses.tools.tiny import images
from sonde.objectives.joint import Joint, Part


class Rude(nn.Module):
    """Changes whatever it can on every call."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Linear(3, 2)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        torch.rand(1), np.random.rand(), random.random()
        if self.inside.weight.grad is not None:
            self.inside.weight.grad += 1
        self.inside.bias.grad = torch.ones(2)
        self.train()
        return self.inside(x)


class Sum:
    def __call__(self, model, batch):
        from sonde.core.terms import Terms

        return Terms(nll=(model(batch.x).sum(), len(batch)))


def rude() -> Subject:
    model = Rude().eval()
    model.inside.train()
    model.inside.weight.grad = torch.full((2, 3), 7.0)
    return Subject(model, Batch(x=torch.randn(5, 3)), Sum())


def traces(model: Rude) -> tuple:
    weight, bias = model.inside.weight.grad, model.inside.bias.grad
    states = torch.get_rng_state().tolist(), str(np.random.get_state()), random.getstate()
    return float(model.calls), weight.tolist(), bias, model.training, model.inside.training, states


@pytest.mark.parametrize("look", [outputs, gradient_norms.read])
def test_a_rude_model_is_put_back(look) -> None:
    subject = rude()
    before, gradient = traces(subject.model), subject.model.inside.weight.grad
    look(subject)
    assert traces(subject.model) == before and subject.model.inside.weight.grad is gradient


def test_a_failure_leaves_no_trace_either() -> None:
    subject = rude()
    before = traces(subject.model)
    with pytest.raises(ZeroDivisionError), preserve_state(subject.model):
        subject.model(subject.batch.x)
        raise ZeroDivisionError
    assert traces(subject.model) == before


def test_what_a_lens_sees_does_not_depend_on_a_dropout_mask() -> None:
    subject = images()
    expected = subject.model.eval()(subject.batch.x)
    subject.model.train()
    assert torch.equal(outputs(subject), expected)


def test_chunks_give_the_whole_output() -> None:
    model = nn.Linear(3, 2)
    x = torch.randn(1300, 3)
    assert torch.allclose(outputs(Subject(model, Batch(x=x))), model(x), atol=1e-6)


class Named(nn.Module):
    """Two outputs by name, and on wish a number that all examples share."""

    def __init__(self, shared: bool = False) -> None:
        super().__init__()
        self.label, self.tokens, self.shared = nn.Linear(3, 2), nn.Linear(3, 5), shared

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        both = {"label": self.label(x), "tokens": self.tokens(x)}
        return both | ({"scale": torch.tensor(2.0)} if self.shared else {})


def named(n: int, objective: object, shared: bool = False) -> Subject:
    rng = torch.Generator().manual_seed(0)
    return Subject(Named(shared), Batch(x=torch.randn(n, 3, generator=rng), y=torch.arange(n) % 2), objective)


@pytest.mark.parametrize("n", [7, 1300])
def test_outputs_with_names_are_read_by_them(n) -> None:
    subject = named(n, Joint({"label": Part()}))
    actual, wanted = outputs(subject), subject.model(subject.batch.x)
    assert list(actual) == ["label", "tokens"] and all(torch.allclose(actual[name], wanted[name], atol=1e-6) for name in actual)
    (reading, *_) = registry.load("lenses", "confusion").read(subject)
    predictions = wanted["label"].argmax(1)
    table = [[int(((subject.batch.y == a) & (predictions == b)).sum()) for b in range(2)] for a in range(2)]
    assert table in reading.values.values()


def test_outputs_that_are_no_rows_and_outputs_without_a_choice_are_refused_in_one_line() -> None:
    calls = {
        "the model's output 'scale' is not a tensor with a row for each of the 7 examples": named(7, Joint({"label": Part()}), shared=True),
        r"several outputs \(label, tokens\)": named(7, Sum()),
        "the model's output is not a tensor with a row": Subject(
            nn.LSTM(3, 4, batch_first=True), Batch(x=torch.ones(2, 5, 3), y=torch.tensor([0, 1])), images().objective
        ),
    }
    for message, subject in calls.items():
        with pytest.raises(BadInput, match=message) as caught:
            registry.load("lenses", "confusion").read(subject)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("lens", ["backprop", "flow", "gradient_norms", "landscape", "race", "rate_range", "spectrum"])
def test_a_model_whose_output_is_no_tensor_is_refused_in_one_line(lens) -> None:
    subject = Subject(nn.LSTM(3, 4, batch_first=True), Batch(x=torch.ones(2, 5, 3), y=torch.tensor([0, 1])), images().objective)
    with pytest.raises(BadInput, match=f"lens '{lens}' does not apply: the objective cannot be evaluated") as caught:
        registry.load("lenses", lens).read(subject)
    assert "\n" not in str(caught.value)
