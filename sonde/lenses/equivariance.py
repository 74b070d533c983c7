"""Equivariance: how far each layer's maps of a shifted, turned or enlarged image are from shifted, turned or enlarged maps.

The error of a layer f under t is |f(t(x)) - t(f(x))| / |t(f(x))| in root mean square over images, channels and places; 0 is
exact.  A convolution is equivariant to shifts, but for its edges and where it leaves out places; turning and enlarging an
image change what its weights see.  Of an answer without places the error is |f(t(x)) - f(x)| / |f(x)|, its invariance.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any

import torch
from torch.nn.functional import interpolate, pad

from ..core.batch import ask
from ..core.options import Range
from ..core.reading import Bars, Reading, Subject
from .tools.pictures import jumps, maps, maps_of, no_maps
from .tools.readonly import guard, preserve_state, spread_evenly
from .tools.tiny import images

if TYPE_CHECKING:
    from torch import Tensor


def why_not(subject: Subject) -> str:
    return no_maps(subject)


@guard
def read(
    subject: Subject,
    pixels: Annotated[int, Range(1, 1024)] = 2,
    examples: Annotated[int, Range(1, 4096)] = 32,
    layers: Annotated[int, Range(1, 64)] = 16,
) -> Reading:
    """The error of each layer under four changes of the image.

    Args:
        pixels: of a shift to the right; a layer whose places are further apart is shifted by a part of a place
        examples: images to look at, the first of the batch
        layers: how many to show, from the first to the last
    """
    with preserve_state(subject.model), torch.no_grad():
        table = errors(subject.model, subject.batch[:examples], pixels)
    names = list(next(iter(table.values())))
    answer = [names.pop()] if names[-1] == ANSWER else []
    names = spread_evenly(names, layers) + answer
    return Bars(
        "Error of equivariance",
        {change: [own.get(name) for name in names] for change, own in table.items()},
        axes=["layer"],
        note=f"|f(t(x)) − t(f(x))| / |t(f(x))| over {min(examples, len(subject.batch))} images; 0 is exact. Shifts are {pixels} to the "
        "right: around the edge, or off it with zeros coming in, where what came in is not compared. A turn is by 90°, enlarging to twice "
        "the size." + (" The last row is the answer, whose error is that of invariance, |f(t(x)) − f(x)| / |f(x)|." if answer else ""),
        labels=names,
    )


ANSWER = "answer"
CHANGES = ("shift around", "shift off the edge", "turn", "enlarge")


def errors(model: Any, batch: Any, pixels: int) -> dict[str, dict[str, float | None]]:
    """For each change its error at each layer; None where the network does not take the changed image so far."""
    x, before = batch.x, maps(model, batch)
    apart = jumps(model, batch, before)
    plain = ask(model, batch)
    answer = plain if hasattr(plain, "dim") and plain.dim() == 2 else None
    table: dict[str, dict[str, float | None]] = {}
    for change in CHANGES:
        turned = transform(change, x, pixels)
        after = maps_of(model, batch, turned)
        own: dict[str, float | None] = {}
        for name, old in before.items():
            if name not in after or len(after[name]) != len(old):
                own[name] = None
                continue
            steps = pixels / apart[name][1]
            a, b = _common(change, after[name], transform(change, old, steps, after[name].shape[-2:]), steps)
            own[name] = _error(a, b)
        if answer is not None:
            own[ANSWER] = _error(new, answer) if (new := _output_for(model, batch.replace(x=turned))) is not None else None
        table[change] = own
    return table


def transform(change: str, maps: Tensor, steps: float, size: Any = None) -> Tensor:
    """Images or maps (B, C, h, w) changed; `size` is that to which an enlarged map belongs."""
    if change == "turn":
        return maps.rot90(1, (2, 3))
    if change == "enlarge":
        size = size or tuple(2 * n for n in maps.shape[-2:])
        return interpolate(maps, size=size, mode="bilinear", align_corners=False)
    return _shift(maps, steps, around=change == "shift around")


def _shift(maps: Tensor, steps: float, around: bool) -> Tensor:
    """Maps moved to the right, in between two places by both of them; around the edge, or with zeros coming in."""

    def move(whole: int) -> Tensor:
        if around:
            return maps.roll(whole, 3)

        return pad(maps, (whole, 0))[..., : maps.shape[-1]]

    low = int(steps)
    part = steps - low
    return move(low) if not part else (1 - part) * move(low) + part * move(low + 1)


def _common(change: str, a: Tensor, b: Tensor, steps: float) -> tuple[Tensor, Tensor]:
    """The places that are compared: all of them, but of a shift off the edge those that were in the image before."""
    if a.shape != b.shape:  # an odd side, of which one place more is left over
        h, w = (min(m, n) for m, n in zip(a.shape[-2:], b.shape[-2:], strict=True))
        a, b = a[..., :h, :w], b[..., :h, :w]
    start = min(math.ceil(steps), a.shape[-1] - 1) if change == "shift off the edge" else 0
    return a[..., start:], b[..., start:]


def _error(a: Tensor, b: Tensor) -> float | None:
    size = float(b.double().square().mean().sqrt())
    return float((a.double() - b.double()).square().mean().sqrt()) / size if size > 0 else None


def _output_for(model: Any, batch: Any) -> Any:
    """The answer to an image of any size, None where the model takes no such image."""
    try:
        return ask(model, batch)
    except Exception:  # the sizes a network takes are known to itself alone
        return None


def tiny() -> Subject:
    return images()
