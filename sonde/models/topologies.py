"""Shapes of recurrent networks, each over any mixer: one or many in, one or many out.

    one-one              Vec2Vec    x            -> y                one step
    one-many             Vec2Seq    x            -> y_1 ... y_T      p(y_1:T; x) = prod_t p(y_t; h_t),
                                                                     h_t = phi(W_xh [x; y_{t-1}] + W_hh h_{t-1} + b)
    many-one             Seq2Vec    x_1 ... x_T  -> y                from the last state, or the mean of all
    many-many aligned    Tagger     x_1 ... x_T  -> y_1 ... y_T      p(y_1:T; x_1:T) = prod_t p(y_t; h_t)
    many-many            Seq2Seq    x_1 ... x_S  -> y_1 ... y_T      in seq2seq.py

A model gives raw outputs (logits, or mean and log variance); the likelihood is the objective's.  `reads` names the fields
of a batch it is called with.  `lengths` (B,) is the length of each row without padding.

B batch, T time, F features per position, D width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal, final

import torch
from torch import Tensor, nn

from ..core.errors import BadInput, nearest
from ..core.options import Count, Range, checked
from ..nn.recurrence import State
from ..nn.spans import Spans
from ..nn.stack import prefix_state
from ._trunk import InputKind, enter, entry, inside, pool, spans_of, trunk, writer
from .seq2seq import Seq2Seq


@final
class Vec2Vec(nn.Module):
    """One vector in, one out: a single step of the mixer from its empty state.

    Args:
        inputs: number of features
        outputs: number of outputs
        width: hidden size
        depth: number of layers
        mixer: sequence mixer, by name; its options may follow: 'gla heads=8'
    """

    @checked
    def __init__(self, inputs: Count, outputs: Count, width: Count = 64, depth: Count = 1, mixer: str = "gru") -> None:
        super().__init__()
        self.entry, self.trunk, self.head = nn.Linear(inputs, width), trunk(mixer, width, depth), nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, F) -> (B, outputs)."""
        return self.head(self.trunk(self.entry(x).unsqueeze(1))[0].squeeze(1))


@final
class Vec2Seq(nn.Module):
    """One vector in, a sequence out: a language model conditioned on the vector at every step.

    Args:
        source: number of features of the vector
        outputs: vocabulary size, or number of features per position
        kind: 'tokens' gives logits (B, T, outputs), 'numbers' all means and then all log variances (B, T, 2 outputs)
        width: hidden size
        depth: number of layers
        mixer: causal sequence mixer, by name
    """

    reads = ("source", "x")

    @checked
    def __init__(
        self, source: Count, outputs: Count, kind: InputKind = "tokens", width: Count = 64, depth: Count = 1, mixer: str = "gru"
    ) -> None:
        super().__init__()
        self.condition, self.entry = nn.Linear(source, width), entry(kind, outputs, width)
        self.trunk = writer(mixer, width, depth, "Vec2Seq")
        self.head = nn.Linear(width, outputs * (1 if kind == "tokens" else 2))

    def forward(self, source: Tensor, x: Tensor) -> Tensor:
        """source (B, F) and the outputs so far, x: y shifted by one position -> raw outputs at every position."""
        return self.advance(x, self.begin(source))[0]

    def begin(self, source: Tensor) -> State:
        """The state before the first output."""
        return {"condition": self.condition(source)}

    def advance(self, x: Tensor, state: State | None = None, *, spans: Spans | None = None) -> tuple[Tensor, State]:
        """Continue from a state: the last outputs x -> raw outputs for the next ones, and the state after them."""
        if state is None:
            raise BadInput("a sequence about a vector needs the vector", where="Vec2Seq", fix="begin with model.begin(source)")
        condition = state["condition"]
        # W [x; y] of two parts is the sum of a map of each
        h, after = self.trunk(enter(self.entry, x) + condition.unsqueeze(1), inside(state, "trunk"), spans=spans)
        return self.head(h), {"condition": condition, **prefix_state("trunk", after)}

    def sample(self, source: Tensor, first: Tensor, steps: int, draw: Callable[[Tensor], Tensor]) -> Tensor:
        """Sequences (B, steps): each output is drawn from the raw ones by `draw` and fed back; `first` (B, 1) comes before them."""
        state, x, samples = self.begin(source), first, []
        for _ in range(steps):
            raw, state = self.advance(x, state)
            x = draw(raw)
            samples.append(x)
        return torch.cat(samples, 1)


