"""Backpropagation step by step: what each layer stores in the forward pass and its delta in the backward pass.

For layers  h_k = f_k(h_{k-1})  with h_0 = x and delta_k = dL/dh_k, the backward pass from the loss to the input is

    linear h = W g + b      dL/dW = delta g^T     dL/db = delta     delta of g = W^T delta
    other  h = a(g)         delta of g = a'(g) * delta, by the vector-Jacobian product of each operation (sonde.gradients)

Each delta is computed from the one after it, so the backward pass costs about two forward passes.  torch.autograd is used only
to compare the result.
Examples are rows: h is (B, width), and W^T delta is computed as delta W.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import torch
from torch import nn

from ..core.batch import Batch
from ..core.options import Range
from ..core.reading import Reading, Subject, Table
from ..gradients.graph import trace
from .tools.readonly import check_index, guard, hook_outputs, leaf_modules, no_gradient, preserve_state
from .tools.tiny import Nll, tiny_subject


class ForwardRecord(NamedTuple):
    """One layer in the forward pass: its input and output, which the backward pass needs."""

    name: str
    module: Any
    input: Any
    output: Any


class BackwardRecord(NamedTuple):
    """One layer in the backward pass: delta at its output, gradients of its parameters, delta at its input."""

    name: str
    delta: Any
    gradients: dict[str, Any]
    input_delta: Any


def forward(model: Any, x: Any) -> list[ForwardRecord]:
    """Run the model and keep the input and output of every layer, in the order they ran."""
    records: list[ForwardRecord] = []

    def keep(name: str, module: Any, inputs: Any, output: Any) -> None:
        records.append(ForwardRecord(name, module, inputs[0] if inputs else None, output))

    with hook_outputs(leaf_modules(model), keep), torch.no_grad():
        model(x)
    return records


def loss_delta(objective: Any, batch: Any, output: Any) -> tuple[float, Any]:
    """The loss and the delta at the output, dL/dh_L, from the graph of the loss alone."""
    graph = trace(lambda h: objective(lambda _: h, batch).loss(), output)  # in place of the model, a function that returns h
    return float(graph[graph.outputs[0]].value), graph.backward()["h"]


def backward(stored: Sequence[ForwardRecord], delta: Any) -> list[BackwardRecord]:
    """Deltas and gradients from the last layer to the first."""
    records = []
    for name, module, x, _ in reversed(stored):
        gradients: dict[str, Any]
        if type(module) is nn.Linear:
            gradients = {"weight": delta.mT @ x if delta.dim() == 2 else delta.flatten(0, -2).mT @ x.flatten(0, -2)}
            if module.bias is not None:
                gradients["bias"] = delta.flatten(0, -2).sum(0)
            input_delta = delta @ module.weight.detach()
        else:
            graph = trace(module, x)
            adjoints = graph.backward(seed=delta)
            input_delta = adjoints.pop(graph.inputs[-1])
            gradients = {key: adjoint for key, adjoint in adjoints.items() if graph[key].op == "parameter"}
        records.append(BackwardRecord(name, delta, gradients, input_delta))
        delta = input_delta
    return records


def why_not(subject: Subject) -> str:
    """Why the lens does not apply to a subject, or ''; `guard` turns it into an error."""
    if missing := no_gradient(subject):
        return missing
    if getattr(subject.model, "reads", ("x",)) != ("x",):  # fields of the batch that the model takes
        return "the model reads several inputs, and this lens needs a single one"
    if not subject.batch.x.is_floating_point():
        return "the input does not consist of floating-point numbers"
    with preserve_state(subject.model):
        chain = _is_chain(subject.model, subject.batch.x[:1])
    return "" if chain else "the layers do not form a chain in which each one reads the output of the one before"


def _is_chain(model: Any, x: Any) -> bool:
    """Whether x is the input of the first layer and each output is, unchanged, the input of the next layer or the model's output."""
    out: list[Any] = []
    with hook_outputs({"": model}, lambda name, module, inputs, outputs: out.append(outputs)):
        stored = forward(model, x)
    produced, consumed = [x, *(layer.output for layer in stored)], [*(layer.input for layer in stored), out[-1]]
    return bool(stored) and all(one is other for one, other in zip(produced, consumed, strict=True))


