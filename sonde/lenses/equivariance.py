"""Equivariance error: how far the feature maps of a shifted, rotated or enlarged image are from the shifted, rotated or enlarged maps.

The error of a layer f under t is |f(t(x)) - t(f(x))| / |t(f(x))| in root mean square over images, channels and positions; 0 is
exact.  A convolution is equivariant to shifts, except at the edges and with a stride; it is not equivariant to rotation and
scale.  For an output without spatial axes the error is |f(t(x)) - f(x)| / |f(x)|, the error of invariance.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any

import torch
from torch.nn.functional import interpolate, pad

from ..core.batch import call_model
from ..core.options import Range
from ..core.reading import Bars, Reading, Subject
from .tools.pictures import jumps, maps, maps_of, no_maps
from .tools.readonly import guard, preserve_state, spread_evenly
from .tools.tiny import images

if TYPE_CHECKING:
    from torch import Tensor


def why_not(subject: Subject) -> str:
    """Why the lens does not apply to a subject, or ''; `guard` turns it into an error."""
    return no_maps(subject)


@guard
def read(
    subject: Subject,
    pixels: Annotated[int, Range(1, 1024)] = 2,
    examples: Annotated[int, Range(1, 4096)] = 32,
    layers: Annotated[int, Range(1, 64)] = 16,
) -> Reading:
    """The error of each layer under four transformations of the image.

    Args:
        pixels: shift to the right; maps of a layer with a stride are shifted by a fraction of a position
        examples: how many images, the first of the batch
        layers: how many to show, evenly spaced from the first to the last
    """
    with preserve_state(subject.model), torch.no_grad():
        table = errors(subject.model, subject.batch[:examples], pixels)
    names = list(next(iter(table.values())))
    output = [names.pop()] if names[-1] == OUTPUT else []
    names = spread_evenly(names, layers) + output
    return Bars(
        "Equivariance error",
        {change: [by_layer.get(name) for name in names] for change, by_layer in table.items()},
        axes=["layer"],
        note=f"|f(t(x)) − t(f(x))| / |t(f(x))| over {min(examples, len(subject.batch))} images; 0 is exact. Shifts are {pixels} pixels to "
        "the right: circular, or with zero padding, which is not compared. Rotation is by 90°, enlargement by a factor of 2."
        + (" The last row is the model's output and shows its invariance error, |f(t(x)) − f(x)| / |f(x)|." if output else ""),
        labels=names,
    )


OUTPUT = "model output"
TRANSFORMS = ("circular shift", "shift", "rotation", "enlargement")


def errors(model: Any, batch: Any, pixels: int) -> dict[str, dict[str, float | None]]:
    """For each transformation the error of each layer; None where the transformed image does not reach the layer."""
    x, before = batch.x, maps(model, batch)
    strides = jumps(model, batch, before)
    output: Any = call_model(model, batch)
    output = output if hasattr(output, "dim") and output.dim() == 2 else None
    table: dict[str, dict[str, float | None]] = {}
    for change in TRANSFORMS:
        transformed = transform(change, x, pixels)
        after = maps_of(model, batch, transformed)
        own: dict[str, float | None] = {}
        for name, old in before.items():
            if name not in after or len(after[name]) != len(old):
                own[name] = None
                continue
            steps = pixels / strides[name][1]
            a, b = _common(change, after[name], transform(change, old, steps, after[name].shape[-2:]), steps)
            own[name] = _error(a, b)
        if output is not None:
            own[OUTPUT] = _error(new, output) if (new := _output_for(model, batch.replace(x=transformed))) is not None else None
        table[change] = own
    return table


def transform(change: str, maps: Tensor, steps: float, size: Any = None) -> Tensor:
    """Images or maps (B, C, h, w) transformed; `size` is the size after enlargement, by default twice the size."""
    if change == "rotation":
        return maps.rot90(1, (2, 3))
    if change == "enlargement":
        size = size or tuple(2 * n for n in maps.shape[-2:])
        return interpolate(maps, size=size, mode="bilinear", align_corners=False)
    return _shift(maps, steps, circular=change == "circular shift")


def _shift(maps: Tensor, steps: float, circular: bool) -> Tensor:
    """Maps shifted to the right, circularly or with zero padding; a fraction of a step interpolates between two positions."""

    def move(whole: int) -> Tensor:
        return maps.roll(whole, 3) if circular else pad(maps, (whole, 0))[..., : maps.shape[-1]]

    low = int(steps)
    part = steps - low
    return move(low) if not part else (1 - part) * move(low) + part * move(low + 1)


def _common(change: str, a: Tensor, b: Tensor, steps: float) -> tuple[Tensor, Tensor]:
    """The positions that are compared: all of them, but not the zero padding of a shift."""
    if a.shape != b.shape:  # an odd side, which leaves one position more
        h, w = (min(m, n) for m, n in zip(a.shape[-2:], b.shape[-2:], strict=True))
        a, b = a[..., :h, :w], b[..., :h, :w]
    start = min(math.ceil(steps), a.shape[-1] - 1) if change == "shift" else 0
    return a[..., start:], b[..., start:]


def _error(a: Tensor, b: Tensor) -> float | None:
    size = float(b.double().square().mean().sqrt())
    return float((a.double() - b.double()).square().mean().sqrt()) / size if size > 0 else None


def _output_for(model: Any, batch: Any) -> Any:
    """The output for an image of any size, or None where the model does not accept that size."""
    try:
        return call_model(model, batch)
    except Exception:  # only the network itself knows which sizes it accepts
        return None


def tiny() -> Subject:
    """A small subject for the contract tests."""
    return images()
