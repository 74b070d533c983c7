"""What the recurrent topologies share: a way in for tokens or numbers, and mixers one after the other in one or both directions.

B batch, T time, D width.
"""

from __future__ import annotations

from typing import Literal, final

import torch
from torch import Tensor, nn

from ..nn.recurrence import State
from ..nn.spans import Spans
from ..nn.stack import named
from .language_model import embedded, mixer_of

Kind = Literal["tokens", "numbers"]
"""what stands at each place: one token, or a row of numbers"""


def entry(kind: Kind, inputs: int, width: int) -> nn.Module:
    """Tokens (B, T) of so many kinds, or so many numbers (B, T, F), to (B, T, D)."""
    return nn.Embedding(inputs, width) if kind == "tokens" else nn.Linear(inputs, width)


def enter(through: nn.Module, x: Tensor) -> Tensor:
    """x through a way in; tokens that cannot be are told by name."""
    return embedded(through, x) if isinstance(through, nn.Embedding) else through(x)


@final
class Trunk(nn.Module):
    """Mixers one after the other; `bidirectional` sends each layer's input through a second mixer from the end.

    The output is then twice as wide, forward half first, and only whole sequences can be read.
    """

    def __init__(self, mixer: str, width: int, depth: int = 1, bidirectional: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.width = width * (1 + bidirectional)
        """numbers per place that come out"""
        self.layers = nn.ModuleList(mixer_of(mixer, width) for _ in range(depth))
        self.back = nn.ModuleList(mixer_of(mixer, width) for _ in range(depth)) if bidirectional else None
        self.joins = nn.ModuleList(nn.Linear(self.width, width) for _ in range(depth - 1)) if bidirectional else None
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, state: State | None = None, *, spans: Spans | None = None) -> tuple[Tensor, State]:
        after: State = {}
        for i, layer in enumerate(self.layers):
            y, new = layer(x, None if state is None else inside(state, f"{i}"), spans=spans)
            after |= named(f"{i}", new)
            if self.back is not None:
                y = torch.cat([y, _turned(self.back[i](_turned(x, spans), spans=spans)[0], spans)], -1)
            last = i + 1 == len(self.layers)
            x = y if last else self.dropout(y if self.joins is None else self.joins[i](y))
        return x, after


def inside(state: State, part: str) -> State | None:
    """What a state holds of one of its parts; None where that has not begun."""
    return {name.split(".", 1)[1]: value for name, value in state.items() if name.startswith(f"{part}.")} or None


def spans_of(lengths: Tensor | None, places: int) -> Spans | None:
    """Rows of these lengths; None where none of them is padded."""
    return None if lengths is None or bool((lengths == places).all()) else Spans.of_lengths(lengths)


def _turned(x: Tensor, spans: Spans | None) -> Tensor:
    """Each sequence of x (B, T, D) from its end to its beginning; padding stays where it is."""
    if spans is None:
        return x.flip(1)
    places = torch.arange(x.shape[1], device=x.device).expand(x.shape[:2])
    lengths = spans.lengths.unsqueeze(1)
    return x.take_along_dim(torch.where(places < lengths, lengths - 1 - places, places).unsqueeze(-1), 1)


def pooled(y: Tensor, lengths: Tensor | None, pool: Literal["last", "mean"], both: bool) -> Tensor:
    """One vector for each row of y (B, T, D): the mean of its places, or what each direction says when it has read all."""
    ends = torch.full((len(y),), y.shape[1], device=y.device) if lengths is None else lengths
    if pool == "mean":
        inside = torch.arange(y.shape[1], device=y.device) < ends.unsqueeze(1)
        return torch.where(inside.unsqueeze(-1), y, 0).sum(1) / ends.clamp_min(1).unsqueeze(1)
    last = y[torch.arange(len(y), device=y.device), (ends - 1).clamp_min(0)]
    if not both:
        return last
    half = y.shape[-1] // 2
    return torch.cat([last[:, :half], y[:, 0, half:]], -1)
