"""BERT: a bidirectional encoder, pretrained on masked tokens and on next-sentence prediction.

Devlin et al., BERT, 2019.  It cannot generate: every output depends on later tokens.

B batch, T time, D width.
"""

from __future__ import annotations

from typing import Annotated, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.batch import Batch
from ..core.options import Count, Range, checked
from ..nn.block import ACTIVATIONS, Style, style_of
from ..nn.positions import Positions
from ..nn.recurrence import State
from ..nn.spans import Spans
from ..nn.stack import Stack
from .language_model import Probability, begin_small, embed, mixer_of


@final
class Bert(nn.Module):
    """The sum of token, position and segment embeddings, a norm, post-norm blocks; two heads for its two tasks.

    Args:
        vocabulary: vocabulary size
        width: model dimension
        depth: blocks
        mixer: sequence mixer, by name; one that looks both ways
        ffn: hidden width of each block's network as a multiple of the width
        max_positions: the longest sequence
        kinds: number of token types (segments), such as a first and a second sentence
        dropout: dropout probability
        style: norms and activation: bert, or a Style with norms after the sums and no gate
    """

    reads = ("x", "kinds", "lengths")
    causal = False

    @checked
    def __init__(  # noqa: PLR0913  an option for each way in which models of one size differ
        self,
        vocabulary: Count = 30522,
        width: Count = 768,
        depth: Count = 12,
        mixer: str = "attention heads=12",
        ffn: Annotated[float, Range(above=0)] = 4.0,
        max_positions: Count = 512,
        kinds: Count = 2,
        dropout: Probability = 0.0,
        style: str | Style = "bert",
    ) -> None:
        super().__init__()
        self.vocabulary, self.width, self.style = vocabulary, width, (style := style_of(style))
        self.embedding, self.segments = nn.Embedding(vocabulary, width), nn.Embedding(kinds, width)
        self.positions, self.norm, self.dropout = Positions("learned", width, max_positions), style.make_norm(width), nn.Dropout(dropout)
        mixers = [mixer_of(mixer, width, causal=False, positions="none", bias=True) for _ in range(depth)]
        self.stack = Stack.of(mixers, ffn, style, dropout)
        self.pooler = nn.Linear(width, width)
        self.token_map, self.token_norm = nn.Linear(width, width), style.make_norm(width)
        self.token_bias = nn.Parameter(torch.zeros(vocabulary))
        self.pair_head = nn.Linear(width, 2)
        begin_small(self.stack)
        for part in (self.embedding, self.segments, self.pooler, self.token_map, self.pair_head):
            nn.init.normal_(part.weight, std=0.02)

    def forward(self, tokens: Tensor, kinds: Tensor | None = None, lengths: Tensor | None = None) -> dict[str, Tensor]:
        """tokens (B, T) -> 'tokens' (B, T, vocabulary) logits of the token at each position, 'pair' (B, 2) logits of not next, next."""
        x, _ = self.features(tokens, spans=None if lengths is None else Spans.of_lengths(lengths), kinds=kinds)
        return {"tokens": self.logits(x), "pair": self.pair_head(self.pool_features(x))}

    def features(
        self, tokens: Tensor, state: None = None, *, spans: Spans | None = None, kinds: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """tokens (B, T) -> (B, T, D); there is no state."""
        return self.through(self.embed(tokens), spans=spans, kinds=kinds)

    def embed(self, tokens: Tensor) -> Tensor:
        """tokens (B, T) -> their vectors (B, T, D), which `through` reads."""
        return embed(self.embedding, tokens)

    def through(self, x: Tensor, state: None = None, *, spans: Spans | None = None, kinds: Tensor | None = None) -> tuple[Tensor, State]:
        """The same from vectors (B, T, D) instead of tokens."""
        x = x + (self.segments.weight[0] if kinds is None else embed(self.segments, kinds))
        x = (self.positions(x) if spans is None else spans.apply(self.positions, x))[0]
        return self.stack(self.dropout(self.norm(x)), spans=spans)

    def logits(self, x: Tensor) -> Tensor:
        """Features (B, T, D) -> (B, T, vocabulary): inner products with the embeddings."""
        x = self.token_norm(ACTIVATIONS[self.style.activation](self.token_map(x)))
        return F.linear(x, self.embedding.weight, self.token_bias)

    def pool_features(self, x: Tensor) -> Tensor:
        """Features (B, T, D) -> (B, D) the pooled output of the first token."""
        return torch.tanh(self.pooler(x[:, 0]))


def tiny() -> tuple[Bert, Batch]:
    """A small working instance with input."""
    rng = torch.Generator().manual_seed(0)
    return Bert(11, 8, 1, "attention heads=2", 2.0, max_positions=9), Batch(x=torch.randint(11, (5, 7), generator=rng))
