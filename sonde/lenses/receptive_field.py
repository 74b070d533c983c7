"""Receptive field: which pixels a unit of each layer sees, by the formula, measured from gradients, and drawn on the image.

By the formula a unit of layer L sees 1 + sum_l (k_l - 1) d_l prod_{m<l} s_m pixels on each axis (`lenses/cost.py` owns it).
Measured it is the box around all pixels on which the middle unit has a gradient that is not 0, for some image and channel.
Most of that gradient lies in the middle of the box: the effective receptive field (Luo et al., Understanding the Effective
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
from .tools.pictures import chosen, enable_gradients, jumps, maps, maps_of, no_maps, picture, spread_out
from .tools.readonly import check_index, guard, preserve_state, spread_evenly
from .tools.tiny import images

if TYPE_CHECKING:
    from torch import Tensor

LARGEST = 256
"""side of the largest image that is generated to measure a field"""
FRAMES = 7
"""fields that are drawn, a color for each"""
PIXELS = 2**15
"""of the images that are differentiated at once"""


class Box(NamedTuple):
    """A rectangle of pixels; it may reach over the edges of the image."""

    top: int
    left: int
    height: int
    width: int


class Field(NamedTuple):
    """The field of the units of one layer: that of unit (i, j) begins at start + jump (i, j)."""

    start: tuple[float, float]
    size: tuple[int, int]
    jump: tuple[float, float]
    whole: bool
    """False where it reaches over the edges of every image that was tried, so that it is larger than measured"""

    def at(self, row: int, column: int) -> Box:
        top, left = (round(start + i * jump) for start, i, jump in zip(self.start, (row, column), self.jump, strict=True))
        return Box(top, left, *self.size)


def why_not(subject: Subject) -> str:
    return no_maps(subject)


@guard
def read(
    subject: Subject,
    example: Annotated[int, Range(0)] = 0,
    layer: str = "",
    layers: Annotated[int, Range(1, 100)] = 24,
    probes: Annotated[int, Range(1, 256)] = 8,
) -> list[Reading]:
    """A table of the field of each layer, and the image with the fields of the middle units and the gradient of one of them.

    Args:
        example: the image to draw on, which of the batch, from 0
        layer: whose gradient is shown; none is the last with more than one place
        layers: how many to measure, from the first to the last
        probes: random images from which a field is measured, and images of the batch over which the gradient is averaged
    """
    check_index("example", example, len(subject.batch))
    model, batch = subject.model, subject.batch
    with preserve_state(model), torch.no_grad():
        fmaps = maps(model, batch[example : example + 1])
    layer = chosen(layer, fmaps, list(spread_out(fmaps))[-1])
    # A layer that runs several times has the field of its last run.
    formula = {f"{row.name} ({row.calls})" if row.calls > 1 else row.name: row.field for row in cost(model, batch).rows if row.field}
    growing = _growing(list(fmaps), formula)
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
    agree = f"Of {len(known)} layers where both are known, {len(known) - len(wrong)} agree"
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
        note=f"In pixels. Measured: the box around all gradients of the middle unit over {probes} random images, as large as it takes for "
        f"the box to end inside. {agree}{'; not ' + ', '.join(wrong) if wrong else ''}. Layers that see no more than the one before are "
        "left out; the formula is known for chains of convolutions, pools and what works on single entries."
        + (f" Of {len(growing)} others {len(names)} were measured: set layers for more." if len(names) < len(growing) else ""),
    )
    size = batch.x.shape[-2:]
    mass = heat.flatten().sort(descending=True).values.cumsum(0)
    half = int((mass < 0.5 * mass[-1]).sum()) + 1
    view = Images(
        "Receptive fields on the image",
        {"images": [picture(batch.x[example])] * 2},
        axes=["picture", "row", "column"],
        note=f"Example {example}. Left: what the middle unit of each layer sees, as far as it lies on the image. Right: mean size of the "
        f"gradient of the middle unit of '{layer}' over {len(images)} examples; half of it lies on {half} of "
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


def _growing(names: list[str], formula: dict[str, Any]) -> list[str]:
    """Layers whose field may differ from that of the layer before."""
    return [name for name, before in zip(names, ["", *names]) if formula.get(name) is None or formula.get(name) != formula.get(before)]


def _clip(box: Box, size: tuple[int, int]) -> Box:
    """The part of a box that lies on the image."""
    (top, height), (left, width) = (
        (max(start, 0), max(min(start + length, whole) - max(start, 0), 0))
        for start, length, whole in zip(box[:2], box[2:], size, strict=True)
    )
    return Box(top, left, height, width)


def measure(subject: Subject, layers: Sequence[str], probes: int = 8) -> dict[str, Field]:
    """The receptive field of some layers, from gradients by random images that grow until every box ends inside them."""
    model, batch, seen = subject.model, subject.batch[:1], subject.batch.x
    with preserve_state(model), torch.no_grad():
        apart = jumps(model, batch, maps(model, batch))
    mean, spread = seen.mean((0, 2, 3), keepdim=True), seen.std(correction=0).clamp_min(1e-6)
    rng, size = torch.Generator().manual_seed(0), tuple(seen.shape[-2:])
    fields: dict[str, Field] = {}
    units: dict[str, tuple[int, int]] = {}
    left = list(dict.fromkeys(layers))
    while left and (not fields or max(size) <= LARGEST):
        x = mean + spread * torch.randn(probes, seen.shape[1], *size, generator=rng, dtype=seen.dtype)
        slopes = gradient(model, batch, x, left)
        for name, (unit, slope) in slopes.items():
            start, length = _extent(slope)
            inside = all(s > 0 and s + n < whole for s, n, whole in zip(start, length, size, strict=True))
            jump = apart[name]
            origin = tuple(s - i * j for s, i, j in zip(start, unit, jump, strict=True))
            fields[name] = Field(origin, length, jump, inside)  # type: ignore[arg-type]
        # A map that does not grow with the image is made of all of it.
        left = [name for name, (unit, _) in slopes.items() if not fields[name].whole and units.get(name) != unit]
        units = {name: unit for name, (unit, _) in slopes.items()}
        size = (2 * size[0], 2 * size[1])
    return fields


def gradient(model: Any, batch: Any, x: Tensor, layers: Sequence[str]) -> dict[str, tuple[tuple[int, int], Tensor]]:
    """For each layer its middle unit and the mean size of that unit's gradient by each pixel of the images x, (H, W).

    The channels of a unit are mixed at random, which takes one backward pass for all of them.  Torch computes convolutions on a
    CPU directly, so that what is 0 comes out as 0.  Layers that the network does not reach with images of this size are left out.
    """
    rng = torch.Generator().manual_seed(1)
    gradients: dict[str, tuple[tuple[int, int], Tensor]] = {}
    for part in x.split(max(1, PIXELS // x[0, 0].numel())):
        with preserve_state(model), enable_gradients():
            part = part.detach().clone().requires_grad_()
            own_size = part.shape[2:] == batch.x.shape[2:]  # on which nothing may fail
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
    """Where the entries that are not 0 begin and how far they reach, down and across."""
    touched = slope > 0
    lines = [touched.any(axis).nonzero().flatten().tolist() or [0, -1] for axis in (1, 0)]
    return (lines[0][0], lines[1][0]), (lines[0][-1] - lines[0][0] + 1, lines[1][-1] - lines[1][0] + 1)


def tiny() -> Subject:
    return images()
