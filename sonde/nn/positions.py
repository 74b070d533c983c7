"""Position codes for networks that do not see the order of their tokens.

    learned     a vector for each position, up to a maximum
    sinusoidal  p[i, 2j] = sin(i / C^(2j/d)), p[i, 2j+1] = cos(i / C^(2j/d)), C = 10000; for any length (Vaswani et al. 2017)
    binary      the bits of i, the lowest first
    alibi       a score falls in proportion to the distance, with a slope for each head (Press et al. 2022)
    relative    a learned bias for each head and bucket of distances is added to the score (Raffel et al., T5, 2020)

The first three are added to tokens or concatenated to them (`Positions`); the last two change the scores of attention.
Rotary embeddings are in `mixers/_parts.py`, beside the mixers that use them.

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


def sinusoidal(positions: Tensor, width: int, base: float = 10000.0) -> Tensor:
    """positions (...) -> (..., width) waves: even channels sines, odd ones cosines of the same angle.  Float64."""
    channel = torch.arange(width, device=positions.device)
    angle = positions.double().unsqueeze(-1) * base ** (-2 * (channel // 2).double() / width)
    return torch.where(channel % 2 == 0, angle.sin(), angle.cos())


def binary(positions: Tensor, bits: int) -> Tensor:
    """positions (...) -> (..., bits) zeros and ones, the lowest bit first.  Float64."""
    return ((positions.unsqueeze(-1) >> torch.arange(bits, device=positions.device)) & 1).double()


@final
class Positions(nn.Module):
    """Add position codes to tokens: x + P, or x and P concatenated.

    Args:
        kind: 'learned', 'sinusoidal' or 'binary'
        width: dimension of a code; equal to the token's where codes are added
        max_positions: longest sequence; required for learned and binary codes
        combine: add the code to the token, or concatenate it, which makes tokens wider
        scale: factor of a learned code
        std: standard deviation of a learned code at initialization
    """

    @checked
    def __init__(
        self,
        kind: Literal["learned", "sinusoidal", "binary"],
        width: Count = 64,
        max_positions: Count | None = None,
        combine: Literal["add", "concat"] = "add",
        scale: float = 1.0,
        std: float = 0.02,
    ) -> None:
        super().__init__()
        if kind != "sinusoidal" and max_positions is None:
            raise BadInput(f"'{kind}' positions need a maximum", where="Positions", fix="give max_positions=N, or use sinusoidal ones")
        if kind == "binary" and width < (bits := max((int(max_positions or 1) - 1).bit_length(), 1)):
            raise BadInput(
                f"{max_positions} positions take {bits} bits, the width is {width}", where="Positions", fix=f"use a width of {bits} or more"
            )
        self.kind, self.width, self.max_positions, self.combine, self.scale = kind, width, max_positions, combine, scale
        self.weight = nn.Parameter(torch.randn(int(max_positions or 1), width) * std) if kind == "learned" else None

    def forward(self, x: Tensor, state: State | None = None, lengths: Tensor | None = None) -> tuple[Tensor, State]:
        """x (B, T, D) after the tokens that `state` has counted -> x with positions, and the state after it."""
        B, T, _ = x.shape
        before = torch.zeros(B, dtype=torch.long, device=x.device) if state is None else state["seen"]
        after = before + (T if lengths is None else lengths)
        if self.kind != "sinusoidal" and self.max_positions is not None:
            longest = T if state is None and lengths is None else int(after.max())
            if longest > self.max_positions:
                raise BadInput(
                    f"the sequence has {longest} tokens, the model takes at most {self.max_positions}",
                    where="positions",
                    fix="give shorter sequences, or train with a longer context",
                )
        if state is None:
            code = self.code(torch.arange(T, device=x.device)).to(x.dtype).unsqueeze(0)
        else:
            code = self.code(before.unsqueeze(1) + torch.arange(T, device=x.device)).to(x.dtype)
        return (x + code if self.combine == "add" else torch.cat([x, code.expand(B, -1, -1)], -1)), {"seen": after}

    def code(self, positions: Tensor) -> Tensor:
        """positions (...) -> (..., width); positions beyond the last, which only padding has, count as the last."""
        if self.weight is not None:
            rows = self.weight[: len(positions)] if positions.dim() == 1 and len(positions) <= len(self.weight) else None
            rows = self.weight[positions.clamp_max(len(self.weight) - 1)] if rows is None else rows  # a slice is cheaper than a lookup
            return rows if self.scale == 1 else rows * self.scale
        if self.kind == "sinusoidal":
            return sinusoidal(positions, self.width)
        bits = max((int(self.max_positions or 1) - 1).bit_length(), 1)
        return nn.functional.pad(binary(positions, bits), (0, self.width - bits if self.combine == "add" else 0))


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

    def forward(self, positions: Tensor, keys: int) -> Tensor:
        """positions (B, T) of queries -> (B, H, T, N) bias of their scores with keys 0 .. N-1."""
        distance = (positions.unsqueeze(-1) - torch.arange(keys, device=positions.device)).abs()
        return -self.slopes.view(-1, 1, 1) * distance.unsqueeze(1)  # type: ignore[operator]


@final
class RelativeBias(nn.Module):
    """A learned bias for each head and bucket of distances: small distances have a bucket each, large ones are grouped by logarithm.

    Args:
        heads: number of attention heads
        causal: keys never come after the query, so all buckets are for the past
        buckets: number of buckets
        furthest: all distances from this one on share the last bucket
    """

    @checked
    def __init__(self, heads: int = 4, causal: bool = True, buckets: Count = 32, furthest: Count = 128) -> None:
        super().__init__()
        self.causal, self.buckets, self.furthest = causal, buckets, furthest
        self.weight = nn.Parameter(torch.randn(buckets, heads) * 0.02)

    def bucket(self, offset: Tensor) -> Tensor:
        """The bucket of a key at `offset` from its query; negative offsets are earlier positions."""
        count = self.buckets if self.causal else self.buckets // 2
        distance = (-offset).clamp_min(0) if self.causal else offset.abs()
        near = count // 2
        far = near + (torch.log(distance.clamp_min(1).float() / near) / math.log(self.furthest / near) * (count - near)).long()
        buckets = torch.where(distance < near, distance, far.clamp_max(count - 1))
        return buckets if self.causal else buckets + count * (offset > 0)

    def forward(self, positions: Tensor, keys: int) -> Tensor:
        """positions (B, T) of queries -> (B, H, T, N) bias of their scores with keys 0 .. N-1."""
        offset = torch.arange(keys, device=positions.device) - positions.unsqueeze(-1)
        return self.weight[self.bucket(offset)].permute(0, 3, 1, 2)
