"""Feature maps: what the layers of a network make of one image, a row for each layer from the first to the last."""

from __future__ import annotations

from typing import Annotated, Any

import torch

from ..core.options import Range
from ..core.reading import Images, Reading, Subject
from .tools.pictures import maps, no_maps, picture, spread_out, stretch
from .tools.readonly import check_index, guard, preserve_state, spread_evenly
from .tools.tiny import images


def why_not(subject: Subject) -> str:
    return no_maps(subject)


@guard
def read(
    subject: Subject,
    example: Annotated[int, Range(0)] = 0,
    layers: Annotated[int, Range(1, 64)] = 8,
    channels: Annotated[int, Range(1, 16)] = 8,
) -> Reading:
    """The maps of each layer that vary most over the image, each stretched from its least value (black) to its largest (white).

    Args:
        example: which of the batch, from 0
        layers: how many to show, from the first to the last
        channels: maps of each layer
    """
    check_index("example", example, len(subject.batch))
    batch = subject.batch[example : example + 1]
    with preserve_state(subject.model), torch.no_grad():
        fmaps = maps(subject.model, batch)
    fmaps = spread_out(fmaps)
    shown = spread_evenly(list(fmaps.items()), layers)
    rows = [_row(own[0], channels) for _, own in shown]
    pictures = [[picture(batch.x[0])], *([stretch(own[0][i]) for i in which] for (_, own), which in zip(shown, rows, strict=True))]
    labels = [[""], *([str(i) for i in which] for which in rows)]
    sizes = ", ".join(f"{name} {' × '.join(map(str, own.shape[1:]))}" for name, own in shown)
    return Images(
        "Feature maps",
        {"images": [each for row in pictures for each in _pad(row, channels, None)]},
        axes=["map", "row", "column"],
        note=f"Of example {example}; {len(shown)} of {len(fmaps)} layers, of each the maps that vary most over the image, with the number "
        f"of their channel. Each goes from its least value (black) to its largest (white). Sizes: {sizes}.",
        across=channels,
        rows=["image", *(name for name, _ in shown)],
        labels=[each for row in labels for each in _pad(row, channels, "")],
    )


def _row(own: Any, most: int) -> list[int]:
    """Channels of maps (C, h, w) that vary most, in their order."""
    spread = own.flatten(1).double().std(1, correction=0)
    return sorted(spread.argsort(descending=True, stable=True)[:most].tolist())


def _pad(row: list[Any], length: int, blank: Any) -> list[Any]:
    return row + [blank] * (length - len(row))


def tiny() -> Subject:
    return images()
