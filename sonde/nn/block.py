"""Residual block: a sequence mixer, optional cross-attention, and a feed-forward network for each token.

    x = x + mixer(norm(x))                  or, norms after the sums as first published,   x = norm(x + mixer(x))
    x = x + cross(norm(x), context)                                                        x = norm(x + cross(x, context))
    x = x + ffn(norm(x))                                                                   x = norm(x + ffn(x))

`Style` holds the choices in which published transformers differ; `STYLES` names some of them.

B batch, T time, D width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal, final

from torch import Tensor, nn
from torch.nn import functional as F

from ..core.errors import BadInput, nearest
from ..core.options import Range, checked
from ..kernels.activate import activate
from .mixers import Mixer
from .mixers.attention import CrossAttention
from .recurrence import State
from .spans import Spans

RMS = partial(nn.RMSNorm, eps=1e-5)

FeedForwardActivation = Literal["swiglu", "geglu", "gelu", "gelu_tanh", "relu"]
ACTIVATIONS: dict[str, Callable[..., Tensor]] = {
    "swiglu": partial(activate, kind="silu"),
    "geglu": partial(activate, kind="gelu_tanh"),
    "gelu": F.gelu,
    "gelu_tanh": partial(activate, kind="gelu_tanh"),
    "relu": F.relu,
}
GATED = ("swiglu", "geglu")


@final
@dataclass(frozen=True)
class Style:
    """Choices in which published transformers differ besides their sizes."""

    norm: Literal["rms", "layer"] = "rms"
    eps: float = 1e-5
    """added to the variance before its root"""
    post: bool = False
    """post-norm: norms after each sum; otherwise pre-norm, with one more norm at the end"""
    activation: FeedForwardActivation = "swiglu"
    bias: bool = False
    """biases in the feed-forward network"""
    scaled: bool = True
    """embeddings are multiplied by the root of the width, so that they start with a standard deviation near 1"""
    shrunk: bool = False
    """logits of tied embeddings are divided by the root of the width"""

    def shrink(self, width: int, tied: bool) -> float:
        """Factor of the logits."""
        return width**-0.5 if self.shrunk and tied else 1.0

    def make_norm(self, width: int) -> nn.Module:
        return (nn.RMSNorm if self.norm == "rms" else nn.LayerNorm)(width, eps=self.eps)


STYLES = {
    "modern": Style(),
    "notes": Style("layer", post=True, activation="relu", bias=True),
    "gpt2": Style("layer", activation="gelu_tanh", bias=True, scaled=False),
    "bert": Style("layer", eps=1e-12, post=True, activation="gelu", bias=True, scaled=False),
    "t5": Style(eps=1e-6, activation="relu", scaled=False, shrunk=True),
    "llama": Style(eps=1e-6, scaled=False),
}


def style_of(style: str | Style) -> Style:
    """A style by its name, or the one given."""
    if isinstance(style, Style):
        return style
    if style not in STYLES:
        raise BadInput(f"no style '{style}'", fix=nearest(style, STYLES))
    return STYLES[style]


@final
class FeedForward(nn.Module):
    """A feed-forward network: W2 f(W1 x), or with a gate W2 (f(W3 x) * (W1 x)) (Shazeer, GLU Variants, 2020).

    Args:
        width: model dimension
        factor: hidden width as a multiple of it; a gated network takes two thirds of that, so that parameter counts are equal
        kind: the activation f; 'swiglu' and 'geglu' have a gate
        bias: add biases
    """

    small_start = True

    @checked
    def __init__(
        self, width: int = 64, factor: Annotated[float, Range(above=0)] = 4.0, kind: FeedForwardActivation = "swiglu", bias: bool = False
    ) -> None:
        super().__init__()
        hidden = max(round(width * factor * (2 / 3 if kind in GATED else 1)), 1)
        self.up, self.down = nn.Linear(width, hidden, bias), nn.Linear(hidden, width, bias)
        self.gate = nn.Linear(width, hidden, bias) if kind in GATED else None
        self.kind = kind

    def forward(self, x: Tensor) -> Tensor:
        f = ACTIVATIONS[self.kind]
        return self.down(f(self.up(x)) if self.gate is None else f(self.gate(x), up=self.up(x)))


@final
class Block(nn.Module):
    """A mixer and a feed-forward network, each with a norm and a residual connection.

    Args:
        mixer: any of nn.mixers; the state of the block is its state
        ffn: feed-forward network; None leaves it out, as in Mamba
        norm: makes a norm for a width
        dropout: dropout probability before the addition
        post: norms after the sums (post-norm)
        cross: cross-attention between mixer and feed-forward network
    """

    def __init__(
        self,
        mixer: Mixer,
        ffn: nn.Module | None = None,
        norm: Callable[[int], nn.Module] = RMS,
        dropout: float = 0.0,
        post: bool = False,
        cross: CrossAttention | None = None,
    ) -> None:
        super().__init__()
        self.norm, self.mixer, self.post = norm(mixer.width), mixer, post
        self.cross, self.cross_norm = cross, None if cross is None else norm(mixer.width)
        self.ffn, self.ffn_norm = ffn, None if ffn is None else norm(mixer.width)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, x: Tensor, state: State | None = None, *, spans: Spans | None = None, context: State | None = None
    ) -> tuple[Tensor, State]:
        """x (B, T, D) -> the same shape, and the state of the mixer after it; `context` holds the keys and values for `cross`."""
        y, state = self.mixer(x if self.post else self.norm(x), state, spans=spans)
        x = self._sum(x, y, self.norm)
        if self.cross is not None and self.cross_norm is not None:
            if context is None:
                raise BadInput("cross-attention needs a context", where="Block", fix="pass context=encoder output")
            x = self._sum(x, self.cross(x if self.post else self.cross_norm(x), context), self.cross_norm)
        if self.ffn is not None and self.ffn_norm is not None:
            x = self._sum(x, self.ffn(x if self.post else self.ffn_norm(x)), self.ffn_norm)
        return x, state

    def _sum(self, x: Tensor, y: Tensor, norm: nn.Module) -> Tensor:
        x = x + self.dropout(y)
        return norm(x) if self.post else x
