"""Shared parts of mixers: heads and rotary position embeddings.

B batch, T time, D width, H heads.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated

import torch
from torch import Tensor

from ...core.errors import BadInput
from ...core.options import Range

PositiveWidth = Annotated[int, Range(1)]
Heads = Annotated[int, Range(1, 4096)]


def split(x: Tensor, heads: int) -> Tensor:
    """(B, T, H d) -> (B, H, T, d), a view."""
    B, T, D = x.shape
    return x.view(B, T, heads, D // heads).transpose(1, 2)


def merge(x: Tensor) -> Tensor:
    """(B, H, T, d) -> (B, T, H d)."""
    return x.transpose(1, 2).flatten(2)


def width_per_head(width: int, heads: int, owner: str) -> int:
    """width / heads, or an error that lists valid numbers of heads."""
    if width % heads:
        divisors = [n for n in range(1, width + 1) if width % n == 0 and n <= 64]
        raise BadInput(
            f"a width of {width} cannot be divided into {heads} heads", where=owner, fix=f"use one of {', '.join(map(str, divisors))} heads"
        )
    return width // heads


def advance_position(position: Tensor | None, x: Tensor, lengths: Tensor | None) -> Tensor:
    """(B,) number of tokens of each sequence after x (B, T, D)."""
    seen = torch.full((len(x),), x.shape[1], device=x.device) if lengths is None else lengths
    return seen if position is None else position + seen


def rotate(x: Tensor, position: Tensor | None, base: float = 10000.0, interleaved: bool = False) -> Tensor:
    """x (B, H, T, d) with rotary position embeddings; position (B,) is that of the first token.

    Args:
        interleaved: pairs are neighbors (0, 1), (2, 3), ..; otherwise channel i goes with channel i + d/2
    """
    T, d = x.shape[-2:]
    if position is None:
        cos, sin = (
            _rotation_angles(T, d, base, x.dtype, x.device)
            if torch.compiler.is_compiling()
            else _cached_rotation(T, d, base, x.dtype, x.device)
        )
    else:
        angle = _angles(position.unsqueeze(1) + torch.arange(T, device=x.device), d, base)  # (B, 1, T, d/2)
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = (x[..., 0::2], x[..., 1::2]) if interleaved else x.chunk(2, -1)
    rotated = (a * cos - b * sin, b * cos + a * sin)
    return torch.stack(rotated, -1).flatten(-2) if interleaved else torch.cat(rotated, -1)


def _angles(time: Tensor, d: int, base: float) -> Tensor:
    """time (B, T) -> (B, 1, T, d/2); in float64, because large positions need the precision."""
    frequency = base ** (-torch.arange(0, d, 2, device=time.device, dtype=torch.float64) / d)
    return (time.double().unsqueeze(-1) * frequency).unsqueeze(1)


def _rotation_angles(T: int, d: int, base: float, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    angle = _angles(torch.arange(T, device=device).unsqueeze(0), d, base)
    return angle.cos().to(dtype), angle.sin().to(dtype)


_cached_rotation = lru_cache(maxsize=16)(torch.inference_mode(False)(torch.no_grad()(_rotation_angles)))
"""the same for all layers and steps of a training run, so cached"""
