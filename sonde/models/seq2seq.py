"""Encoder and decoder of recurrent mixers: c = f_enc(x_1 ... x_S), y_1 ... y_T = f_dec(c), where S and T may differ.

The decoder reads the summary c of the source at every step.  Without attention that fixed vector is all it has.  With
attention it also reads every encoder state s_j, weighted by its score with a decoder state h:

    score(h, s)     dot: h . s      general: h . (W s)      additive: v . tanh(W h + U s)
    a_j = softmax_j score(h, s_j),  context = sum_j a_j s_j

The context is read after the recurrence, from h_t (Luong et al., Effective Approaches to Attention-based NMT, 2015), so all
positions of a known target are computed at once; or, with `feeding`, before it, from h_{t-1}, and goes into the step (Bahdanau
et al., NMT by Jointly Learning to Align and Translate, 2014), which takes a loop over the positions.

B batch, S source positions, T target positions, D width.
"""

from __future__ import annotations

from typing import Annotated, Literal, final

import torch
from torch import Tensor, nn

from ..core.batch import Batch
from ..core.errors import BadInput
from ..core.options import Count, Range, checked
from ..nn.recurrence import State
from ..nn.spans import Spans
from ..nn.stack import prefix_state
from ._trunk import inside, pool, spans_of, trunk, writer
from .language_model import embed

Scoring = Literal["dot", "general", "additive"]


