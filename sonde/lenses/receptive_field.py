"""Receptive field of each layer: by the formula, measured from gradients, and drawn on the image.

By the formula a unit of layer L sees 1 + sum_l (k_l - 1) d_l prod_{m<l} s_m pixels on each axis (computed in `lenses/cost.py`).
Measured, it is the bounding box of all pixels for which the middle unit has a nonzero gradient, for some image and channel.
Most of that gradient is in the middle of the box: the effective receptive field (Luo et al., Understanding the Effective
Receptive Field in Deep Convolutional Neural Networks, 2016).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import torch

from ..core.numbers import number
from ..core.options import Range
from ..core.reading import Images, Reading, Subject, Table
from .cost import cost, size_text
from .tools.pictures import enable_gradients, jumps, maps, maps_of, no_maps, picture, select_layer, spread_out
from .tools.readonly import check_index, guard, preserve_state, spread_evenly
from .tools.tiny import images

if TYPE_CHECKING:
    from torch import Tensor

LARGEST = 256
"""maximum side of the random images that measure a field"""
FRAMES = 7
"""maximum number of fields in the picture, one color each"""
PIXELS = 2**15
"""pixels of the images that are differentiated at once"""


class Box(NamedTuple):
    """A rectangle of pixels; it may extend beyond the image."""

    top: int
    left: int
    height: int
    width: int


class Field(NamedTuple):
    """Receptive fields of the units of one layer: that of unit (i, j) begins at start + jump (i, j)."""

    start: tuple[float, float]
    size: tuple[int, int]
    jump: tuple[float, float]
    whole: bool
    """False where it extends beyond every image that was tried, so that it is larger than measured"""

    def at(self, row: int, column: int) -> Box:
        top, left = (round(start + i * jump) for start, i, jump in zip(self.start, (row, column), self.jump, strict=True))
        return Box(top, left, *self.size)


def why_not(subject: Subject) -> str:
    """Why the lens does not apply to a subject, or ''; `guard` turns it into an error."""
    return no_maps(subject)


@guard
def read(
    subject: Subject,
    example: Annotated[int, Range(0)] = 0,
    layer: str = "",
    layers: Annotated[int, Range(1, 100)] = 24,
    probes: Annotated[int, Range(1, 256)] = 8,
) -> list[Reading]:
    """A table of the receptive field of each layer, and an image with the fields of the middle units and the gradient of one of them.

    Args:
        example: index of the image to draw on
        layer: whose gradient is shown; default: the last with more than one position
        layers: how many to measure, evenly spaced from the first to the last
        probes: number of random images that measure a field, and of images over which the gradient is averaged
    """
    check_index("example", example, len(subject.batch))
    model, batch = subject.model, subject.batch
    with preserve_state(model), torch.no_grad():
        fmaps = maps(model, batch[example : example + 1])
    layer = select_layer(layer, fmaps, list(spread_out(fmaps))[-1])
    # A layer that runs several times has the field of its last run.
    formula = {f"{row.name} ({row.calls})" if row.calls > 1 else row.name: row.field for row in cost(model, batch).rows if row.field}
    growing = _layers_that_grow(list(fmaps), formula)
    names = spread_evenly(growing, layers)
    fields = measure(subject, [*names, layer], probes)
    repeats = {
        name for before, name in zip(names, names[1:]) if name not in formula and fields[before].whole and _same_field(fields, before, name)
    }
    shown = {name: fields[name] for name in names if name not in repeats}
    middle = {name: fields[name].at(*(n // 2 for n in fmaps[name].shape[-2:])) for name in fields}
    images = batch.x[example : example + probes]
    _, heat = gradient(model, batch[:1], images, [layer])[layer]
    known = {name: field for name, field in shown.items() if name in formula and field.whole}
    wrong = [name for name, field in known.items() if field.size != formula[name]]
    agree = f"Formula and measurement agree for {len(known) - len(wrong)} of {len(known)} layers where both are known"
    table = Table(
        "Receptive field of each layer",
        {
            "layer": list(shown),
            "output": [size_text(fmaps[name].shape[1:]) for name in shown],
            "formula": [size_text(formula[name]) if name in formula else None for name in shown],
            "measured": [_size_text(field) for field in shown.values()],
            "jump": [size_text([number(step) for step in field.jump]) for field in shown.values()],
        },
        axes=["layer"],
        note=f"In pixels. Measured: bounding box of the gradients of the middle unit over {probes} random images, large enough to contain "
        f"the box. {agree}{'; not ' + ', '.join(wrong) if wrong else ''}. Layers with the same field as the one before are "
        "left out; the formula holds for chains of convolutions, pooling and elementwise layers."
        + (f" {len(names)} of {len(growing)} other layers were measured; set layers for more." if len(names) < len(growing) else ""),
    )
    size = batch.x.shape[-2:]
    mass = heat.flatten().sort(descending=True).values.cumsum(0)
    half = int((mass < 0.5 * mass[-1]).sum()) + 1
    view = Images(
        "Receptive fields on the image",
        {"images": [picture(batch.x[example])] * 2},
        axes=["picture", "row", "column"],
        note=f"Example {example}. Left: receptive field of the middle unit of each layer, clipped to the image. Right: mean absolute "
        f"gradient of the middle unit of '{layer}' over {len(images)} examples; half of it is on {half} of "
        f"{heat.numel():,} pixels.",
        size=2.3,
        labels=["fields", f"gradient of {layer}"],
        heat=[None, heat / heat.max().clamp_min(1e-30)],
        frames=[{name: list(_clip(middle[name], size)) for name in spread_evenly(list(shown), FRAMES)}, {}],
    )
    return [table, view]


def _same_field(fields: dict[str, Field], one: str, other: str) -> bool:
    return fields[one].size == fields[other].size and fields[one].jump == fields[other].jump


def _size_text(field: Field) -> str:
    return "no gradient" if not field.size[0] else ("" if field.whole else "at least ") + size_text(field.size)


def _layers_that_grow(names: list[str], formula: dict[str, Any]) -> list[str]:
    """Layers whose field may differ from that of the previous layer."""
    return [name for name, before in zip(names, ["", *names]) if formula.get(name) is None or formula.get(name) != formula.get(before)]


def _clip(box: Box, size: tuple[int, int]) -> Box:
    """The part of a box inside the image."""
    (top, height), (left, width) = (
        (max(start, 0), max(min(start + length, whole) - max(start, 0), 0))
        for start, length, whole in zip(box[:2], box[2:], size, strict=True)
    )
    return Box(top, left, height, width)


def measure(subject: Subject, layers: Sequence[str], probes: int = 8) -> dict[str, Field]:
    """Receptive fields of some layers, from gradients on random images, which grow until every field is inside them."""
    model, batch, seen = subject.model, subject.batch[:1], subject.batch.x
    with preserve_state(model), torch.no_grad():
        strides = jumps(model, batch, maps(model, batch))
    mean, spread = seen.mean((0, 2, 3), keepdim=True), seen.std(correction=0).clamp_min(1e-6)
    rng, size = torch.Generator().manual_seed(0), tuple(seen.shape[-2:])
    fields: dict[str, Field] = {}
    units: dict[str, tuple[int, int]] = {}
    remaining = list(dict.fromkeys(layers))
    while remaining and (not fields or max(size) <= LARGEST):
        x = mean + spread * torch.randn(probes, seen.shape[1], *size, generator=rng, dtype=seen.dtype)
        slopes = gradient(model, batch, x, remaining)
        for name, (unit, slope) in slopes.items():
            start, length = _extent(slope)
            inside = all(s > 0 and s + n < whole for s, n, whole in zip(start, length, size, strict=True))
            jump = strides[name]
            origin = tuple(s - i * j for s, i, j in zip(start, unit, jump, strict=True))
            fields[name] = Field(origin, length, jump, inside)  # type: ignore[arg-type]
        # A map that does not grow with the image depends on all of it.
        remaining = [name for name, (unit, _) in slopes.items() if not fields[name].whole and units.get(name) != unit]
        units = {name: unit for name, (unit, _) in slopes.items()}
        size = (2 * size[0], 2 * size[1])
    return fields


def gradient(model: Any, batch: Any, x: Tensor, layers: Sequence[str]) -> dict[str, tuple[tuple[int, int], Tensor]]:
    """For each layer its middle unit and the mean absolute gradient of that unit with respect to each pixel of x, (H, W).

    A random linear combination of the unit's channels needs a single backward pass.  Torch computes convolutions on a CPU
    directly, so zeros are exact.  Layers that images of this size do not reach are left out.
    """
    rng = torch.Generator().manual_seed(1)
    gradients: dict[str, tuple[tuple[int, int], Tensor]] = {}
    for part in x.split(max(1, PIXELS // x[0, 0].numel())):
        with preserve_state(model), enable_gradients():
            part = part.detach().clone().requires_grad_()
            own_size = part.shape[2:] == batch.x.shape[2:]  # no error is allowed on the size of the batch
            fmaps = maps(model, batch.replace(x=part)) if own_size else maps_of(model, batch, part)
            for name in (name for name in layers if name in fmaps):
                own = fmaps[name]
                unit = own.shape[-2] // 2, own.shape[-1] // 2
                mixed = own[:, :, *unit] @ torch.randn(own.shape[1], generator=rng, dtype=own.dtype)
                (slope,) = torch.autograd.grad(mixed.sum(), part, retain_graph=True)
                before = gradients[name][1] if name in gradients else 0
                gradients[name] = unit, before + slope.abs().sum((0, 1)) / len(x)
    return gradients


def _extent(slope: Tensor) -> tuple[tuple[int, int], tuple[int, int]]:
    """Start and length of the nonzero entries, vertically and horizontally."""
    nonzero = slope > 0
    lines = [nonzero.any(axis).nonzero().flatten().tolist() or [0, -1] for axis in (1, 0)]
    return (lines[0][0], lines[1][0]), (lines[0][-1] - lines[0][0] + 1, lines[1][-1] - lines[1][0] + 1)


def tiny() -> Subject:
    """A small subject for the contract tests."""
    return images()
