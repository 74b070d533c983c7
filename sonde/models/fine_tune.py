"""Heads for fine-tuning: a small new network over the features of a trained one, for sequences, tokens or pairs of sequences.

The body is any model with `features(tokens, state, spans=...)` and `width`: LanguageModel, Bert, ElmoFeatures, Prompted.
Which parameters are trained is set with nn.adapters (`freeze`, `add_lora`, ...).

B batch, T time, D width, C classes.
"""

from __future__ import annotations

import inspect
from typing import Any, final

import torch
from torch import Tensor, nn

from ..core.errors import BadInput
from ..core.options import Count, checked
from ..nn.spans import Spans
from ._trunk import Take, pool


@final
class SequenceHead(nn.Module):
    """Sequence classification: logits (B, C); `kinds` are the token types of two texts in one sequence.

    Args:
        body: a model with features
        classes: number of classes
        take: pooling: features of the last token, of the first, or their mean; in a causal model only the last token
            has seen the whole sequence
        hidden: width of a hidden layer; None is a linear head
        language: give the body's own logits as well, as {'label': (B, C), 'tokens': (B, T, vocabulary)}, for a joint loss
    """

    reads = ("x", "lengths", "kinds")

    @checked
    def __init__(self, body: Any, classes: Count = 2, take: Take = "last", hidden: Count | None = None, language: bool = False) -> None:
        super().__init__()
        self.body, self.take, self.language = body, take, language
        self.head = _head(body.width, classes, hidden)
        if take == "first" and getattr(body, "causal", False):
            raise BadInput(
                "take='first' does not work with a causal model: its first token sees no other token",
                where="SequenceHead",
                fix="set take='last' or 'mean'",
            )
        if language and not hasattr(body, "logits"):
            raise BadInput(f"{type(body).__name__} has no logits of its own", where="SequenceHead", fix="leave language at False")

    def forward(self, tokens: Tensor, lengths: Tensor | None = None, kinds: Tensor | None = None) -> Tensor | dict[str, Tensor]:
        """tokens (B, T), the first `lengths` of each row -> logits (B, C)."""
        x = _features(self.body, tokens, lengths, kinds)
        label = self.head(pool(x, lengths, self.take))
        return {"label": label, "tokens": self.body.logits(x)} if self.language else label


@final
class TokenHead(nn.Module):
    """Token classification, such as part-of-speech tagging: logits (B, T, C).

    Args:
        body: a model with features
        classes: number of classes
        hidden: width of a hidden layer; None is a linear head
    """

    reads = ("x", "lengths", "kinds")

    @checked
    def __init__(self, body: Any, classes: Count = 2, hidden: Count | None = None) -> None:
        super().__init__()
        self.body, self.head = body, _head(body.width, classes, hidden)

    def forward(self, tokens: Tensor, lengths: Tensor | None = None, kinds: Tensor | None = None) -> Tensor:
        """tokens (B, T), the first `lengths` of each row -> logits (B, T, C)."""
        return self.head(_features(self.body, tokens, lengths, kinds))


@final
class PairHead(nn.Module):
    """Classification of two sequences encoded separately: logits (B, C) of [u, v, |u - v|, u v] (Conneau and others 2017).

    Args:
        body: a model with features, which reads both
        classes: number of classes
        take: pooling: features of the last token, of the first, or their mean
        hidden: width of a hidden layer; None is a linear head
    """

    reads = ("x", "lengths", "other", "other_lengths")

    @checked
    def __init__(self, body: Any, classes: Count = 2, take: Take = "mean", hidden: Count | None = None) -> None:
        super().__init__()
        self.body, self.take, self.head = body, take, _head(4 * body.width, classes, hidden)

    def forward(self, tokens: Tensor, lengths: Tensor | None, other: Tensor, other_lengths: Tensor | None = None) -> Tensor:
        """tokens (B, T) and other (B, S) -> logits (B, C)."""
        if other is None:
            raise BadInput("there is no second sequence", where="PairHead", fix="give batches with a field 'other'")
        u, v = (pool(_features(self.body, x, n), n, self.take) for x, n in ((tokens, lengths), (other, other_lengths)))
        return self.head(torch.cat([u, v, (u - v).abs(), u * v], -1))


def _features(body: Any, tokens: Tensor, lengths: Tensor | None, kinds: Tensor | None = None) -> Tensor:
    more = {}
    if kinds is not None:
        known = inspect.signature(body.features).parameters.values()
        if not any(one.name == "kinds" or one.kind is one.VAR_KEYWORD for one in known):
            raise BadInput(f"{type(body).__name__} has no token-type embeddings", where="fine-tuning", fix="leave 'kinds' out of the batch")
        more["kinds"] = kinds
    return body.features(tokens, spans=None if lengths is None else Spans.of_lengths(lengths), **more)[0]


def _head(width: int, classes: int, hidden: int | None) -> nn.Module:
    if hidden is None:
        return nn.Linear(width, classes)
    return nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, classes))
