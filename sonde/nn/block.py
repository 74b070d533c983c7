"""Pre-norm residual block: a mixer moves information along the sequence, a small network works on each token.

    x = x + mixer(norm(x))
    x = x + ffn(norm(x))

B batch, T time, D width.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Literal, final

from torch import Tensor, nn
from torch.nn import functional as F

from ..core.dials import Range
from .mixers import Mixer
from .recurrence import State
from .spans import Spans

RMS = partial(nn.RMSNorm, eps=1e-5)


@final
class FeedForward(nn.Module):
    """Each token through one hidden layer: W2 gelu(W1 x), or W2 (silu(W1 x) * (W3 x)) (Shazeer, GLU Variants, 2020).

    width: numbers per token
    factor: hidden width as a multiple of it; 'swiglu' has a third matrix and takes two thirds, so both have as many weights
    kind: which of the two
    """

    def __init__(self, width: int = 64, factor: Annotated[float, Range(above=0)] = 4.0, kind: Literal["gelu", "swiglu"] = "swiglu") -> None:
        super().__init__()
        hidden = max(round(width * factor * (2 / 3 if kind == "swiglu" else 1)), 1)
        self.up, self.down = nn.Linear(width, hidden, bias=False), nn.Linear(hidden, width, bias=False)
        self.gate = nn.Linear(width, hidden, bias=False) if kind == "swiglu" else None

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)) if self.gate is None else F.silu(self.gate(x)) * self.up(x))


@final
class Block(nn.Module):
    """A mixer and a network for each token, each behind a norm of its own and added to what came in.

    mixer: any of nn.mixers; the state of the block is its state
    ffn: what works on each token; none leaves it out, as in models made of Mamba layers alone
    norm: makes a norm of a width
    dropout: share of numbers set to 0 before they are added, while training
    """

    def __init__(
        self,
        mixer: Mixer,
        ffn: nn.Module | None = None,
        norm: Callable[[int], nn.Module] = RMS,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.norm, self.mixer = norm(mixer.width), mixer
        self.ffn = None if ffn is None else nn.Sequential(norm(mixer.width), ffn)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, state: State | None = None, *, spans: Spans | None = None) -> tuple[Tensor, State]:
        """x (B, T, D) -> the same shape, and the state of the mixer after it."""
        y, state = self.mixer(self.norm(x), state, spans=spans)
        x = x + self.dropout(y)
        return x if self.ffn is None else x + self.dropout(self.ffn(x)), state