@final
class SourceAttention(nn.Module):
    """Attention over encoder states (B, S, D) with queries (B, T, D): their mean, weighted by a softmax of scores.

    The part of a score that depends on the source alone is computed once, by `keys`.
    """

    @checked
    def __init__(self, width: int, scoring: Scoring) -> None:
        super().__init__()
        self.scoring = scoring
        self.key = nn.Identity() if scoring == "dot" else nn.Linear(width, width, bias=False)
        self.query = nn.Linear(width, width) if scoring == "additive" else nn.Identity()
        self.score = nn.Linear(width, 1, bias=False) if scoring == "additive" else None

    def keys(self, memory: Tensor) -> Tensor:
        return self.key(memory)

    def forward(self, query: Tensor, keys: Tensor, memory: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Contexts (B, T, D) and weights (B, T, S), which are 0 beyond the length of the source."""
        query = self.query(query)
        if self.score is None:
            scores = query @ keys.mT
        else:
            scores = self.score(torch.tanh(query.unsqueeze(2) + keys.unsqueeze(1))).squeeze(-1)
        there = torch.arange(keys.shape[1], device=keys.device) < lengths.unsqueeze(1)
        weights = scores.masked_fill(~there.unsqueeze(1), float("-inf")).softmax(-1)
        return weights @ memory, weights


@final
class Seq2Seq(nn.Module):
    """Tokens of one language in, logits of another out.

    Args:
        vocabulary: target vocabulary size
        width: hidden size
        depth: number of layers, on each side
        mixer: causal mixer of both sequences, by name; its options may follow: 'gla heads=8'
        attention: scores of the decoder's attention to the encoder's states; 'none' leaves only the summary
        feeding: the context is an input of the recurrent step (Bahdanau) instead of being read after it (Luong)
        bidirectional: the encoder reads in both directions
        sources: source vocabulary size; none is one vocabulary, and one embedding, for both
        dropout: dropout probability of embeddings and before the output
    """

    reads = ("source", "x", "lengths")
    causal = True

    @checked
    def __init__(  # noqa: PLR0913  an option for each way in which such models differ
        self,
        vocabulary: Count = 256,
        width: Count = 128,
        depth: Count = 1,
        mixer: str = "gru",
        attention: Literal["none", "dot", "general", "additive"] = "general",
        feeding: bool = False,
        bidirectional: bool = True,
        sources: Count | None = None,
        dropout: Annotated[float, Range(least=0, below=1)] = 0.0,
    ) -> None:
        super().__init__()
        if feeding and attention == "none":
            raise BadInput("there is nothing to feed without attention", where="Seq2Seq", fix="set attention='additive' or feeding=False")
        self.vocabulary, self.bidirectional, self.dropout = vocabulary, bidirectional, nn.Dropout(dropout)
        self.embedding = nn.Embedding(vocabulary, width)
        self.source_embedding = None if sources is None else nn.Embedding(sources, width)
        self.encoder = trunk(mixer, width, depth, bidirectional, dropout)
        self.bridge = nn.Linear(self.encoder.out_width, width) if bidirectional else nn.Identity()
        self.condition = nn.Linear(width, width)
        self.decoder = writer(mixer, width, depth, "Seq2Seq", dropout)
        self.attention = None if attention == "none" else SourceAttention(width, attention)
        self.feed = nn.Linear(width, width, bias=False) if feeding else None
        self.join = None if self.attention is None else nn.Linear(2 * width, width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, source: Tensor, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """source (B, S), of each row the first `lengths`, and the target so far x (B, T) -> logits (B, T, vocabulary)."""
        return self._decode(x, self.begin(source, lengths))[0]

    def align(self, source: Tensor, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Attention weights (B, T, S): of each target position over the source positions."""
        weights = self._decode(x, self.begin(source, lengths))[1]
        if weights is None:
            raise BadInput("a model without attention has no alignment", where="Seq2Seq", fix="set attention='dot'")
        return weights

    def begin(self, source: Tensor, lengths: Tensor | None = None) -> State:
        """Encode the source; return the state before the first token."""
        if not source.numel() or lengths is not None and int(lengths.min()) < 1:
            raise BadInput("a source is empty", where="Seq2Seq", fix="give at least one token to read")
        x = self.dropout(embed(self.source_embedding or self.embedding, source))
        y, _ = self.encoder(x, spans=spans_of(lengths, source.shape[1]))
        summary = self.bridge(pool(y, lengths, "last", self.bidirectional))
        state = {"summary": self.condition(summary)}
        if self.attention is not None:
            memory, whole = self.bridge(y), torch.full((len(source),), source.shape[1], device=source.device)
            state |= {"memory": memory, "keys": self.attention.keys(memory), "lengths": whole if lengths is None else lengths}
        if self.feed is not None:
            state["query"] = summary
        return state

    def advance(self, tokens: Tensor, state: State | None = None, *, spans: Spans | None = None) -> tuple[Tensor, State]:
        """Continue from a state: tokens (B, T) -> logits (B, T, vocabulary) of the next ones, and the state after them."""
        logits, _, state = self._decode(tokens, state, spans)
        return logits, state

    def _decode(self, tokens: Tensor, state: State | None, spans: Spans | None = None) -> tuple[Tensor, Tensor | None, State]:
        if state is None:
            raise BadInput("a decoder needs a source", where="Seq2Seq", fix="begin with model.begin(source, lengths)")
        about = {name: value for name, value in state.items() if not name.startswith("decoder.")}
        x = self.dropout(embed(self.embedding, tokens)) + about["summary"].unsqueeze(1)
        own = inside(state, "decoder")
        if self.feed is not None:
            return self._feed_context(x, about, own, spans)
        h, own = self.decoder(x, own, spans=spans)
        if self.attention is None:
            return self._logits(h), None, about | prefix_state("decoder", own)
        context, weights = self.attention(h, about["keys"], about["memory"], about["lengths"])
        return self._logits(h, context), weights, about | prefix_state("decoder", own)

    def _feed_context(self, x: Tensor, about: State, own: State | None, spans: Spans | None) -> tuple[Tensor, Tensor, State]:
        """Position by position: attend to the source with the last state, then take a step with the context."""
        assert self.feed is not None and self.attention is not None
        if spans is not None:
            raise BadInput("prompts of different lengths cannot be fed position by position", where="Seq2Seq", fix="give them one by one")
        query, seen = about["query"].unsqueeze(1), []
        for token in x.split(1, 1):
            context, weights = self.attention(query, about["keys"], about["memory"], about["lengths"])
            query, own = self.decoder(token + self.feed(context), own)
            seen.append((query, context, weights))
        h, context, weights = (torch.cat(part, 1) for part in zip(*seen))
        return self._logits(h, context), weights, {**about, "query": query.squeeze(1), **prefix_state("decoder", own or {})}

    def _logits(self, h: Tensor, context: Tensor | None = None) -> Tensor:
        if context is not None and self.join is not None:
            h = torch.tanh(self.join(torch.cat([context, h], -1)))
        return self.head(self.dropout(h))


def tiny() -> tuple[Seq2Seq, Batch]:
    """A small working instance with input."""
    rng = torch.Generator().manual_seed(0)
    return Seq2Seq(11, 8), Batch(source=torch.randint(11, (5, 4), generator=rng), x=torch.randint(11, (5, 7), generator=rng))
