"""Language model: tokens -> blocks of any mixer -> logits of the next token at every place.

`forward` is for training; `advance` goes on from a state, in pieces of any length, and gives the same logits.

B batch, T time, D width.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.dials import Range
from ..core.errors import BadInput
from ..nn.block import RMS, Block, FeedForward
from ..nn.mixers import Mixer, mixer
from ..nn.recurrence import State
from ..nn.spans import Spans

Count = Annotated[int, Range(least=1)]


@final
class LanguageModel(nn.Module):
    """A stack of pre-norm blocks between an embedding and a linear map to logits.

    vocabulary: how many tokens there are
    width: numbers per token
    depth: blocks
    mixer: what moves information along the sequence, by name; its dials may follow: 'gla heads=8 rank=4'
    ffn: hidden width of each block's network as a multiple of the width; 0 leaves the network out
    places: learn a vector for each of so many positions, which are then the longest sequence; a mixer that does not
        see the order of tokens needs them
    dropout: share of numbers set to 0 in each block while training
    tied: one matrix turns tokens into vectors and vectors into logits, which saves weights where there are many tokens
    ahead: allow a mixer that looks at later tokens; only right where the input does not hold the answers
    """

    def __init__(  # noqa: PLR0913  a dial for each way in which models of one size differ
        self,
        vocabulary: Count = 256,
        width: Count = 128,
        depth: Count = 4,
        mixer: str = "attention",
        ffn: Annotated[float, Range(least=0)] = 4.0,
        places: Count | None = None,
        dropout: Annotated[float, Range(least=0, below=1)] = 0.0,
        tied: bool = False,
        ahead: bool = False,
    ) -> None:
        super().__init__()
        self.vocabulary, self.width = vocabulary, width
        self.embedding = nn.Embedding(vocabulary, width)
        self.place = None if places is None else nn.Embedding(places, width)
        self.head = None if tied else nn.Linear(width, vocabulary, bias=False)
        # Tokens begin with numbers near 1 (`_run` multiplies by the root of the width), logits near 0.  With one matrix for
        # both a token's own vector is still in the last block's output, so it has to begin smaller.
        nn.init.normal_(self.embedding.weight, std=(0.3 if tied else 1.0) * width**-0.5)
        if self.head is not None:
            nn.init.normal_(self.head.weight, std=0.02)
        if self.place is not None:
            nn.init.normal_(self.place.weight, std=(0.3 if tied else 1.0) * width**-0.5)
        self.blocks = nn.ModuleList(
            Block(mixer_of(mixer, width), FeedForward(width, ffn) if ffn else None, dropout=dropout) for _ in range(depth)
        )
        self.norm = RMS(width)
        if not (self.causal or ahead):
            raise BadInput(
                f"mixer '{mixer}' looks at later tokens, so it would see the token it has to predict",
                where="LanguageModel",
                fix="hide tokens and predict these instead, with ahead=True",
            )

    @property
    def causal(self) -> bool:
        """No logit depends on a later token."""
        return all(block.mixer.causal for block in self.blocks)  # type: ignore[union-attr]

    def forward(self, tokens: Tensor, *, spans: Spans | None = None) -> Tensor:
        """tokens (B, T) -> logits (B, T, vocabulary)."""
        return self._run(tokens, None, spans)[0]

    def advance(self, tokens: Tensor, state: State | None = None, *, spans: Spans | None = None) -> tuple[Tensor, State]:
        """The same, going on from the state that a call before this one returned."""
        if not self.causal:
            raise BadInput("a model that looks at later tokens cannot go on from earlier ones", where="LanguageModel", fix="use forward")
        return self._run(tokens, state, spans)

    def _run(self, tokens: Tensor, state: State | None, spans: Spans | None) -> tuple[Tensor, State]:
        after: State = {}
        x, before = self._embedded(tokens), self._parts(state)
        if self.place is not None:
            old = before.get("place")
            x, new = self._placed(x, old, None) if spans is None else spans.each(self._placed, x, old)
            after |= _named("place", new)
        for i, block in enumerate(self.blocks):
            x, new = block(x, before.get(f"{i}"), spans=spans)
            after |= _named(f"{i}", new)
        x = self.norm(x)
        return F.linear(x, self.embedding.weight) if self.head is None else self.head(x), after

    def _embedded(self, tokens: Tensor) -> Tensor:
        """tokens (B, T) -> (B, T, D)."""
        if tokens.dim() != 2 or not tokens.shape[1] or tokens.dtype not in (torch.long, torch.int):
            raise BadInput(
                f"tokens are whole numbers (batch, time), not {tuple(tokens.shape)} {str(tokens.dtype).removeprefix('torch.')}",
                where="LanguageModel",
                fix="give one row of token numbers, int64 or int32, for each sequence",
            )
        try:
            return self.embedding(tokens) * self.width**0.5
        except IndexError:
            low, high = (int(end) for end in tokens.aminmax())
            raise BadInput(
                f"there is a token {low if low < 0 else high}", where="LanguageModel", fix=f"give numbers from 0 to {self.vocabulary - 1}"
            ) from None

    def _parts(self, state: State | None) -> dict[str, State]:
        """The state of each part by its name, which are those of this model or an error."""
        if state is None:
            return {}
        parts: dict[str, State] = {}
        for key, value in state.items():
            part, _, name = key.partition(".")
            parts.setdefault(part, {})[name] = value
        own = {*map(str, range(len(self.blocks)))} | ({"place"} if self.place is not None else set())
        if parts.keys() != own:
            wrong = {"lacks": own - parts.keys(), "has unknown": parts.keys() - own}
            told = " and ".join(f"{verb} {', '.join(repr(name) for name in sorted(names))}" for verb, names in wrong.items() if names)
            raise BadInput(f"of this model's parts the state {told}", where="LanguageModel", fix="begin with state=None")
        return parts

    def _placed(self, x: Tensor, state: State | None, lengths: Tensor | None) -> tuple[Tensor, State]:
        """Add to each token the vector of its place; the state is how many came before."""
        assert self.place is not None
        B, T, D = x.shape
        before = torch.zeros(B, dtype=torch.long, device=x.device) if state is None else state["seen"]
        after = before + (T if lengths is None else lengths)
        most = self.place.num_embeddings
        longest = T if state is None else int(after.max())
        if longest > most:
            raise BadInput(
                f"the sequence has {longest} tokens, the model learned {most} places",
                where="LanguageModel",
                fix="give shorter sequences, or train with more places",
            )
        where = (before.unsqueeze(1) + torch.arange(T, device=x.device)).clamp_max(most - 1)  # padding may lie beyond
        return x + self.place(where) * D**0.5, {"seen": after}


def mixer_of(text: str, width: int) -> Mixer:
    """A mixer from its name and any dials after it: 'gla', 'gla heads=8 rank=4'."""
    name, *words = text.split() or [""]
    given: dict[str, Any] = {}
    for word in words:
        dial, equals, value = word.partition("=")
        if not (dial and equals and value):
            raise BadInput(f"'{word}' after mixer '{name}' is no dial", where=f"mixer '{text}'", fix=f"write '{name} heads=4'")
        try:
            given[dial] = json.loads(value)
        except ValueError:
            given[dial] = value
    return mixer(name, width, **given)


def _named(name: str, state: State) -> State:
    return {f"{name}.{key}": value for key, value in state.items()}
