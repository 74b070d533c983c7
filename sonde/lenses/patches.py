"""Top-activating patches: for channels of a layer, the image patches with the largest activation."""

from __future__ import annotations

from typing import Annotated, Any

import torch
from torch.nn.functional import pad

from ..core.numbers import number
from ..core.options import Range
from ..core.reading import Images, Reading, Subject
from .receptive_field import measure
from .tools.pictures import flat, last_convolution, maps, no_maps, select_layer, stretch
from .tools.readonly import CHUNK, guard, preserve_state
from .tools.tiny import images


def why_not(subject: Subject) -> str:
    """Why the lens does not apply to a subject, or ''; `guard` turns it into an error."""
    return no_maps(subject)


@guard
def read(
    subject: Subject,
    layer: str = "",
    channels: Annotated[int, Range(1, 64)] = 8,
    patches: Annotated[int, Range(1, 16)] = 8,
) -> Reading:
    """A row for each channel: the patches with its largest activations, at most one per image, the strongest first.

    Args:
        layer: name of the layer; default: the last convolution
        channels: how many, those whose maximum activation varies most between images
        patches: how many of each channel
    """
    with preserve_state(subject.model), torch.no_grad():
        fmaps = maps(subject.model, subject.batch[:1])
        layer = select_layer(layer, fmaps, last_convolution(subject.model, fmaps))
        peaks, positions = _peaks(subject, layer)
    field, width = measure(subject, [layer])[layer], fmaps[layer].shape[-1]
    which = sorted(peaks.std(0, correction=0).argsort(descending=True, stable=True)[:channels].tolist())
    count = min(patches, len(peaks))
    pictures, details, ids = [], [], []
    for channel in which:
        best = peaks[:, channel].argsort(descending=True, stable=True)[:count].tolist()
        for i in best:
            box = field.at(*divmod(int(positions[i, channel]), width))
            pictures.append(flat(_crop(_to_picture(subject.batch.x[i]), box)))
        details += [number(round(float(peaks[i, channel]), 3)) for i in best]
        ids += best
    size = " × ".join(map(str, field.size))
    return Images(
        f"Patches with the largest activation in '{layer}'",
        {"images": pictures},
        axes=["patch", "row", "column"],
        note=f"From {len(peaks):,} examples; {len(which)} of {peaks.shape[1]} channels, those whose maximum activation varies most between "
        f"images. A patch is the receptive field of the unit, {size} pixels, gray outside the image; the activation is below it.",
        across=count,
        rows=[f"channel {channel}" for channel in which],
        details=details,
        results={"examples": ids},
    )


def _peaks(subject: Subject, layer: str) -> tuple[Any, Any]:
    """The maximum activation of each channel for each example, (B, C), and its index among the h w positions."""
    values, positions = [], []
    for start in range(0, len(subject.batch), CHUNK):
        own = maps(subject.model, subject.batch[start : start + CHUNK])[layer]
        peak = own.flatten(2).max(2)
        values.append(peak.values.double())
        positions.append(peak.indices)
    return torch.cat(values), torch.cat(positions)


def _to_picture(image: Any) -> Any:
    return stretch(image if len(image) in (1, 3) else image.mean(0, keepdim=True))


def _crop(image: Any, box: Any) -> Any:
    """The part of an image (C, H, W) inside a box, gray where the box extends beyond the image."""
    top, left, height, width = box
    edges = (max(-left, 0), max(left + width - image.shape[2], 0), max(-top, 0), max(top + height - image.shape[1], 0))
    whole = pad(image, edges, value=0.5)
    return whole[:, max(top, 0) : max(top, 0) + height, max(left, 0) : max(left, 0) + width]


def tiny() -> Subject:
    """A small subject for the contract tests."""
    return images()
