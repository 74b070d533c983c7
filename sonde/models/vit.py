"""Vision transformer: the patches of an image are the tokens of an encoder; one output per image.

Dosovitskiy and others, An Image is Worth 16x16 Words, 2021.  The learned linear map of a patch is a convolution whose window
is the patch and whose stride is its side.

B batch, C channels, H height, W width, P side of a patch, N patches, D width of a token.
"""

from __future__ import annotations

from typing import Annotated, Literal, final

import torch
from torch import Tensor, nn

from ..core.batch import Batch
from ..core.errors import BadInput
from ..core.options import Count, Range, checked
from ..nn.block import Style, style_of
from ..nn.positions import Positions
from ..nn.stack import Stack
from .language_model import Probability, mixer_of

STYLE = Style("layer", eps=1e-6, activation="gelu", bias=True, scaled=False)
"""norms before the branches, as published"""


def patchify(x: Tensor, patch: int) -> Tensor:
    """Images (B, C, H, W) -> (B, N, C P P): patches row by row, each flattened channel by channel."""
    if x.ndim != 4 or x.shape[2] % patch or x.shape[3] % patch:
        raise _error(f"images {tuple(x.shape)} do not fall into patches of {patch}x{patch}", f"use sides that are multiples of {patch}")
    B, C, H, W = x.shape
    return x.reshape(B, C, H // patch, patch, W // patch, patch).permute(0, 2, 4, 1, 3, 5).reshape(B, -1, C * patch * patch)


def unpatchify(patches: Tensor, patch: int, image: tuple[int, int]) -> Tensor:
    """Patches (B, N, C P P) -> the images (B, C, H, W) of this height and width they were cut from."""
    down, across = image[0] // patch, image[1] // patch
    if patches.ndim != 3 or patches.shape[1] != down * across or patches.shape[2] % patch**2 or image != (down * patch, across * patch):
        message = f"patches {tuple(patches.shape)} of {patch}x{patch} pixels are no images of {_size(image)}"
        raise _error(message, "give the height and width they were cut from")
    B, C = len(patches), patches.shape[2] // patch**2
    return patches.reshape(B, down, across, C, patch, patch).permute(0, 3, 1, 4, 2, 5).reshape(B, C, *image)


@final
class ViT(nn.Module):
    """An encoder over the patches of an image (B, C, H, W), and a linear map to logits (B, classes).

    Args:
        image: height and width
        patch: side of a patch, which divides both
        width: model dimension
        depth: blocks
        heads: attention heads per block
        classes: number of outputs
        channels: of the image
        ffn: hidden width of each block's network as a multiple of the width
        pool: read the output from a class token before the patches, or from the mean of the patches
        positions: position codes added to tokens
        dropout: dropout probability
        style: norms and activation: a name such as gpt2, or a Style
    """

    @checked
    def __init__(  # noqa: PLR0913  an option for each way in which models of one size differ
        self,
        image: Annotated[tuple[int, ...], Range(least=1)] = (224, 224),
        patch: Count = 16,
        width: Count = 768,
        depth: Count = 12,
        heads: Count = 12,
        classes: Count = 1000,
        channels: Count = 3,
        ffn: Annotated[float, Range(above=0)] = 4.0,
        pool: Literal["token", "mean"] = "token",
        positions: Literal["learned", "sinusoidal"] = "learned",
        dropout: Probability = 0.0,
        style: str | Style = STYLE,
    ) -> None:
        super().__init__()
        if len(image) != 2:
            raise _error(f"image must be height and width, not {image}", "write image=(32, 32)")
        if any(side % patch for side in image):
            raise _error(f"an image of {_size(image)} does not fall into patches of {patch}x{patch}", "use a patch that divides both sides")
        self.image, self.patch, self.channels, self.width, self.pool = (image[0], image[1]), patch, channels, width, pool
        self.style = style_of(style)
        self.patches = nn.Conv2d(channels, width, patch, stride=patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width)) if pool == "token" else None
        # Patch embeddings have a standard deviation near 1; position codes that start much smaller are learned late.
        self.positions = Positions(positions, width, self.tokens, std=0.3)
        self.dropout = nn.Dropout(dropout)
        mixers = [mixer_of(f"attention heads={heads}", width, causal=False, positions="none", bias=True) for _ in range(depth)]
        self.stack = Stack.of(mixers, ffn, self.style, dropout)
        self.head = nn.Linear(width, classes)
        nn.init.trunc_normal_(self.patches.weight, std=(channels * patch**2) ** -0.5)
        nn.init.zeros_(self.patches.bias)  # type: ignore[arg-type]
        nn.init.normal_(self.head.weight, std=0.02)
        nn.init.zeros_(self.head.bias)

    @property
    def tokens(self) -> int:
        """Number of tokens in the encoder."""
        return self.image[0] * self.image[1] // self.patch**2 + (self.pool == "token")

    def forward(self, x: Tensor) -> Tensor:
        """x (B, C, H, W) -> logits (B, classes)."""
        return self.head(self.pool_features(self.features(x)))

    def features(self, x: Tensor) -> Tensor:
        """x (B, C, H, W) -> encoder outputs (B, N, D), or (B, 1 + N, D) with a class token."""
        return self.stack(self.embed(x))[0]

    def embed(self, x: Tensor) -> Tensor:
        """x (B, C, H, W) -> tokens with their positions, which the encoder reads."""
        self._check(x)
        tokens = self.patches(x).flatten(2).mT
        if self.class_token is not None:
            tokens = torch.cat([self.class_token.expand(len(x), -1, -1), tokens], 1)
        return self.dropout(self.positions(tokens)[0])

    def pool_features(self, features: Tensor) -> Tensor:
        """(B, N, D) -> (B, D)."""
        return features.mean(1) if self.class_token is None else features[:, 0]

    def _check(self, x: Tensor) -> None:
        if x.ndim != 4:
            raise _error(f"layer 'patches' takes (batch, channels, height, width), not {tuple(x.shape)}", "give x four axes")
        if x.shape[1] != self.channels:
            raise _error(f"layer 'patches' takes images with {self.channels} channels, not {x.shape[1]}", f"set channels={x.shape[1]}")
        if tuple(x.shape[2:]) != self.image:
            message = f"layer 'positions' takes images of {_size(self.image)}, not {_size(tuple(x.shape[2:]))}"
            raise _error(message, "set image to that size")


def _error(what: str, fix: str) -> BadInput:
    return BadInput(what, where="ViT", fix=fix)


def _size(image: tuple[int, ...]) -> str:
    return "x".join(map(str, image))


def tiny() -> tuple[ViT, Batch]:
    """A small working instance with input."""
    rng = torch.Generator().manual_seed(0)
    return ViT((8, 6), 2, 8, 1, 2, 5, 1, 2.0), Batch(x=torch.rand(5, 1, 8, 6, generator=rng))
