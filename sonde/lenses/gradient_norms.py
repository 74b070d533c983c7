"""Gradient norm, weight norm and their ratio for every layer, from one backward pass; reports vanishing and exploding gradients.

A gradient vanishes (explodes) where its root mean square is a thousand times smaller (larger) than in the layer next to
the loss: backpropagation multiplies one Jacobian per layer, and this comparison does not depend on the scale of the loss.
It also explodes where it is a thousand times larger than the weights, because then no step size suits both.
"""

from __future__ import annotations

import math
from typing import Annotated

import torch

from ..core.options import Range
from ..core.reading import Bars, Reading, Subject
from .tools.readonly import guard, no_gradient, preserve_state
from .tools.tiny import images

REPORT = {"position": 60, "examples": 256}
"""the autograd graph of all examples is in memory at once, so the report uses few"""


def why_not(subject: Subject) -> str:
    """Why the lens does not apply to a subject, or ''; `guard` turns it into an error."""
    return no_gradient(subject)


@guard
def read(subject: Subject, factor: Annotated[float, Range(above=1)] = 1e3) -> Reading:
    """Norms over all parameters of each layer, in evaluation mode.

    Args:
        factor: a gradient this many times smaller or larger than in the last layer counts as vanishing or exploding
    """
    named = [(name, parameter) for name, parameter in subject.model.named_parameters() if parameter.requires_grad]
    with preserve_state(subject.model), torch.inference_mode(False), torch.enable_grad():
        loss = subject.objective(subject.model, subject.batch).loss()
        gradients = torch.autograd.grad(loss, [parameter for _, parameter in named], allow_unused=True)
    kinds = {name: type(module).__name__ for name, module in subject.model.named_modules()}
    layers: dict[str, list[float]] = {}  # squared gradient, squared weight, entries
    with torch.no_grad():
        for (name, parameter), gradient in zip(named, gradients, strict=True):
            owner = name.rpartition(".")[0]
            sums = layers.setdefault(f"{owner} {kinds[owner]}".strip(), [0.0, 0.0, 0.0])
            sums[0] += 0.0 if gradient is None else float(gradient.double().square().sum())
            sums[1] += float(parameter.double().square().sum())
            sums[2] += parameter.numel()
    gradient_norm = [math.sqrt(g) for g, _, _ in layers.values()]
    weight_norm = [math.sqrt(w) for _, w, _ in layers.values()]
    rms = {name: math.sqrt(g / max(entries, 1)) for name, (g, _, entries) in layers.items()}
    return Bars(
        "Gradients by layer",
        {
            "gradient norm": gradient_norm,
            "weight norm": weight_norm,
            "gradient / weight": [g / w if w else None for g, w in zip(gradient_norm, weight_norm, strict=True)],
        },
        axes=["layer"],
        note=verdict(rms, {name for name, (g, w, _) in layers.items() if w and g > factor**2 * w}, factor),
        labels=list(layers),
        log=["value"],
        results={"loss": float(loss.detach())},
    )


def verdict(rms: dict[str, float], beyond: set[str], factor: float) -> str:
    """What the root mean square gradients by depth show; `beyond` are layers whose gradient is much larger than their weights."""
    broken = [name for name, value in rms.items() if not math.isfinite(value)]
    if broken:
        return f"Exploding: the gradient is not finite in {_list(broken)}."
    alive = {name: value for name, value in rms.items() if value}
    if not alive:
        return "No layer receives any gradient."
    last = list(alive.values())[-1]
    findings = (
        ("No gradient reaches {}.", [name for name in rms if name not in alive]),
        (
            "Vanishing: in {} the root mean square gradient is over {:g} times smaller than in the last layer.",
            [n for n, v in alive.items() if v * factor < last],
        ),
        (
            "Exploding: in {} the root mean square gradient is over {:g} times larger than in the last layer.",
            [n for n, v in alive.items() if v > last * factor],
        ),
        (
            "Exploding: in {} the root mean square gradient is over {:g} times larger than the weights.",
            [name for name in rms if name in beyond],
        ),
    )
    parts = [text.format(_list(names), factor) for text, names in findings if names]
    if not parts:
        spread = max(alive.values()) / min(alive.values())
        parts.append(f"Neither vanishing nor exploding: root mean square gradients differ by a factor of {spread:.3g} over the layers.")
    return " ".join(parts)


def _list(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def tiny() -> Subject:
    """A small subject for the contract tests."""
    return images()
