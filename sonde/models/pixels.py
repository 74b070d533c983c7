"""Autoregressive images: pixel levels as tokens, row by row, each given the ones before it.

    log p(x; label) = sum_i log p(x_i; x_1 .. x_i-1, label)

The likelihood is exact; the cost is a sequence as long as the image has pixels.
van den Oord, Kalchbrenner and Kavukcuoglu, Pixel Recurrent Neural Networks, 2016; as a transformer: Chen and others, Image GPT, 2020.

B batch, H height, W width, L levels, D width of a token.
"""

from __future__ import annotations

from typing import Annotated, final

import torch
from torch import Tensor, nn

from ..core.batch import Batch
from ..core.errors import BadInput
from ..core.options import Count, Range, checked
from ..nn.recurrence import State
from .language_model import LanguageModel, Probability

INTEGERS = (torch.uint8, torch.int16, torch.int32, torch.int64)


@final
class Pixels(nn.Module):
    """A language model over the levels of pixels: x (B, H, W), integers from 0 -> logits (B, H, W, levels) of the same x.

    The sequence is shifted by one position inside, so x is both input and target.

    Args:
        image: height and width
        levels: number of values of a pixel
        classes: number of classes to condition on; 0 is unconditional
        width: model dimension
        depth: blocks
        mixer: sequence mixer, by name
        dropout: dropout probability
    """

    reads = ("x", "label")

    @checked
    def __init__(
        self,
        image: Annotated[tuple[int, ...], Range(least=1)] = (8, 8),
        levels: Annotated[int, Range(least=2)] = 17,
        classes: Annotated[int, Range(least=0)] = 0,
        width: Count = 64,
        depth: Count = 2,
        mixer: str = "attention",
        dropout: Probability = 0.0,
    ) -> None:
        super().__init__()
        if len(image) != 2 or image[0] * image[1] < 2:
            raise _error(f"image must be height and width of two pixels or more, not {tuple(image)}", "write image=(8, 8)")
        self.image, self.levels, self.classes = (image[0], image[1]), levels, classes
        self.body = LanguageModel(levels, width, depth, mixer, 4.0, "learned", image[0] * image[1], dropout)
        # The class is the start token, and is added to every pixel too: far from the start its influence fades.
        self.start = nn.Embedding(max(classes, 1), width)

    def forward(self, x: Tensor, label: Tensor | None = None) -> Tensor:
        """x (B, H, W) and the class of each image (B,) -> logits (B, H, W, levels), each from the pixels before it."""
        if tuple(x.shape[1:]) != self.image or x.dtype not in INTEGERS:
            actual = f"{tuple(x.shape)} {str(x.dtype).removeprefix('torch.')}"
            height, width = self.image
            raise _error(f"layer 'embedding' takes levels (batch, {height}, {width}) as whole numbers, not {actual}", "use levels_of(x, n)")
        start, before = self._start(label, len(x)), self.body.embed(x.flatten(1)[:, :-1].long())
        hidden, _ = self.body.through(torch.cat([start, start + before], 1))
        return self.body.logits(hidden).unflatten(1, self.image)

    def log_prob(self, x: Tensor, label: Tensor | None = None) -> Tensor:
        """(B,) log-probability of each image, in nats."""
        chosen = self(x, label).log_softmax(-1).gather(-1, x.long().unsqueeze(-1))
        return chosen.flatten(1).sum(1)

    @torch.no_grad()
    def sample(self, n: int, label: Tensor | None = None, generator: torch.Generator | None = None) -> Tensor:
        """n images (n, H, W), drawn pixel by pixel; `label` (n,) is the class of each."""
        if n < 1 or (label is not None and len(label) != n):
            raise _error(f"there are no {n} samples of {'any kind' if label is None else len(label)}", "ask for one label for each")
        training = self.training
        self.eval()
        state: State | None = None
        start, pixels = self._start(label, n), []
        x = start
        try:
            for _ in range(self.image[0] * self.image[1]):
                h, state = self.body.through(x, state)
                chances = self.body.logits(h[:, -1]).softmax(-1)
                pixels.append(torch.multinomial(chances, 1, generator=generator))
                x = start + self.body.embed(pixels[-1])
        finally:
            self.train(training)
        return torch.cat(pixels, 1).unflatten(1, self.image)

    def _start(self, label: Tensor | None, n: int) -> Tensor:
        """(n, 1, D)."""
        if (label is None) != (self.classes == 0):
            requirement = "needs a label for each image" if label is None else "has images of one kind and takes no labels"
            raise _error(f"a pixel model of {self.classes} classes {requirement}", "give labels (B,), or build it with other classes")
        labels = torch.zeros(n, dtype=torch.long, device=self.start.weight.device) if label is None else label
        try:
            return self.start(labels).unsqueeze(1)
        except IndexError:
            low, high = (int(end) for end in labels.aminmax())
            raise _error(f"there is no class {low if low < 0 else high}", f"use 0 to {self.classes - 1}") from None


def quantize_pixels(x: Tensor, levels: int) -> Tensor:
    """Gray images (B, 1, H, W) with values from 0 to 1 -> the nearest level (B, H, W), as integers."""
    if x.ndim != 4 or x.shape[1] != 1:
        raise _error(f"levels are those of gray images (batch, 1, height, width), not {tuple(x.shape)}", "average over the colors first")
    if not bool(((x >= 0) & (x <= 1)).all()):
        raise _error("pixel values must be from 0 to 1", "do not standardize the images")
    return (x.squeeze(1) * (levels - 1)).round().long()


def _error(what: str, fix: str) -> BadInput:
    return BadInput(what, where="Pixels", fix=fix)


def tiny() -> tuple[Pixels, Batch]:
    """A small working instance with input."""
    rng = torch.Generator().manual_seed(0)
    batch = Batch(x=torch.randint(5, (5, 3, 4), generator=rng), label=torch.randint(2, (5,), generator=rng))
    return Pixels((3, 4), 5, 2, 8, 1, "attention heads=2"), batch
