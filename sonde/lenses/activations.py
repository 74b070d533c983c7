"""Activation functions on real inputs: the mean slope of each, the fraction of inputs where it is flat, and dead units.

An activation multiplies the gradient by its slope at the input: a sigmoid far from 0, or a ReLU below 0, passes almost none
back.  A unit that is flat for every example receives no gradient and does not learn: it is dead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import torch
from torch import nn

from ..core.batch import call_model
from ..core.options import Range
from ..core.reading import Bars, Reading, Subject
from ..nn.activations import describe, names
from .tools.readonly import guard, hook_inputs, no_model, preserve_state
from .tools.tiny import images

if TYPE_CHECKING:
    from torch import Tensor


def why_not(subject: Subject) -> str:
    """Why the lens does not apply to a subject, or ''; `guard` turns it into an error."""
    return no_model(subject) or ("" if _activations(subject.model) else "no activation function of the model is a module")


@guard
def read(subject: Subject, flat: Annotated[float, Range(least=0, below=1)] = 0.01) -> Reading:
    """Slopes at the inputs of each activation, in evaluation mode.

    Args:
        flat: an activation counts as flat where its slope is at most this fraction of its maximum slope
    """
    layers = _activations(subject.model)
    inputs: dict[str, list[Tensor]] = {name: [] for name in layers}
    name_of = {module: name for name, module in layers.items()}

    def note(module: Any, values: Any) -> None:
        inputs[name_of[module]].append(values[0].clone())  # a copy, before the layer runs: some work in place

    with preserve_state(subject.model), torch.no_grad(), hook_inputs(layers.values(), note):
        call_model(subject.model, subject.batch)
    seen = {name: _slopes(layers[name], values, flat) for name, values in inputs.items() if values}
    mean, fraction, dead = zip(*seen.values(), strict=True)
    labels = [f"{name} {type(layers[name]).__name__}" for name in seen]
    with_dead = [f"{label} ({rate:.0%})" for label, rate in zip(labels, dead, strict=True) if rate > 0]
    text = f"Layers with dead units: {', '.join(with_dead[:4])}." if with_dead else "No unit is dead."
    return Bars(
        "Slopes of the activations",
        {"mean slope": mean, "flat": fraction, "dead units": dead},
        axes=["layer"],
        note=f"Measured on {len(subject.batch)} examples; flat means a slope of at most {flat:g} of the maximum. {text}",
        labels=labels,
    )


def _activations(model: Any) -> dict[str, Any]:
    """Elementwise activations of a model by name, without the identity."""
    known = tuple({type(describe(name).module) for name in names() if describe(name).elementwise} - {nn.Identity, nn.Sequential})
    return {name: module for name, module in model.named_modules() if isinstance(module, known)}


def _slopes(layer: Any, inputs: list[Tensor], flat: float) -> tuple[float, float, float]:
    """Mean absolute slope, fraction of values that are flat, and fraction of units (axis 1) that are flat for all examples."""

    def slope(a: Tensor) -> Tensor:
        with torch.inference_mode(False), torch.enable_grad():
            a = a.detach().clone().requires_grad_()
            return torch.autograd.grad(layer(a * 1).sum(), a)[0].abs()

    steepest = float(slope(torch.linspace(-16, 16, 3201, device=inputs[0].device)).max())
    slopes = [slope(a) for a in inputs]
    flat_values = [each <= flat * steepest for each in slopes]
    everywhere = torch.stack([each.movedim(1, 0).flatten(1).all(1) if each.ndim > 1 else each.all()[None] for each in flat_values]).all(0)
    values = torch.cat([each.flatten() for each in slopes])
    return float(values.mean()), float(torch.cat([each.flatten() for each in flat_values]).float().mean()), float(everywhere.float().mean())


def tiny() -> Subject:
    """A small subject for the contract tests."""
    return images()
