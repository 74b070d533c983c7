"""Augmentation: changes to a whole training batch at once, drawing only from the generator it is given.

Each function here returns `change(batch, generator) -> Batch`.  x is (B, C, H, W), or (B, anything) for noise.
No loop over examples: a shift or crop is one padding and one gather from a strided view of all windows.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from ..core.batch import Batch
from ..core.errors import BadInput

Change = Callable[[Batch, Generator], Batch]


def compose(*changes: Change) -> Change:
    """One change after another."""

    def apply(batch: Batch, generator: Generator) -> Batch:
        for change in changes:
            batch = change(batch, generator)
        return batch

    return apply


def shift(pixels: int) -> Change:
    """Moves each image by up to `pixels` in both directions; what comes in at the border repeats the border."""
    if pixels < 1:
        raise BadInput(f"shift needs at least one pixel, not {pixels}", fix="leave the shift out for none")

    def apply(batch: Batch, generator: Generator) -> Batch:
        x_BCHW = _images(batch, "shift")
        height, width = x_BCHW.shape[2:]
        return batch.replace(x=_windows(F.pad(x_BCHW, (pixels,) * 4, mode="replicate"), height, width, generator))

    return apply


def crop(size: int, padding: int = 0) -> Change:
    """Cuts a square of `size` pixels out of each image at a random place; `padding` pixels of 0 on each side come before."""
    if size < 1 or padding < 0:
        raise BadInput(f"crop needs a size of at least 1 and a padding of 0 or more, not {size} and {padding}")

    def apply(batch: Batch, generator: Generator) -> Batch:
        padded = F.pad(_images(batch, "crop"), (padding,) * 4)
        height, width = padded.shape[2:]
        if size > min(height, width):
            raise BadInput(f"crop of {size} pixels does not fit into {height} x {width} with padding", fix="crop less, or pad more")
        return batch.replace(x=_windows(padded, size, size, generator))

    return apply


def flip(chance: float = 0.5) -> Change:
    """Mirrors each image left to right with the given chance."""
    _check_chance(chance)

    def apply(batch: Batch, generator: Generator) -> Batch:
        x_BCHW = _images(batch, "flip")
        mirrored = _draw(torch.rand(len(x_BCHW), generator=generator, device=generator.device) < chance, x_BCHW)
        return batch.replace(x=torch.where(mirrored[:, None, None, None], x_BCHW.flip(-1), x_BCHW))

    return apply


def noise(std: float) -> Change:
    """Adds Gaussian noise of the given standard deviation to every value of x."""
    if not std >= 0:
        raise BadInput(f"noise needs a standard deviation of 0 or more, not {std}")

    def apply(batch: Batch, generator: Generator) -> Batch:
        x = batch.x
        return batch.replace(x=x + std * _draw(torch.randn(x.shape, generator=generator, device=generator.device), x))

    return apply


def cutout(size: int) -> Change:
    """Sets a square of `size` pixels to 0, the mean of standardised data; its centre is anywhere in the image [devries2017]."""
    if size < 1:
        raise BadInput(f"cutout needs a square of at least one pixel, not {size}", fix="leave the cutout out for none")

    def apply(batch: Batch, generator: Generator) -> Batch:
        x_BCHW = _images(batch, "cutout")
        many, _, height, width = x_BCHW.shape
        place = _draw(torch.rand(2, many, 1, generator=generator, device=generator.device), x_BCHW)

        def inside(length: int, fraction: Tensor) -> Tensor:
            first = (fraction * length).long() - size // 2
            line = torch.arange(length, device=x_BCHW.device)
            return (line >= first) & (line < first + size)

        hole_BHW = inside(height, place[0])[:, :, None] & inside(width, place[1])[:, None, :]
        return batch.replace(x=x_BCHW.masked_fill(hole_BHW[:, None], 0.0))

    return apply


def _windows(x_BCHW: Tensor, height: int, width: int, generator: Generator) -> Tensor:
    """A window of the given size out of each image, all places equally likely."""
    many = len(x_BCHW)
    windows_BCYXHW = x_BCHW.unfold(2, height, 1).unfold(3, width, 1)
    y, x = (
        _draw(torch.randint(0, places, (many,), generator=generator, device=generator.device), x_BCHW)
        for places in windows_BCYXHW.shape[2:4]
    )
    return windows_BCYXHW[torch.arange(many, device=x_BCHW.device), :, y, x]


def _images(batch: Batch, what: str) -> Tensor:
    if batch.x.dim() != 4:
        raise BadInput(
            f"{what} needs images (B, C, H, W), but x has shape {tuple(batch.x.shape)}", fix="use noise, or data that are images"
        )
    return batch.x


def _draw(values: Tensor, like: Tensor) -> Tensor:
    """Drawn where the generator lives, used where the data are."""
    return values.to(like.device)


def _check_chance(chance: float) -> None:
    if not 0 <= chance <= 1:
        raise BadInput(f"a chance lies between 0 and 1, not {chance}")
