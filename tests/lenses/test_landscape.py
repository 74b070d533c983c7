"""Landscape against losses computed by setting the weights by hand, and against a bowl with a known form."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import sonde
from sonde.core.batch import Batch
from sonde.core.errors import BadInput
from sonde.core.reading import Subject
from sonde.lenses import landscape
from sonde.lenses.tools.tiny import images, values


def test_directions_have_the_lengths_of_the_weights():
    here = landscape.weights(images().model)
    step = landscape.direction(here)
    for name, weight in here.items():
        if weight.ndim > 1:
            torch.testing.assert_close(step[name].flatten(1).norm(dim=1), weight.flatten(1).norm(dim=1))
        else:
            assert not step[name].any()
    again, other = landscape.direction(here), landscape.direction(here, name="second")
    assert torch.equal(again["0.weight"], step["0.weight"]) and not torch.equal(other["0.weight"], step["0.weight"])


def test_scale_of_the_weights_does_not_matter():
    # relu(10 w x) / 10 = relu(w x): the function is the same, so its landscape must be.
    plain = Subject(nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 1)).double(), None, values().objective)
    plain.batch = Batch(x=torch.randn(9, 3).double(), y=torch.randn(9, 1).double())
    scaled = Subject(nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 1)).double(), plain.batch, plain.objective)
    scaled.model.load_state_dict(plain.model.state_dict())
    with torch.no_grad():
        for p in scaled.model[0].parameters():
            p.mul_(10)
        scaled.model[2].weight.div_(10)
    a, b = (torch.tensor(landscape.read(subject)[1].values["loss"]) for subject in (plain, scaled))
    torch.testing.assert_close(a, b)


def test_line_and_plane_against_weights_set_by_hand():
    subject = images()
    subject.model.eval()
    here = landscape.weights(subject.model)
    steps = landscape.direction(here), landscape.direction(here, name="second")
    across, up = torch.tensor([-0.5, 0.0, 1.0]).double(), torch.tensor([0.0, 0.25]).double()
    losses = landscape.plane(subject, here, steps, across, up)
    kept = {name: value.clone() for name, value in here.items()}
    for i, b in enumerate(up.tolist()):
        for j, a in enumerate(across.tolist()):
            with torch.no_grad():
                for name, parameter in subject.model.named_parameters():
                    parameter.copy_(kept[name] + a * steps[0][name] + b * steps[1][name])
                assert float(losses[i, j]) == pytest.approx(float(subject.objective(subject.model, subject.batch).loss()), rel=1e-5)
                for name, parameter in subject.model.named_parameters():
                    parameter.copy_(kept[name])
    torch.testing.assert_close(landscape.line(subject, here, steps[0], across), losses[0])


def test_a_bowl():
    # A linear model at its least squares: the loss along any direction is  L0 + curvature a^2 / 2,  the same both ways.
    x = torch.randn(40, 3).double()
    y = x @ torch.tensor([[1.0], [-2.0], [0.5]]).double() + 0.1 * torch.randn(40, 1).double()
    model = nn.Linear(3, 1, bias=False).double()
    with torch.no_grad():
        model.weight.copy_(torch.linalg.lstsq(x, y).solution.T)
    subject = Subject(model, Batch(x=x, y=y), values().objective)
    along, plane = landscape.read(subject, reach=2.0, points=5)
    losses, places = torch.tensor(along.values["loss"]), torch.tensor(along.x)
    step = landscape.direction(landscape.weights(model))["weight"]
    curvature = float((x @ step.T).square().mean())
    torch.testing.assert_close(losses, losses.min() + curvature * places.square() / 2, atol=1e-6, rtol=1e-6)
    assert "are the minimum" in plane.note and plane.kind == "plane" and len(places) == 17


def test_the_way_to_another_run(tmp_path):
    runs = [sonde.train("tiny_mlp", run=tmp_path / name, seed=seed, threads=1, quiet=True, steps=60) for seed, name in enumerate("ab")]
    reading = runs[0].look("landscape", points=3, other=tmp_path / "b")[-1]
    places, losses = reading.x, reading.values["loss"]
    subject, there = runs[0].subject(), runs[1].model()
    assert losses[places.index(0.0)] == pytest.approx(float(subject.objective(subject.model, subject.batch).loss().detach()), rel=1e-5)
    assert losses[places.index(1.0)] == pytest.approx(float(subject.objective(there, subject.batch).loss().detach()), rel=1e-5)
    assert "barrier" in reading.note
    wide = sonde.train("tiny_mlp", run=tmp_path / "c", threads=1, quiet=True, steps=2, width=8)
    with pytest.raises(BadInput, match="weights of other names or shapes"):
        runs[0].look("landscape", points=3, other=wide.path)


def test_a_loss_that_is_not_finite_is_left_blank():
    subject = values()
    with torch.no_grad():
        subject.model[0].weight.fill_(1e38)
    reading = landscape.read(subject, reach=10.0, points=3)[1]
    assert "null" in reading.to_json() and "at the weights of the model is not finite" in reading.note


def test_bad_options():
    for options, words in (({"points": 2}, "'points'"), ({"reach": 0.0}, "'reach'")):
        with pytest.raises(BadInput, match=words):
            landscape.read(values(), **options)
    assert "no matrix" in landscape.why_not(Subject(nn.LayerNorm(3), Batch(x=torch.ones(2, 3), y=torch.ones(2, 3)), values().objective))
