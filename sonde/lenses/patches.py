"""Top-activating patches: for channels of a layer, the parts of images to which they answer most strongly."""

from __future__ import annotations

from typing import Annotated, Any

import torch
from torch.nn.functional import pad

from ..core.numbers import number
from ..core.options import Range
from ..core.reading import Images, Reading, Subject
from .receptive_field import measure
from .tools.pictures import chosen, flat, last_convolution, maps, no_maps, stretch
from .tools.readonly import CHUNK, guard, preserve_state
from .tools.tiny import images


def why_not(subject: Subject) -> str:
    return no_maps(subject)


@guard
def read(
    subject: Subject,
    layer: str = "",
    channels: Annotated[int, Range(1, 64)] = 8,
    patches: Annotated[int, Range(1, 16)] = 8,
) -> Reading:
    """A row for each channel: what its units saw where they answered most, of every image at most one place, the strongest first.

    Args:
        layer: whose channels; none is the last convolution
        channels: how many, those whose strongest answers differ most from image to image
        patches: of each channel
    """
    with preserve_state(subject.model), torch.no_grad():
        fmaps = maps(subject.model, subject.batch[:1])
        layer = chosen(layer, fmaps, last_convolution(subject.model, fmaps))
        peaks, places = _peaks(subject, layer)
    field, width = measure(subject, [layer])[layer], fmaps[layer].shape[-1]
    which = sorted(peaks.std(0, correction=0).argsort(descending=True, stable=True)[:channels].tolist())
    count = min(patches, len(peaks))
    pictures, details, ids = [], [], []
    for channel in which:
        best = peaks[:, channel].argsort(descending=True, stable=True)[:count].tolist()
        for i in best:
            box = field.at(*divmod(int(places[i, channel]), width))
            pictures.append(flat(_crop(_to_picture(subject.batch.x[i]), box)))
        details += [number(round(float(peaks[i, channel]), 3)) for i in best]
        ids += best
    size = " × ".join(map(str, field.size))
    return Images(
        f"Patches that excite '{layer}' most",
        {"images": pictures},
        axes=["patch", "row", "column"],
        note=f"Of {len(peaks):,} examples; {len(which)} of {peaks.shape[1]} channels, those whose strongest answer differs most from image "
        f"to image. A patch is the field of the unit, {size} pixels, gray where it lies outside the image; below it the answer.",
        across=count,
        rows=[f"channel {channel}" for channel in which],
        details=details,
        results={"examples": ids},
    )


def _peaks(subject: Subject, layer: str) -> tuple[Any, Any]:
    """The largest answer of each channel to each example, (B, C), and at which of its h w places."""
    values, places = [], []
    for start in range(0, len(subject.batch), CHUNK):
        own = maps(subject.model, subject.batch[start : start + CHUNK])[layer]
        peak = own.flatten(2).max(2)
        values.append(peak.values.double())
        places.append(peak.indices)
    return torch.cat(values), torch.cat(places)


def _to_picture(image: Any) -> Any:
    return stretch(image if len(image) in (1, 3) else image.mean(0, keepdim=True))


def _crop(image: Any, box: Any) -> Any:
    """The part of an image (C, H, W) inside a box, gray where the box reaches over its edges."""
    top, left, height, width = box
    edges = (max(-left, 0), max(left + width - image.shape[2], 0), max(-top, 0), max(top + height - image.shape[1], 0))
    whole = pad(image, edges, value=0.5)
    return whole[:, max(top, 0) : max(top, 0) + height, max(left, 0) : max(left, 0) + width]


def tiny() -> Subject:
    return images()
