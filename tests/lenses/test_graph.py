"""The graph of a loss: its adjoints are the gradients autograd gives, and its drawing is a picture."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import torch

from sonde.lenses import graph
from sonde.lenses._tiny import images, values


def test_adjoints_of_parameters_are_gradients() -> None:
    subject = images()
    traced = graph.traced(subject, 5)
    subject.model.eval()
    loss = subject.objective(subject.model, subject.batch[:5]).loss()
    theirs = torch.autograd.grad(loss, list(subject.model.parameters()))
    torch.testing.assert_close(traced[traced.outputs[0]].value, loss.detach())
    for (name, _), gradient in zip(subject.model.named_parameters(), theirs, strict=True):
        torch.testing.assert_close(traced[f"model.{name}"].adjoint, gradient, rtol=1e-5, atol=1e-6)


def test_the_reading_names_operations_and_has_a_picture() -> None:
    reading = graph.read(values(), examples=3, most=6)
    assert reading.values["node"][:2] == ["model.0.weight", "model.0.bias"] and len(reading.values["node"]) == 6
    assert reading.extra["gap"] < 1e-6 and "3 examples" in reading.note and "The first 6 nodes" in reading.note
    assert ElementTree.fromstring(reading.extra["svg"]).tag.endswith("svg")
    whole = graph.read(values(), most=100)
    assert {"tanh", "addmm", "pow", "sum"} <= set(whole.values["operation"])
    assert whole.values["inputs"][whole.values["operation"].index("tanh")] == "addmm"
    assert "x" in whole.values["node"] and "y" in whole.values["node"]


def test_without_a_loss_it_is_refused() -> None:
    subject = values()
    subject.objective = None
    assert graph.why_not(subject) == "there is no objective to differentiate"