@guard
def read(
    subject: Subject,
    example: Annotated[int, Range(least=0)] = 0,
    most: Annotated[int, Range(1, 64)] = 6,
) -> list[Reading]:
    """Values and deltas of one example, layer by layer, in evaluation mode.

    Args:
        example: index of the example in the batch
        most: how many numbers of each tensor to print
    """
    check_index("example", example, len(subject.batch))
    batch, model = subject.batch[example : example + 1], subject.model
    with preserve_state(model), torch.inference_mode(False):
        stored = forward(model, batch.x)
        loss, delta = loss_delta(subject.objective, batch, stored[-1].output)
        records = backward(stored, delta)
        difference = _difference(model, subject.objective, batch, records)
    forward_rows = [
        (_label(i, layer), _forward_formula(layer.module, i), _size(layer.output), _show(layer.output, most))
        for i, layer in enumerate(stored, 1)
    ]
    forward_rows = [("0  input", "h0 = x", _size(stored[0].input), _show(stored[0].input, most)), *forward_rows]
    forward_rows.append(("loss", f"L(h{len(stored)}, y)", "1", f"{loss:.6g}"))
    backward_rows = [("loss", f"δ{len(stored)} = dL/dh{len(stored)}", _size(delta), _show(delta, most))]
    for k, record in zip(range(len(stored), 0, -1), records, strict=True):
        layer = stored[k - 1]
        for key, gradient in record.gradients.items():
            backward_rows.append((_label(k, layer), _gradient_formula(layer.module, key, k), _size(gradient, 0), _show(gradient, most)))
        backward_rows.append((_label(k, layer), _delta_formula(layer, k), _size(record.input_delta), _show(record.input_delta, most)))
    columns = ("layer", "rule", "size", "values")
    return [
        Table(
            "Forward pass: what each layer stores",
            dict(zip(columns, map(list, zip(*forward_rows, strict=True)), strict=True)),
            axes=["layer"],
            note=f"Example {example}, evaluation mode. Loss {loss:.6g}.",
        ),
        Table(
            "Backward pass: deltas and gradients",
            dict(zip(columns, map(list, zip(*backward_rows, strict=True)), strict=True)),
            axes=["layer"],
            note=f"Largest difference from autograd over all parameters: {difference:.2g}.",
            results={"gap": difference},
        ),
    ]


def _difference(model: Any, objective: Any, batch: Any, records: Sequence[BackwardRecord]) -> float:
    """Largest difference between these gradients and autograd's; gradients of a parameter that layers share are added up."""
    modules, ours = dict(model.named_modules()), dict[Any, Any]()
    for record in records:
        for key, gradient in record.gradients.items():
            parameter = modules[record.name].get_parameter(key)
            ours[parameter] = ours.get(parameter, 0) + gradient
    trainable = [parameter for parameter in ours if parameter.requires_grad]
    if not trainable:
        return 0.0
    with torch.enable_grad():
        autograd = torch.autograd.grad(objective(model, batch).loss(), trainable, allow_unused=True)
    pairs = zip(trainable, autograd, strict=True)
    return max(float((ours[parameter] - (0 if gradient is None else gradient)).abs().max()) for parameter, gradient in pairs)


def _forward_formula(module: Any, k: int) -> str:
    if type(module) is nn.Linear:
        return f"h{k} = W h{k - 1}" + (" + b" if module.bias is not None else "")
    return f"h{k} = {type(module).__name__.lower()}(h{k - 1})"


def _gradient_formula(module: Any, key: str, k: int) -> str:
    if type(module) is nn.Linear:
        return f"dL/dW = δ{k} h{k - 1}ᵀ" if key == "weight" else f"dL/db = δ{k}"
    return f"dL/d{key}"


def _delta_formula(layer: ForwardRecord, k: int) -> str:
    kind = type(layer.module).__name__.lower()
    if type(layer.module) is nn.Linear:
        return f"δ{k - 1} = Wᵀ δ{k}"
    elementwise = layer.input.shape == layer.output.shape and "softmax" not in kind and next(layer.module.parameters(), None) is None
    return f"δ{k - 1} = {kind}'(h{k - 1}) * δ{k}" if elementwise else f"δ{k - 1} = Jᵀ δ{k} of {kind}"


def _label(k: int, layer: ForwardRecord) -> str:
    return f"{k}  {type(layer.module).__name__.lower() if layer.name.isdigit() else layer.name}"


def _size(tensor: Any, skip: int = 1) -> str:
    """The shape as text, without its first `skip` axes: the batch axis of values, none of gradients."""
    return " × ".join(map(str, tensor.shape[skip:])) or "1"


def _show(tensor: Any, max_numbers: int) -> str:
    flat = tensor.detach().flatten().tolist()
    return "  ".join(f"{value or 0.0:.4g}" for value in flat[:max_numbers]) + ("  …" if len(flat) > max_numbers else "")


def tiny() -> Subject:
    """A 2-2-1 network with round weights: every line can be checked by hand."""
    with preserve_state():
        first, last = nn.Linear(2, 2), nn.Linear(2, 1)
    with torch.no_grad():
        first.weight.copy_(torch.tensor([[0.5, -1.0], [1.0, 0.5]]))
        first.bias.copy_(torch.tensor([0.0, -0.5]))
        last.weight.copy_(torch.tensor([[2.0, -1.0]]))
        last.bias.copy_(torch.tensor([0.5]))
    net = nn.Sequential(first, nn.Sigmoid(), last)
    x = torch.tensor([[2.0, 1.0], [0.0, 1.0], [1.0, 0.0], [1.0, -1.0], [-1.0, 2.0]])
    batch = Batch(x=x, y=x.sum(1, keepdim=True) - 2, ids=torch.arange(5))
    return tiny_subject(net, batch, Nll(classes=False), task="values")
