"""Feed-forward language model (Bengio and others 2003): the n-1 last tokens -> one shared embedding -> tanh -> logits.

    a = tanh(W [e(t[i-n+2]) ... e(t[i])] + b)         logits = U a + c

Positions before the first token are zero vectors and have no parameters:  |V| d + ((n-1) d + 1) h + (h + 1) |V|  in all.

B batch, T time, K = n-1 tokens looked at, D width of the embedding.
"""

from __future__ import annotations

from typing import Annotated, final

import torch
from torch import Tensor, nn

from ..core.batch import Batch
from ..core.errors import BadInput
from ..core.options import Count, Range, checked
from ..nn.recurrence import State
from ..nn.spans import Spans
from ._recent import check_tokens, continue_from


@final
class FeedForwardLM(nn.Module):
    """A language model with a window.

    Args:
        vocabulary: vocabulary size
        order: n; the model looks at n-1 tokens
        width: embedding dimension, d
        hidden: hidden size, h
    """

    @checked
    def __init__(self, vocabulary: Count = 256, order: Annotated[int, Range(least=2)] = 4, width: Count = 64, hidden: Count = 128) -> None:
        super().__init__()
        self.vocabulary, self.order, self.width = vocabulary, order, width
        self.embedding = nn.Embedding(vocabulary, width)
        self.hidden = nn.Linear((order - 1) * width, hidden)
        self.head = nn.Linear(hidden, vocabulary)

    @property
    def causal(self) -> bool:
        """No logit depends on a later token."""
        return True

    def forward(self, tokens: Tensor, *, spans: Spans | None = None) -> Tensor:
        """tokens (B, T) -> logits (B, T, vocabulary)."""
        return self.advance(tokens, spans=spans)[0]

    def advance(self, tokens: Tensor, state: State | None = None, *, spans: Spans | None = None) -> tuple[Tensor, State]:
        """The same, continuing from the state of an earlier call: the last n-2 tokens."""
        features, state = self.features(tokens, state, spans=spans)
        return self.head(features), state

    def features(self, tokens: Tensor, state: State | None = None, *, spans: Spans | None = None) -> tuple[Tensor, State]:
        """What the head reads, (B, T, hidden)."""
        if tokens.dim() != 2 or not tokens.shape[1]:
            raise BadInput(f"tokens are (batch, time), not {tuple(tokens.shape)}", where="FeedForwardLM", fix="give rows of token numbers")
        return continue_from(self._hidden_states, self.order - 2, check_tokens(tokens, self.vocabulary, "FeedForwardLM"), state, spans)

    def _hidden_states(self, tokens: Tensor) -> Tensor:
        """tokens (B, K - 1 + T), the first of them those before -> (B, T, hidden)."""
        x = torch.where((tokens >= 0).unsqueeze(-1), self.embedding(tokens.clamp_min(0)), 0)
        windows = x.unfold(1, self.order - 1, 1).transpose(2, 3)  # (B, T, K, D), the oldest first
        return self.hidden(windows.flatten(2)).tanh()


def tiny() -> tuple[FeedForwardLM, Batch]:
    """A small working instance with input."""
    rng = torch.Generator().manual_seed(0)
    return FeedForwardLM(11, 3, 4, 6), Batch(x=torch.randint(11, (5, 7), generator=rng))
