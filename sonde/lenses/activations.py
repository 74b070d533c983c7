"""Activations at work: the mean slope of each one on real inputs, how much of it is flat, and units that never pass a gradient.

What an activation does to a gradient is its slope at the inputs it gets: a sigmoid far from 0, or a ReLU below it, passes
nothing back.  A unit that is flat for every example does not learn from any of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import torch
from torch import nn

from ..core.batch import ask
from ..core.options import Range
from ..core.reading import Bars, Reading, Subject
from ..nn.activations import describe, names
from .tools.readonly import guard, hook_inputs, no_model, preserve_state
from .tools.tiny import images

if TYPE_CHECKING:
    from torch import Tensor


def why_not(subject: Subject) -> str:
    return no_model(subject) or ("" if _activations(subject.model) else "the model has no activation that is a layer of its own")


@guard
def read(subject: Subject, flat: Annotated[float, Range(least=0, below=1)] = 0.01) -> Reading:
    """Slopes at the inputs of each activation, in evaluation mode.

    Args:
        flat: slope, as a share of the steepest one the activation has, up to which it counts as flat
    """
    layers = _activations(subject.model)
    inputs: dict[str, list[Tensor]] = {name: [] for name in layers}
    name_of = {module: name for name, module in layers.items()}

    def note(module: Any, values: Any) -> None:
        inputs[name_of[module]].append(values[0].clone())  # a copy, before the layer runs: some work in place

    with preserve_state(subject.model), torch.no_grad(), hook_inputs(layers.values(), note):
        ask(subject.model, subject.batch)
    seen = {name: _slopes(layers[name], values, flat) for name, values in inputs.items() if values}
    mean, share, dead = zip(*seen.values(), strict=True)
    labels = [f"{name} {type(layers[name]).__name__}" for name in seen]
    asleep = [f"{label} ({rate:.0%})" for label, rate in zip(labels, dead, strict=True) if rate > 0]
    text = f"Units that are flat for all of them: {', '.join(asleep[:4])}." if asleep else "Every unit passes a gradient for some of them."
    return Bars(
        "Activations at work",
        {"mean slope": mean, "flat": share, "dead units": dead},
        axes=["layer"],
        note=f"Measured on {len(subject.batch)} examples; flat is a slope of at most {flat:g} of the steepest. {text}",
        labels=labels,
    )


def _activations(model: Any) -> dict[str, Any]:
    """Elementwise activations of a model by name; the identity does nothing worth showing."""
    known = tuple({type(describe(name).module) for name in names() if describe(name).elementwise} - {nn.Identity, nn.Sequential})
    return {name: module for name, module in model.named_modules() if isinstance(module, known)}


def _slopes(layer: Any, inputs: list[Tensor], flat: float) -> tuple[float, float, float]:
    """Mean absolute slope, share of values that are flat, and share of units (axis 1) that are flat for all examples."""

    def slope(a: Tensor) -> Tensor:
        with torch.inference_mode(False), torch.enable_grad():
            a = a.detach().clone().requires_grad_()
            return torch.autograd.grad(layer(a * 1).sum(), a)[0].abs()

    steepest = float(slope(torch.linspace(-16, 16, 3201, device=inputs[0].device)).max())
    slopes = [slope(a) for a in inputs]
    still = [each <= flat * steepest for each in slopes]
    everywhere = torch.stack([each.movedim(1, 0).flatten(1).all(1) if each.ndim > 1 else each.all()[None] for each in still]).all(0)
    values = torch.cat([each.flatten() for each in slopes])
    return float(values.mean()), float(torch.cat([each.flatten() for each in still]).float().mean()), float(everywhere.float().mean())


def tiny() -> Subject:
    return images()
