"""Feature maps of one image, a row for each layer from the first to the last."""

from __future__ import annotations

from typing import Annotated, Any

import torch

from ..core.options import Range
from ..core.reading import Images, Reading, Subject
from .tools.pictures import maps, no_maps, picture, spread_out, stretch
from .tools.readonly import check_index, guard, preserve_state, spread_evenly
from .tools.tiny import images


def why_not(subject: Subject) -> str:
    """Why the lens does not apply to a subject, or ''; `guard` turns it into an error."""
    return no_maps(subject)


@guard
def read(
    subject: Subject,
    example: Annotated[int, Range(0)] = 0,
    layers: Annotated[int, Range(1, 64)] = 8,
    channels: Annotated[int, Range(1, 16)] = 8,
) -> Reading:
    """The maps of each layer that vary most over the image, each scaled from its minimum (black) to its maximum (white).

    Args:
        example: index of the example in the batch
        layers: how many to show, evenly spaced from the first to the last
        channels: how many maps of each layer
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
        note=f"Example {example}; {len(shown)} of {len(fmaps)} layers, each with the maps that vary most over the image and their channel "
        f"index. Each map is scaled from its minimum (black) to its maximum (white). Sizes: {sizes}.",
        across=channels,
        rows=["image", *(name for name, _ in shown)],
        labels=[each for row in labels for each in _pad(row, channels, "")],
    )


def _row(own: Any, max_channels: int) -> list[int]:
    """Indices of the channels of maps (C, h, w) that vary most, in ascending order."""
    spread = own.flatten(1).double().std(1, correction=0)
    return sorted(spread.argsort(descending=True, stable=True)[:max_channels].tolist())


def _pad(row: list[Any], length: int, blank: Any) -> list[Any]:
    return row + [blank] * (length - len(row))


def tiny() -> Subject:
    """A small subject for the contract tests."""
    return images()
