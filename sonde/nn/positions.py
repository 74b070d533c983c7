"""Positions: where a token stands, told to a network that would not see it.

    learned     a vector for each place, up to a largest one
    sinusoidal  p[i, 2j] = sin(i / C^(2j/d)), p[i, 2j+1] = cos(i / C^(2j/d)), C = 10000; for any length (Vaswani et al. 2017)
    binary      the bits of i, the lowest first
    alibi       a score falls in proportion to the distance, at a rate of each head's own (Press et al. 2022)
    relative    a learned number for each head and class of distances is added to the score (Raffel et al., T5, 2020)

The first three are added to tokens or laid beside them (`Positions`); the last two change the scores of attention.
Rotations of queries and keys stand with the mixers that use them.

B batch, T time, N keys, D width, H heads.
"""

from __future__ import annotations

import math
from typing import Literal, final

import torch
from torch import Tensor, nn

from ..core.errors import BadInput
from ..core.options import Count, checked
from .spans import State

PositionKind = Literal["none", "learned", "sinusoidal", "binary"]


def sinusoidal(places: Tensor, width: int, base: float = 10000.0) -> Tensor:
    """places (...) -> (..., width) waves: even channels sines, odd ones cosines of the same angle.  Float64."""
    channel = torch.arange(width, device=places.device)
    angle = places.double().unsqueeze(-1) * base ** (-2 * (channel // 2).double() / width)
    return torch.where(channel % 2 == 0, angle.sin(), angle.cos())


def binary(places: Tensor, bits: int) -> Tensor:
    """places (...) -> (..., bits) zeros and ones, the lowest bit first.  Float64."""
    return ((places.unsqueeze(-1) >> torch.arange(bits, device=places.device)) & 1).double()


@final
class Positions(nn.Module):
    """Tells tokens their places: x + P, or x and P side by side.

    Args:
        kind: 'learned', 'sinusoidal' or 'binary'
        width: numbers per place, which must be the token's own where they are added
        places: how many there are; a learned or binary code has no more
        combine: add to the token, or put beside it, which makes tokens wider
        scale: factor of a learned code, whose numbers begin with a standard deviation of `std`
    """

    @checked
    def __init__(
        self,
        kind: Literal["learned", "sinusoidal", "binary"],
        width: Count = 64,
        places: Count | None = None,
        combine: Literal["add", "concat"] = "add",
        scale: float = 1.0,
        std: float = 0.02,
    ) -> None:
        super().__init__()
        if kind != "sinusoidal" and places is None:
            raise BadInput(
                f"'{kind}' positions need a largest number of places", where="Positions", fix="give places=N, or use sinusoidal ones"
            )
        if kind == "binary" and width < (bits := max((int(places or 1) - 1).bit_length(), 1)):
            raise BadInput(
                f"{places} places take {bits} bits, the width is {width}", where="Positions", fix=f"use a width of {bits} or more"
            )
        self.kind, self.width, self.places, self.combine, self.scale = kind, width, places, combine, scale
        self.weight = nn.Parameter(torch.randn(int(places or 1), width) * std) if kind == "learned" else None

    def forward(self, x: Tensor, state: State | None = None, lengths: Tensor | None = None) -> tuple[Tensor, State]:
        """x (B, T, D) behind the places that `state` has seen -> x with positions, and the state after it."""
        B, T, _ = x.shape
        before = torch.zeros(B, dtype=torch.long, device=x.device) if state is None else state["seen"]
        after = before + (T if lengths is None else lengths)
        if self.kind != "sinusoidal" and self.places is not None:
            longest = T if state is None and lengths is None else int(after.max())
            if longest > self.places:
                raise BadInput(
                    f"the sequence has {longest} tokens, the model takes at most {self.places}",
                    where="positions",
                    fix="give shorter sequences, or train with a longer context",
                )
        if state is None:
            code = self.code(torch.arange(T, device=x.device)).to(x.dtype).unsqueeze(0)
        else:
            code = self.code(before.unsqueeze(1) + torch.arange(T, device=x.device)).to(x.dtype)
        return (x + code if self.combine == "add" else torch.cat([x, code.expand(B, -1, -1)], -1)), {"seen": after}

    def code(self, places: Tensor) -> Tensor:
        """places (...) -> (..., width); those beyond the last, which only padding can have, count as the last."""
        if self.weight is not None:
            rows = self.weight[: len(places)] if places.dim() == 1 and len(places) <= len(self.weight) else None
            rows = self.weight[places.clamp_max(len(self.weight) - 1)] if rows is None else rows  # a slice is cheaper than a lookup
            return rows if self.scale == 1 else rows * self.scale
        if self.kind == "sinusoidal":
            return sinusoidal(places, self.width)
        bits = max((int(self.places or 1) - 1).bit_length(), 1)
        return nn.functional.pad(binary(places, bits), (0, self.width - bits if self.combine == "add" else 0))


@final
class Alibi(nn.Module):
    """-slope * distance for each head; slopes 2^(-8 i / H), i = 1 .. H, where H is a power of two.

    Otherwise the slopes of the next lower power come first, then every other one of the next higher.
    """

    def __init__(self, heads: int = 4) -> None:
        super().__init__()
        low = 2 ** int(math.log2(heads))
        slopes = [2 ** (-8 * i / low) for i in range(1, low + 1)] + [2 ** (-4 * i / low) for i in range(1, 2 * low, 2)]
        self.register_buffer("slopes", torch.tensor(slopes[:heads], dtype=torch.float64), persistent=False)

    def forward(self, places: Tensor, keys: int) -> Tensor:
        """places (B, T) of queries -> (B, H, T, N) what is added to their scores with keys 0 .. N-1."""
        distance = (places.unsqueeze(-1) - torch.arange(keys, device=places.device)).abs()
        return -self.slopes.view(-1, 1, 1) * distance.unsqueeze(1)  # type: ignore[operator]


@final
class RelativeBias(nn.Module):
    """A learned number for each head and class of distances: near ones have a class each, far ones share by their logarithm.

    Args:
        heads: of the attention
        causal: keys never lie ahead, so all classes are for the past
        buckets: classes
        furthest: all distances from this one on are one class
    """

    @checked
    def __init__(self, heads: int = 4, causal: bool = True, buckets: Count = 32, furthest: Count = 128) -> None:
        super().__init__()
        self.causal, self.buckets, self.furthest = causal, buckets, furthest
        self.weight = nn.Parameter(torch.randn(buckets, heads) * 0.02)

    def classes(self, ahead: Tensor) -> Tensor:
        """The class of a key that lies `ahead` of its query, behind it where negative."""
        most = self.buckets if self.causal else self.buckets // 2
        back = (-ahead).clamp_min(0) if self.causal else ahead.abs()
        near = most // 2
        far = near + (torch.log(back.clamp_min(1).float() / near) / math.log(self.furthest / near) * (most - near)).long()
        buckets = torch.where(back < near, back, far.clamp_max(most - 1))
        return buckets if self.causal else buckets + most * (ahead > 0)

    def forward(self, places: Tensor, keys: int) -> Tensor:
        """places (B, T) of queries -> (B, H, T, N) what is added to their scores with keys 0 .. N-1."""
        ahead = torch.arange(keys, device=places.device) - places.unsqueeze(-1)
        return self.weight[self.classes(ahead)].permute(0, 3, 1, 2)
