"""CLIP: an image encoder and a text encoder into one space, where an image is near its caption.

Radford and others, Learning Transferable Visual Models From Natural Language Supervision (CLIP), 2021.

B batch, T time, D embedding dimension.
"""

from __future__ import annotations

import math
from typing import Annotated, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.batch import Batch
from ..core.options import Range, checked
from .cnn import CNN
from .topologies import Seq2Vec

STEEPEST = 100.0
"""largest logit scale, as published: beyond it one pair dominates a step"""


@final
class Clip(nn.Module):
    """Unit vectors of images and texts, and the scale of their inner products.

    Args:
        image: images (B, C, H, W) -> (B, D): a CNN or ViT with D outputs
        text: tokens (B, T) and their lengths (B,) -> (B, D): such as Seq2Vec
        temperature: initial value of the learned temperature, which divides inner products
    """

    reads = ("x", "text", "lengths")

    @checked
    def __init__(self, image: nn.Module, text: nn.Module, temperature: Annotated[float, Range(above=0)] = 0.07) -> None:
        super().__init__()
        self.image, self.text = image, text
        self.log_scale = nn.Parameter(torch.tensor(-math.log(temperature)))

    @property
    def scale(self) -> Tensor:
        """One over the temperature."""
        return self.log_scale.clamp_max(math.log(STEEPEST)).exp()

    def forward(self, x: Tensor, text: Tensor, lengths: Tensor | None = None) -> dict[str, Tensor]:
        """Images x (B, C, H, W) and texts (B, T) -> 'image' and 'text' (B, D), and the 'scale' of their inner products."""
        return {"image": self.images(x), "text": self.texts(text, lengths), "scale": self.scale}

    def images(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> unit vectors (B, D)."""
        return F.normalize(self.image(x), dim=-1)

    def texts(self, text: Tensor, lengths: Tensor | None = None) -> Tensor:
        """(B, T), the first `lengths` tokens of each row -> unit vectors (B, D)."""
        return F.normalize(self.text(text, lengths), dim=-1)


def tiny() -> tuple[Clip, Batch]:
    """A small working instance with input."""
    rng = torch.Generator().manual_seed(0)
    batch = Batch(x=torch.rand(5, 1, 6, 6, generator=rng), text=torch.randint(9, (5, 4), generator=rng))
    return Clip(CNN((1, 3), 4, hidden=0, image=(6, 6)), Seq2Vec(9, 4, width=6)), batch
