"""What models of sequences share: a way in for tokens or numbers, layers in one or both directions, one vector of a sequence.

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
"""what stands at each place: one token, or a row of numbers"""
Take = Literal["last", "first", "mean"]
"""whose vector stands for a sequence"""


def entry(kind: InputKind, inputs: int, width: int) -> nn.Module:
    """Tokens (B, T) of so many kinds, or so many numbers (B, T, F), to (B, T, D)."""
    return nn.Embedding(inputs, width) if kind == "tokens" else nn.Linear(inputs, width)


def enter(through: nn.Module, x: Tensor) -> Tensor:
    """x through a way in; tokens that cannot be are told by name."""
    return embed(through, x) if isinstance(through, nn.Embedding) else through(x)


def trunk(mixer: str, width: int, depth: int = 1, bidirectional: bool = False, dropout: float = 0.0) -> Stacked:
    """So many layers of a mixer by name, each in one or in both directions."""

    def layer() -> Mixer | Bidirectional:
        return Bidirectional(mixer_of(mixer, width), mixer_of(mixer, width)) if bidirectional else mixer_of(mixer, width)

    return Stacked([layer() for _ in range(depth)], dropout)


def writer(mixer: str, width: int, depth: int, where: str, dropout: float = 0.0) -> Stacked:
    """Such layers for a model that writes: what comes out at a place has not seen the later ones, which it has to predict."""
    stack = trunk(mixer, width, depth, dropout=dropout)
    require_causal(stack.causal, mixer, where)
    return stack


def inside(state: State, part: str) -> State | None:
    """What a state holds of one of its parts; None where that has not begun."""
    return {name.split(".", 1)[1]: value for name, value in state.items() if name.startswith(f"{part}.")} or None


def spans_of(lengths: Tensor | None, places: int) -> Spans | None:
    """Rows of these lengths; None where none of them is padded."""
    return None if lengths is None or bool((lengths == places).all()) else Spans.of_lengths(lengths)


def pool(y: Tensor, lengths: Tensor | None, take: Take, both: bool = False) -> Tensor:
    """One vector for each row of y (B, T, D), of which the first `lengths` places count: of its last one, its first, or their mean.

    Args:
        both: the second half of the numbers comes from reading backwards, so what it says when it has read all stands first
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
