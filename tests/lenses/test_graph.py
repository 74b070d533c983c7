"""The graph of a loss: its adjoints are the gradients autograd gives, and its drawing is a picture."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest
import torch

from sonde.lenses import graph
from sonde.lenses.tools.tiny import images, values


def test_adjoints_of_parameters_are_gradients() -> None:
    subject = images()
    traced = graph.trace(subject, 5)
    subject.model.eval()
    loss = subject.objective(subject.model, subject.batch[:5]).loss()
    theirs = torch.autograd.grad(loss, list(subject.model.parameters()))
    torch.testing.assert_close(traced[traced.outputs[0]].value, loss.detach())
    for (name, _), gradient in zip(subject.model.named_parameters(), theirs, strict=True):
        torch.testing.assert_close(traced[f"model.{name}"].adjoint, gradient, rtol=1e-5, atol=1e-6)


def test_the_reading_names_operations_and_has_a_picture() -> None:
    picture, reading = graph.read(values(), examples=3, most=6)
    assert reading.values["node"][:2] == ["model.0.weight", "model.0.bias"] and len(reading.values["node"]) == 6
    assert reading.results["gap"] < 1e-6 and "3 examples" in reading.note and "The first 6 nodes" in reading.note
    assert picture.kind == "graph" and [0, *picture.values["kind"]].count("output") == 1
    whole = graph.read(values(), most=100)[-1]
    assert {"tanh", "addmm", "pow", "sum"} <= set(whole.values["operation"])
    assert whole.values["inputs"][whole.values["operation"].index("tanh")] == "addmm"
    assert "x" in whole.values["node"] and "y" in whole.values["node"]


@pytest.mark.parametrize("subject", [images, values])
def test_the_drawing_is_that_of_the_svg(subject) -> None:
    """As many boxes and edges, each box with the words and the height of its twin, and no edge pointing up."""
    traced = graph.trace(subject(), 4)
    picture, page = graph.drawing(traced), ElementTree.fromstring(traced.svg())
    boxes = [each for each in page if each.tag.endswith("rect") and each.get("rx")]
    words = [each.text for each in page if each.tag.endswith("text")]
    assert sorted(line for lines in picture.values["words"] for line in lines) == sorted(words)
    assert picture.values["y"] == [float(box.get("y")) for box in boxes]
    assert len(picture.edges) == sum(each.tag.endswith("path") for each in page)
    assert all(a[1] < b[1] for way in picture.edges for a, b in zip(way, way[1:], strict=False))


def test_a_large_graph_is_a_table_alone(monkeypatch) -> None:
    monkeypatch.setattr(graph, "MAX_DRAWN", 5)
    assert [reading.kind for reading in graph.read(values())] == ["table"]


def test_without_a_loss_it_is_refused() -> None:
    subject = values()
    subject.objective = None
    assert graph.why_not(subject) == "there is no objective to differentiate"