@final
class Seq2Vec(nn.Module):
    """A sequence in, one vector out: its last state or the mean of all states, through a linear map.

    Args:
        inputs: vocabulary size, or number of features per position
        outputs: number of outputs
        kind: input at each position: tokens or feature vectors
        width: hidden size of each direction
        depth: number of layers
        mixer: sequence mixer, by name
        bidirectional: a second mixer reads from the end; the state is then twice as wide
        pool: 'last' takes the final output of each direction, 'mean' the mean over all positions
        dropout: dropout probability before each mixer and before the output
    """

    reads = ("x", "lengths")

    @checked
    def __init__(  # noqa: PLR0913  an option for each way in which readers of a sequence differ
        self,
        inputs: Count,
        outputs: Count,
        kind: InputKind = "tokens",
        width: Count = 64,
        depth: Count = 1,
        mixer: str = "gru",
        bidirectional: bool = False,
        pool: Literal["last", "mean"] = "last",
        dropout: Annotated[float, Range(least=0, below=1)] = 0.0,
    ) -> None:
        super().__init__()
        self.pool, self.bidirectional = pool, bidirectional
        self.entry, self.trunk = entry(kind, inputs, width), trunk(mixer, width, depth, bidirectional, dropout)
        self.dropout, self.head = nn.Dropout(dropout), nn.Linear(self.trunk.out_width, outputs)

    def features(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """x (B, T) or (B, T, F) -> the input of the head, (B, D), or (B, 2 D) for two directions."""
        y, _ = self.trunk(self.dropout(enter(self.entry, x)), spans=spans_of(lengths, x.shape[1]))
        return self.dropout(pool(y, lengths, self.pool, self.bidirectional))

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """x (B, T) or (B, T, F) -> (B, outputs)."""
        return self.head(self.features(x, lengths))


@final
class Tagger(nn.Module):
    """A sequence in, an output for each of its positions.

    Args:
        inputs: vocabulary size, or number of features per position
        outputs: outputs per position
        kind: input at each position: tokens or feature vectors
        width: hidden size of each direction
        depth: number of layers
        mixer: sequence mixer, by name
        bidirectional: a second mixer reads from the end, so an output may depend on later positions
        dropout: dropout probability before each mixer and before the output
    """

    reads = ("x", "lengths")

    @checked
    def __init__(  # noqa: PLR0913  an option for each way in which readers of a sequence differ
        self,
        inputs: Count,
        outputs: Count,
        kind: InputKind = "tokens",
        width: Count = 64,
        depth: Count = 1,
        mixer: str = "gru",
        bidirectional: bool = False,
        dropout: Annotated[float, Range(least=0, below=1)] = 0.0,
    ) -> None:
        super().__init__()
        self.entry, self.trunk = entry(kind, inputs, width), trunk(mixer, width, depth, bidirectional, dropout)
        self.dropout, self.head = nn.Dropout(dropout), nn.Linear(self.trunk.out_width, outputs)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """x (B, T) or (B, T, F) -> (B, T, outputs); outputs at padding are meaningless."""
        y, _ = self.trunk(self.dropout(enter(self.entry, x)), spans=spans_of(lengths, x.shape[1]))
        return self.head(self.dropout(y))


TOPOLOGIES: dict[str, type[nn.Module]] = {
    "one-one": Vec2Vec,
    "one-many": Vec2Seq,
    "many-one": Seq2Vec,
    "many-many aligned": Tagger,
    "many-many": Seq2Seq,
}


def topology(name: str, **options: Any) -> nn.Module:
    """A network of one of the shapes, by name: `topology("many-one", inputs=20, outputs=2, mixer="lstm")`."""
    if name not in TOPOLOGIES:
        raise BadInput(f"no topology '{name}'", fix=nearest(name, TOPOLOGIES))
    return TOPOLOGIES[name](**options)
