"""Generated images of discs, squares and crosses, with labels, segmentation masks or captions."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, NamedTuple

import torch
from torch import Generator, Tensor

from ..core.batch import Data
from ..core.options import Range
from ..core.seeds import generator
from .split import split, subsets
from .tensors import TensorSource
from .text.corpora import LinesReader
from .text.documents import Ragged
from .text.tokenizer import train

KINDS = ("disc", "square", "cross")
COLORS = {"red": (1.0, 0.2, 0.2), "green": (0.2, 0.9, 0.3), "blue": (0.3, 0.4, 1.0)}
SIZES, SIDES = ("small", "large"), ("left", "right")


class Shapes(NamedTuple):
    """The shapes of each image, (n, many) of each field; a length of 1 is half a side."""

    kind: Tensor
    color: Tensor
    x: Tensor
    y: Tensor
    radius: Tensor
    turn: Tensor
    """angle in radians"""

    def inside(self, size: int) -> Tensor:
        """Whether a pixel belongs to each shape, (n, many, size, size)."""
        line = (torch.arange(size) + 0.5) * (2 / size) - 1
        x, y, radius, turn = (value[..., None, None] for value in (self.x, self.y, self.radius, self.turn))
        right, down = line[None, :] - x, line[:, None] - y
        u, v = turn.cos() * right + turn.sin() * down, turn.cos() * down - turn.sin() * right
        disc = u.square() + v.square() < radius.square()
        square = torch.maximum(u.abs(), v.abs()) < 0.85 * radius
        cross = (torch.minimum(u.abs(), v.abs()) < 0.3 * radius) & (torch.maximum(u.abs(), v.abs()) < 1.1 * radius)
        kind = self.kind[..., None, None]
        return torch.where(kind == 0, disc, torch.where(kind == 1, square, cross))


def shapes(
    seed: int = 0,
    n: Annotated[int, Range(10, 1_000_000)] = 2000,
    size: Annotated[int, Range(8, 1024)] = 32,
    many: Annotated[int, Range(1, 16)] = 1,
    color: bool = False,
    target: Literal["label", "mask", "caption"] = "label",
    noise: Annotated[float, Range(0, 10)] = 0.1,
) -> Annotated[Data, "images"]:
    """Generated images of discs, squares and crosses, rotated, moved and scaled: to classify, to segment, or with captions.

    Args:
        n: images in all; 15 % are for validation and 15 % for the test
        size: height and width in pixels
        many: shapes per image; later ones hide earlier ones
        color: three channels instead of one
        target: label gives y (n,), the class of the last shape; mask gives y (n, size, size), 0 for the background and 1 to 3 for the
            classes; caption gives y as for label and a field `text` (n, T), the words about the last shape, with `lengths`
        noise: standard deviation of Gaussian noise on every pixel
    """
    rng = generator(seed, "shapes")
    things = random_shapes(n, many, rng)
    inside, tints = things.inside(size), torch.tensor(list(COLORS.values())) if color else torch.ones(1, 1)
    shade = tints[things.color if color else torch.zeros_like(things.color)]  # (n, many, channels)
    x = torch.zeros(n, shade.shape[-1], size, size)
    mask = torch.zeros(n, size, size, dtype=torch.long)
    for i in range(many):
        x = torch.where(inside[:, i, None], shade[:, i, :, None, None], x)
        mask = torch.where(inside[:, i], things.kind[:, i, None, None] + 1, mask)
    x += noise * torch.randn(x.shape, generator=rng)
    names: tuple[str, ...] = KINDS
    y, reader = things.kind[:, -1], None
    more: dict[str, Any] = {}
    if target == "mask":
        y, names = mask, ("ground", *KINDS)
    elif target == "caption":
        texts = captions(things, color)
        words = train("words", texts, 100, ("pad", "unknown", "start", "end"))
        rows = Ragged.of([words.encode(text).tolist() for text in texts])
        more = {"text": rows.pad(torch.arange(n), words.specials["pad"]), "lengths": rows.lengths}
        reader = LinesReader(words, 64, "text")
    whole = TensorSource(x, y, **more)
    return Data(*subsets(whole, split(n, 0.15, 0.15, seed=seed)), name="shapes", task="classes", classes=names, reader=reader)


def random_shapes(n: int, many: int, rng: Generator) -> Shapes:
    """Random shapes of any kind, size, color and angle, entirely inside the image and clearly in its left or right half."""

    def uniform(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(n, many, generator=rng)

    kind, color, large = (torch.randint(k, (n, many), generator=rng) for k in (len(KINDS), len(COLORS), 2))
    radius = torch.where(large > 0, uniform(0.4, 0.48), uniform(0.22, 0.3))
    room = 1 - 1.2 * radius
    side = torch.randint(2, (n, many), generator=rng) * 2 - 1
    return Shapes(kind, color, side * (0.1 + (room - 0.1) * uniform(0, 1)), room * uniform(-1, 1), radius, uniform(0, math.pi / 2))


def captions(things: Shapes, color: bool) -> list[str]:
    """A caption of the last shape of each image: 'a large red disc on the left'."""
    sentences = []
    for kind, tint, x, radius in zip(*(value[:, -1].tolist() for value in (things.kind, things.color, things.x, things.radius))):
        words = ["a", SIZES[radius > 0.35], [*COLORS][tint] if color else "", KINDS[kind], "on the", SIDES[x > 0]]
        sentences.append(" ".join(filter(None, words)))
    return sentences
