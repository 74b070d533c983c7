"""Shared by sequence models: an input layer for tokens or features, layers in one or both directions, pooling.

B batch, T time, D width.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from ..nn.directions import Bidirectional, Stacked
from ..nn.mixers import Mixer
from ..nn.recurrence import State
from ..nn.spans import Spans
from .language_model import embed, mixer_of, require_causal

InputKind = Literal["tokens", "numbers"]
"""input at each position: one token, or a feature vector"""
Take = Literal["last", "first", "mean"]
"""which position's vector represents a sequence"""


def entry(kind: InputKind, inputs: int, width: int) -> nn.Module:
    """The input layer: an embedding of tokens (B, T), or a linear map of features (B, T, F), to (B, T, D)."""
    return nn.Embedding(inputs, width) if kind == "tokens" else nn.Linear(inputs, width)


def enter(through: nn.Module, x: Tensor) -> Tensor:
    """Apply the input layer; tokens out of range are an error."""
    return embed(through, x) if isinstance(through, nn.Embedding) else through(x)


def trunk(mixer: str, width: int, depth: int = 1, bidirectional: bool = False, dropout: float = 0.0) -> Stacked:
    """`depth` layers of a mixer by name, each in one or in both directions."""

    def layer() -> Mixer | Bidirectional:
        return Bidirectional(mixer_of(mixer, width), mixer_of(mixer, width)) if bidirectional else mixer_of(mixer, width)

    return Stacked([layer() for _ in range(depth)], dropout)


def writer(mixer: str, width: int, depth: int, where: str, dropout: float = 0.0) -> Stacked:
    """The same for a decoder: an error where the mixer is not causal."""
    stack = trunk(mixer, width, depth, dropout=dropout)
    require_causal(stack.causal, mixer, where)
    return stack


def inside(state: State, part: str) -> State | None:
    """The entries of one part of a state; None where it has none."""
    return {name.split(".", 1)[1]: value for name, value in state.items() if name.startswith(f"{part}.")} or None


def spans_of(lengths: Tensor | None, length: int) -> Spans | None:
    """Rows of these lengths; None where none of them is padded."""
    return None if lengths is None or bool((lengths == length).all()) else Spans.of_lengths(lengths)


def pool(y: Tensor, lengths: Tensor | None, take: Take, both: bool = False) -> Tensor:
    """One vector for each row of y (B, T, D), of which the first `lengths` positions count: the last, the first, or the mean.

    Args:
        both: the second half of the features comes from the backward direction, whose final output is at position 0
    """
    if take == "first":
        return y[:, 0]
    ends = torch.full((len(y),), y.shape[1], device=y.device) if lengths is None else lengths
    if take == "mean":
        there = torch.arange(y.shape[1], device=y.device) < ends.unsqueeze(1)
        return torch.where(there.unsqueeze(-1), y, 0).sum(1) / ends.clamp_min(1).unsqueeze(1)
    last = y[torch.arange(len(y), device=y.device), (ends - 1).clamp_min(0)]
    if not both:
        return last
    half = y.shape[-1] // 2
    return torch.cat([last[:, :half], y[:, 0, half:]], -1)
