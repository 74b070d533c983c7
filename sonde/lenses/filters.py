"""Filters of the first convolution, as pictures."""

from __future__ import annotations

from typing import Annotated, Any

from torch import nn

from ..core.options import Range
from ..core.reading import Images, Reading, Subject
from .tools.readonly import guard
from .tools.tiny import images

REPORT = {"position": 70}


def why_not(subject: Subject) -> str:
    """Why the lens does not apply to a subject, or ''; `guard` turns it into an error."""
    if subject.model is None:
        return "there is no model"
    name, layer = first(subject.model)
    if layer is None:
        return "the model has no two-dimensional convolution"
    return "" if layer.kernel_size != (1, 1) else f"the first convolution '{name}' is 1 × 1, so its filters have no spatial shape"


@guard
def read(subject: Subject, n: Annotated[int, Range(least=1)] = 64) -> Reading:
    """One picture per filter; zero is gray, and each filter is scaled by its own largest weight.

    Args:
        n: maximum number of filters
    """
    name, layer = first(subject.model)
    weight = layer.weight.detach().float()
    total, channels = weight.shape[:2]
    weight = weight[:n].permute(0, 2, 3, 1) if channels == 3 else weight[:n].mean(1)
    scale = weight.flatten(1).abs().amax(1).clamp_min(1e-12).reshape(-1, *[1] * (weight.dim() - 1))
    shape = " × ".join(map(str, layer.kernel_size))
    summary = f"{total} filters of {shape} in '{name}'" + (f", the first {len(weight)} shown" if total > len(weight) else "")
    mean = "" if channels in (1, 3) else f"; mean over {channels} input channels"
    return Images(
        "First-layer filters",
        {"images": 0.5 + 0.5 * weight / scale},
        axes=["filter", "row", "column"],
        note=f"{summary}{mean}. Gray is zero, white positive, black negative."
        if channels != 3
        else f"{summary}, as red, green and blue. Gray is zero.",
        dense=True,
    )


def first(model: Any) -> tuple[str, Any]:
    """Name and module of the first 2-D convolution, in the order the model was built."""
    return next(((name, module) for name, module in model.named_modules() if isinstance(module, nn.Conv2d)), ("", None))


def tiny() -> Subject:
    """A small subject for the contract tests."""
    return images()
