"""Augmentations of whole training batches, drawing only from the generator they are given.

Each function here returns an augmentation `(batch, generator) -> Batch`.  x is (B, C, H, W), or (B, anything) for noise and mixup.
No loop over examples: a shift or crop is one padding and one gather from a strided view of all windows.

Mixtures of two examples (mixup, cutmix) leave the label of the first in y, that of the second in `other`, and the weight of the
first in `share`; the objective `Mixed` reads them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from ..core.batch import Batch
from ..core.errors import BadInput
from ..core.options import Range, checked

Augmentation = Callable[[Batch, Generator], Batch]


def compose(*changes: Augmentation) -> Augmentation:
    """One augmentation after another."""

    def apply(batch: Batch, generator: Generator) -> Batch:
        for change in changes:
            batch = change(batch, generator)
        return batch

    return apply


@checked
def shift(pixels: Annotated[int, Range(1)]) -> Augmentation:
    """Shift each image by up to `pixels` in both directions, with the border repeated."""

    def apply(batch: Batch, generator: Generator) -> Batch:
        x_BCHW = _movable_images(batch, "shift")
        height, width = x_BCHW.shape[2:]
        return batch.replace(x=_windows(F.pad(x_BCHW, (pixels,) * 4, mode="replicate"), height, width, generator))

    return apply


@checked
def crop(size: Annotated[int, Range(1)], padding: Annotated[int, Range(0)] = 0) -> Augmentation:
    """Crop a random square of `size` pixels out of each image, after padding it with zeros on each side."""

    def apply(batch: Batch, generator: Generator) -> Batch:
        padded = F.pad(_movable_images(batch, "crop"), (padding,) * 4)
        height, width = padded.shape[2:]
        if size > min(height, width):
            raise BadInput(f"crop of {size} pixels does not fit into {height} x {width} with padding", fix="crop less, or pad more")
        return batch.replace(x=_windows(padded, size, size, generator))

    return apply


@checked
def flip(chance: Annotated[float, Range(0, 1)] = 0.5) -> Augmentation:
    """Flip each image horizontally with the given probability, and with it targets of its height and width."""

    def apply(batch: Batch, generator: Generator) -> Batch:
        x_BCHW = _images(batch, "flip")
        flipped = _draw(torch.rand(len(x_BCHW), generator=generator, device=generator.device) < chance, x_BCHW)
        fields = {"x": x_BCHW, **({"y": batch.y} if _masks(batch) else {})}  # per-pixel targets are flipped too
        return batch.replace(**{name: torch.where(_like(flipped, field), field.flip(-1), field) for name, field in fields.items()})

    return apply


@checked
def noise(std: Annotated[float, Range(0)]) -> Augmentation:
    """Add Gaussian noise of the given standard deviation to x."""

    def apply(batch: Batch, generator: Generator) -> Batch:
        x = batch.x
        return batch.replace(x=x + std * _draw(torch.randn(x.shape, generator=generator, device=generator.device), x))

    return apply


@checked
def cutout(size: Annotated[int, Range(1)]) -> Augmentation:
    """Set a square of `size` pixels to 0, the mean of standardized data; its center is anywhere in the image [devries2017]."""

    def apply(batch: Batch, generator: Generator) -> Batch:
        x_BCHW = _images(batch, "cutout")
        many, _, height, width = x_BCHW.shape
        center = _draw(torch.rand(2, many, 1, generator=generator, device=generator.device), x_BCHW)

        def inside(length: int, fraction: Tensor) -> Tensor:
            first = (fraction * length).long() - size // 2
            line = torch.arange(length, device=x_BCHW.device)
            return (line >= first) & (line < first + size)

        hole_BHW = inside(height, center[0])[:, :, None] & inside(width, center[1])[:, None, :]
        return batch.replace(x=x_BCHW.masked_fill(hole_BHW[:, None], 0.0))

    return apply


@checked
def rotate(degrees: Annotated[float, Range(above=0, most=180)]) -> Augmentation:
    """Rotate each image about its center by up to `degrees` either way, with bilinear interpolation and the border repeated."""

    def apply(batch: Batch, generator: Generator) -> Batch:
        x_BCHW = _movable_images(batch, "rotate")
        height, width = x_BCHW.shape[2:]
        turn = _draw(torch.rand(len(x_BCHW), generator=generator, device=generator.device), x_BCHW)
        turn = (2 * turn - 1) * math.radians(degrees)
        cos, sin, none = turn.cos(), turn.sin(), torch.zeros_like(turn)
        # The grid counts from -1 to 1 along either side, so a pixel is a different step in x and in y.
        rows = [cos, -sin * height / width, none, sin * width / height, cos, none]
        grid = F.affine_grid(torch.stack(rows, 1).reshape(-1, 2, 3).to(x_BCHW.dtype), list(x_BCHW.shape), align_corners=False)
        return batch.replace(x=F.grid_sample(x_BCHW, grid, padding_mode="border", align_corners=False))

    return apply


@checked
def jitter(
    brightness: Annotated[float, Range(0)] = 0.0, contrast: Annotated[float, Range(0)] = 0.0, saturation: Annotated[float, Range(0)] = 0.0
) -> Augmentation:
    """Change brightness, contrast and saturation of each image.

    Args:
        brightness: largest value added, in the units of x
        contrast: largest fraction by which deviations from the image's mean grow or shrink
        saturation: largest fraction by which deviations of the three colors from their gray grow or shrink
    """

    def apply(batch: Batch, generator: Generator) -> Batch:
        x_BCHW = _images(batch, "jitter")
        if saturation and x_BCHW.shape[1] != 3:
            raise BadInput(f"saturation needs three colors, not {x_BCHW.shape[1]} channels", where="jitter", fix="set saturation=0")
        drawn = _draw(torch.rand(3, len(x_BCHW), 1, 1, 1, generator=generator, device=generator.device), x_BCHW).to(x_BCHW.dtype)
        light, spread, color = ((2 * part - 1) * limit for part, limit in zip(drawn, (brightness, contrast, saturation), strict=True))
        if saturation:
            x_BCHW = torch.lerp(x_BCHW.mean(1, keepdim=True), x_BCHW, 1 + color)
        if contrast:
            x_BCHW = torch.lerp(x_BCHW.mean((1, 2, 3), keepdim=True), x_BCHW, 1 + spread)
        return batch.replace(x=x_BCHW + light if brightness else x_BCHW)

    return apply


@checked
def mixup(alpha: Annotated[float, Range(above=0)] = 0.2) -> Augmentation:
    """Every example is a weighted mean with another one of the batch; weights are drawn from Beta(alpha, alpha) [zhang2018]."""

    def apply(batch: Batch, generator: Generator) -> Batch:
        share, partner = _draw_partners(batch, alpha, generator)
        weight = share.to(batch.x.dtype).reshape(-1, *[1] * (batch.x.dim() - 1))
        return batch.replace(x=torch.lerp(batch.x[partner], batch.x, weight), other=batch.y[partner], share=share)

    return apply


@checked
def cutmix(alpha: Annotated[float, Range(above=0)] = 1.0) -> Augmentation:
    """A rectangle of every image comes from another image of the batch; its area is drawn from Beta(alpha, alpha) [yun2019]."""

    def apply(batch: Batch, generator: Generator) -> Batch:
        x_BCHW = _movable_images(batch, "cutmix")
        height, width = x_BCHW.shape[2:]
        keep, partner = _draw_partners(batch, alpha, generator)
        side = (1 - keep).sqrt()
        center = _draw(torch.rand(2, len(x_BCHW), generator=generator, device=generator.device), x_BCHW)

        def inside(length: int, fraction: Tensor) -> Tensor:
            middle, half = (fraction * length)[:, None], (side * length / 2)[:, None]
            line = torch.arange(length, device=x_BCHW.device) + 0.5
            return (line - middle).abs() < half

        hole_BHW = inside(height, center[0])[:, :, None] & inside(width, center[1])[:, None, :]
        share = 1 - hole_BHW.double().mean((1, 2)).float()  # the actual area: a rectangle ends at the border
        return batch.replace(x=torch.where(hole_BHW[:, None], x_BCHW[partner], x_BCHW), other=batch.y[partner], share=share)

    return apply


def _draw_partners(batch: Batch, alpha: float, generator: Generator) -> tuple[Tensor, Tensor]:
    """The weight of each example, and the index of the one it is mixed with."""
    if "y" not in batch or "share" in batch:
        what = "there are no targets to mix" if "y" not in batch else "examples are mixed already"
        raise BadInput(what, where="augmentation", fix="use one of mixup and cutmix, on data with targets")
    many, device = len(batch), generator.device
    first, second = torch._standard_gamma(torch.full((2, many), alpha, dtype=torch.float64, device=device), generator).clamp_min(1e-300)
    partner = torch.randperm(many, generator=generator, device=device)
    return _draw((first / (first + second)).float(), batch.x), _draw(partner, batch.x)


def _windows(x_BCHW: Tensor, height: int, width: int, generator: Generator) -> Tensor:
    """A random window of the given size out of each image."""
    many = len(x_BCHW)
    windows_BCYXHW = x_BCHW.unfold(2, height, 1).unfold(3, width, 1)
    y, x = (
        _draw(torch.randint(0, count, (many,), generator=generator, device=generator.device), x_BCHW) for count in windows_BCYXHW.shape[2:4]
    )
    return windows_BCYXHW[torch.arange(many, device=x_BCHW.device), :, y, x]


def _images(batch: Batch, what: str) -> Tensor:
    if batch.x.dim() != 4:
        raise BadInput(
            f"{what} needs images (B, C, H, W), but x has shape {tuple(batch.x.shape)}", fix="use noise, or data that are images"
        )
    return batch.x


def _masks(batch: Batch) -> bool:
    """Whether there is a target for every pixel."""
    y = batch.get("y")
    return y is not None and y.dim() > 2 and y.shape[-2:] == batch.x.shape[-2:]


def _movable_images(batch: Batch, what: str) -> Tensor:
    """Images, unless they have per-pixel targets, which would have to move with them."""
    if _masks(batch):
        raise BadInput(f"{what} would move the images but not their per-pixel targets", fix="use flip, jitter, noise or cutout")
    return _images(batch, what)


def _like(flags: Tensor, field: Tensor) -> Tensor:
    return flags.reshape(-1, *[1] * (field.dim() - 1))


def _draw(values: Tensor, like: Tensor) -> Tensor:
    """Move random values from the device of the generator to that of the data."""
    return values.to(like.device)
