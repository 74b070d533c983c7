"""The computation graph of the loss: every primitive operation with its size, its value and its adjoint.

The loss of a few examples is traced (torch's make_fx) and differentiated node by node with the rules of sonde.gradients;
the adjoints of the parameters are compared with autograd.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import torch
from torch import nn

from ..core.batch import Batch
from ..core.options import Range
from ..core.reading import Diagram, Reading, Subject
from ..gradients import layout
from ..gradients.graph import trace as trace_function
from .tools.readonly import guard, no_model, preserve_state, without_kernels
from .tools.tiny import images

MAX_DRAWN = 60
"""a graph with more nodes is not drawn: it would not be readable"""


def why_not(subject: Subject) -> str:
    """Why the lens does not apply to a subject, or ''; `guard` turns it into an error."""
    return no_model(subject) or ("there is no objective to differentiate" if subject.objective is None else "")


def trace(subject: Subject, examples: int) -> Any:
    """The graph of the loss on the first examples, with adjoints."""
    batch = subject.batch[:examples]

    class Loss(nn.Module):
        """The loss as a module, so that the parameters keep their names."""

        def __init__(self) -> None:
            super().__init__()
            self.model = subject.model

        def forward(self, *fields: Any) -> Any:
            return subject.objective(self.model, Batch(**dict(zip(batch, fields, strict=True)))).loss()

    with preserve_state(subject.model), without_kernels(subject.model), torch.inference_mode(False):
        graph = trace_function(Loss(), *batch.fields.values(), names=list(batch))
        graph.backward()
    return graph


@guard
def read(
    subject: Subject,
    examples: Annotated[int, Range(least=1)] = 8,
    most: Annotated[int, Range(least=1)] = 60,
) -> list[Reading]:
    """Operations of the loss in topological order, in evaluation mode: a drawing if the graph is small, and a table.

    Args:
        examples: how many of the batch to trace
        most: maximum number of rows of the table
    """
    graph = trace(subject, examples)
    ours = {name.removeprefix("model."): graph[name].adjoint for name in graph.inputs if graph[name].op == "parameter"}
    named = {name: parameter for name, parameter in subject.model.named_parameters() if ours.get(name) is not None}
    gap = 0.0
    with preserve_state(subject.model), torch.inference_mode(False), torch.enable_grad():
        trained = [parameter for parameter in named.values() if parameter.requires_grad]
        if trained:
            theirs = torch.autograd.grad(subject.objective(subject.model, subject.batch[:examples]).loss(), trained)
            pairs = zip([name for name, parameter in named.items() if parameter.requires_grad], theirs, strict=True)
            gap = max(float((ours[name] - gradient).abs().max()) for name, gradient in pairs)
    picture, table = drawing(graph), graph.table(most)
    count = min(examples, len(subject.batch))
    note = f" {count} example{'s' * (count > 1)}; largest difference of the adjoints of parameters from autograd {gap:.2g}."
    table = replace(table, title="Nodes of the graph", note=table.note + note, results={"gap": gap})
    return [*([picture] if len(picture.values["x"]) <= MAX_DRAWN else []), table]


def drawing(graph: Any) -> Reading:
    """The graph as boxes and arrows, laid out as in its SVG: leaves at the top, the loss at the bottom."""
    edges = layout.visible_edges(graph)
    layers, depth = layout.arrange(edges, {node.name for node in graph if node.op == "input"})
    positions = layout._places(layers, edges, max(sum(layout._wide(item) + layout.GAP for item in layer) for layer in layers))
    arrows = []
    for user, names in edges.items():
        for name in names:
            x, y = positions[name]
            path = [[x, y + layout.HIGH]]
            for row in range(depth[name] + 1, depth[user]):  # around the boxes of the layers between
                x, y = positions[(name, row)]
                path += [[x, y], [x, y + layout.HIGH]]
            arrows.append([*path, list(positions[user])])
    ends = layout._outputs(graph, edges)
    values = {
        "x": [positions[name][0] for name in edges],
        "y": [positions[name][1] for name in edges],
        "words": [layout._labels(graph[name]) for name in edges],
        "kind": ["output" if name in ends else graph[name].op for name in edges],
    }
    note = "Operations that only change a shape are left out; ∂ is the adjoint. Blue: inputs, orange: parameters, dark: the loss."
    return Diagram("Computation graph of the loss", values, note=note, box=[layout.BOX, layout.HIGH], edges=arrows)


def tiny() -> Subject:
    """A small subject for the contract tests."""
    return images()
