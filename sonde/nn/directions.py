"""Bidirectional and stacked layers of any mixer.

Two mixers read the same sequence, one of them backwards: y_t = [forward_t; backward_t], so every output depends on every input.

B batch, T time, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn

from ..core.errors import BadInput
from .mixers import Mixer
from .spans import Spans, State
from .stack import prefix_state, split_state


def reverse(x: Tensor, spans: Spans | None = None) -> Tensor:
    """Reverse each sequence of x (B, T, ...) in time; padding stays where it is."""
    if spans is None:
        return x.flip(1)
    lengths = spans.lengths
    row, start, stop = (part.repeat_interleave(lengths) for part in (spans.row, spans.start, spans.stop))
    step = torch.arange(len(row), device=x.device) - (lengths.cumsum(0) - lengths).repeat_interleave(lengths)
    return x.index_put((row, start + step), x[row, stop - 1 - step])


@final
class Bidirectional(nn.Module):
    """Concatenated outputs of two mixers, (B, T, 2 D); the second reads backwards.

    Args:
        forward_mixer: reads forwards
        backward_mixer: reads backwards; None is the same mixer, with the same weights
    """

    causal = False

    def __init__(self, forward_mixer: Mixer, backward_mixer: Mixer | None = None) -> None:
        super().__init__()
        if backward_mixer is not None and backward_mixer.width != forward_mixer.width:
            widths = f"{forward_mixer.width} and {backward_mixer.width}"
            raise BadInput(f"both mixers must have the same width, not {widths}", where="Bidirectional")
        self.forward_mixer, self.backward_mixer = forward_mixer, backward_mixer
        self.width, self.out_width = forward_mixer.width, 2 * forward_mixer.width
        """features per token of the input and of the output"""

    def forward(self, x: Tensor, state: State | None = None, *, spans: Spans | None = None) -> tuple[Tensor, State]:
        """x (B, T, D) -> y (B, T, 2 D), and the final state of each direction, from which nothing can be continued."""
        if state is not None:
            raise BadInput("two directions see the whole sequence at once and cannot continue from a state", where="Bidirectional")
        first, from_start = self.forward_mixer(x, spans=spans)
        second, from_end = (self.backward_mixer or self.forward_mixer)(reverse(x, spans), spans=spans)
        return torch.cat([first, reverse(second, spans)], -1), prefix_state("forward", from_start) | prefix_state("backward", from_end)


@final
class Stacked(nn.Module):
    """Mixers one after the other with dropout between them; their states have the prefixes "0.", "1.", ...

    A bidirectional layer has twice the width: a linear layer projects it back for the next one.

    Args:
        layers: mixers, or pairs of them
        dropout: dropout probability between layers
    """

    def __init__(self, layers: Sequence[Mixer | Bidirectional], dropout: float = 0.0) -> None:
        super().__init__()
        widths = {layer.width for layer in layers}
        if len(widths) != 1:
            raise BadInput(f"stacked layers must have the same width, not {sorted(widths)}", where="Stacked")
        self.layers, self.dropout = nn.ModuleList(layers), nn.Dropout(dropout)
        self.joins = nn.ModuleList(
            nn.Linear(layer.out_width, layer.width) if isinstance(layer, Bidirectional) else nn.Identity() for layer in layers[:-1]
        )
        self.width, self.out_width = layers[-1].width, getattr(layers[-1], "out_width", layers[-1].width)
        self.causal = all(layer.causal for layer in layers)

    def forward(self, x: Tensor, state: State | None = None, *, spans: Spans | None = None) -> tuple[Tensor, State]:
        before = split_state(state, [str(i) for i in range(len(self.layers))], "Stacked")
        after: State = {}
        for i, layer in enumerate(self.layers):
            x, new = layer(x if not i else self.dropout(self.joins[i - 1](x)), before.get(str(i)), spans=spans)
            after |= prefix_state(str(i), new)
        return x, after
