"""The computation graph of the loss: every primitive operation with its size, its value and its adjoint.

The loss of a few examples is traced (torch's make_fx) and walked back node by node with the rules of sonde.gradients;
what arrives at the parameters is compared with autograd.
"""

from __future__ import annotations

from typing import Annotated, Any

from ..core.dials import Range
from ..core.reading import Reading, Subject
from ._untouched import need, no_model, untouched

DRAWN = 200
"""boxes up to which a drawing is made; beyond, nobody could read it"""


def why_not(subject: Subject) -> str:
    return no_model(subject) or ("there is no objective to differentiate" if subject.objective is None else "")


def traced(subject: Subject, examples: int) -> Any:
    """The graph of the loss on the first examples, with adjoints."""
    import torch
    from torch import nn

    from ..core.batch import Batch
    from ..gradients.graph import trace

    batch = subject.batch[:examples]

    class Loss(nn.Module):
        """The loss as a module, so that the parameters keep their names."""

        def __init__(self) -> None:
            super().__init__()
            self.model = subject.model

        def forward(self, *fields: Any) -> Any:
            return subject.objective(self.model, Batch(**dict(zip(batch, fields, strict=True)))).loss()

    with untouched(subject.model), torch.inference_mode(False):
        graph = trace(Loss(), *batch.fields.values(), names=list(batch))
        graph.backward()
    return graph


def read(
    subject: Subject,
    examples: Annotated[int, Range(least=1)] = 8,
    most: Annotated[int, Range(least=1)] = 60,
) -> Reading:
    """Operations of the loss from the leaves to the end, in evaluation mode.

    examples: how many of the batch to trace
    most: rows of the table
    """
    import torch

    need(__name__, subject, examples=examples, most=most)
    graph = traced(subject, examples)
    ours = {name.removeprefix("model."): graph[name].adjoint for name in graph.inputs if graph[name].op == "parameter"}
    named = {name: parameter for name, parameter in subject.model.named_parameters() if ours.get(name) is not None}
    gap = 0.0
    with untouched(subject.model), torch.inference_mode(False), torch.enable_grad():
        wanted = [parameter for parameter in named.values() if parameter.requires_grad]
        if wanted:
            theirs = torch.autograd.grad(subject.objective(subject.model, subject.batch[:examples]).loss(), wanted)
            pairs = zip([name for name, parameter in named.items() if parameter.requires_grad], theirs, strict=True)
            gap = max(float((ours[name] - gradient).abs().max()) for name, gradient in pairs)
    reading = graph.table(most)
    reading.title = "Computation graph of the loss"
    count = min(examples, len(subject.batch))
    reading.note += f" {count} example{'s' * (count > 1)}; largest difference of the adjoints of parameters from autograd {gap:.2g}."
    reading.extra = {"gap": gap, **({"svg": graph.svg()} if len(graph) <= DRAWN else {})}
    return reading


def tiny() -> Subject:
    from ._tiny import images

    return images()
