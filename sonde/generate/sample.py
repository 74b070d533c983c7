"""Sampling: read a prompt, then draw one token after the other, each from what the model expects next.

A model is anything with `advance(tokens (B, T), state, spans=...) -> (logits (B, T, vocabulary), state)`.  The prompt is
read in pieces, so a mixer with a state of fixed size needs no more memory for a longer text.

B batch, T time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Generator, Tensor
from torch.nn.utils.rnn import pad_sequence

from ..core.errors import BadInput
from ..core.seeds import generator
from ..nn.recurrence import State
from ..nn.spans import Spans

PIECE = 512
"""tokens of a prompt read at once"""


class Advances(Protocol):
    """What generation asks of a model."""

    training: bool

    def advance(self, tokens: Tensor, state: State | None = None, *, spans: Spans | None = None) -> tuple[Tensor, State]: ...

    def train(self, mode: bool = True) -> Any: ...


@torch.no_grad()
def generate(
    model: Advances,
    prompts: Tensor | Sequence[Tensor],
    new: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    seed: int = 0,
    stream: Callable[[Tensor], Any] | None = None,
) -> Tensor:
    """New tokens (B, new) after prompts: a tensor (B, T), or rows of different lengths.

    temperature: below 1 prefers likely tokens, 0 always takes the likeliest
    top_k: draw among so many likeliest tokens; none is all of them
    stream: given the tokens (B,) of each step as they come
    """
    if new < 0:
        raise BadInput(f"{new} new tokens cannot be", where="generate", fix="ask for 0 or more")
    dice, training = generator(seed, "generate"), model.training
    model.train(False)
    try:
        logits, state = read(model, prompts)
        tokens = torch.empty(len(logits), new, dtype=torch.long, device=logits.device)
        for i in range(new):
            tokens[:, i] = choose(logits, dice, temperature, top_k)
            if stream is not None:
                stream(tokens[:, i])
            if i + 1 < new:
                logits, state = last(model, tokens[:, i : i + 1], state)
    finally:
        model.train(training)
    return tokens


def read(model: Advances, prompts: Tensor | Sequence[Tensor]) -> tuple[Tensor, State]:
    """Logits (B, vocabulary) after the last token of each prompt, and the state there."""
    if prompts.dim() != 2 if isinstance(prompts, Tensor) else any(not isinstance(row, Tensor) or row.dim() != 1 for row in prompts):
        raise BadInput("a prompt is one row of tokens", where="generate", fix="give a tensor (batch, time), or a list of tensors (time,)")
    lengths = torch.tensor([len(row) for row in prompts])
    if not len(lengths) or int(lengths.min()) < 1:
        raise BadInput("a prompt is empty", where="generate", fix="give at least one token to begin with")
    rows = prompts if isinstance(prompts, Tensor) else pad_sequence(list(prompts), batch_first=True)
    lengths = lengths.to(rows.device)
    ragged = bool((lengths != lengths[0]).any())
    logits, state = torch.empty(0), None
    for start in range(0, rows.shape[1], PIECE):
        piece = rows[:, start : start + PIECE]
        if not ragged:
            logits, state = last(model, piece, state)
            continue
        count = (lengths - start).clamp(0, piece.shape[1])
        every, state = model.advance(piece, state, spans=Spans.of_lengths(count))
        ends = every[torch.arange(len(rows), device=rows.device), (count - 1).clamp_min(0)]
        logits = ends if start == 0 else torch.where((count > 0).unsqueeze(1), ends, logits)  # a row that ended keeps its own
    assert state is not None
    return logits, state


def last(model: Advances, tokens: Tensor, state: State | None) -> tuple[Tensor, State]:
    """Logits (B, vocabulary) after tokens (B, T), and the state."""
    logits, state = model.advance(tokens, state)
    return logits[:, -1], state


def choose(logits: Tensor, dice: Generator, temperature: float = 1.0, top_k: int | None = None) -> Tensor:
    """A token (B,) for each row of logits (B, vocabulary)."""
    if not 0 <= temperature < math.inf or (top_k is not None and top_k < 1):
        raise BadInput(f"temperature {temperature:g} and top_k {top_k} cannot be", where="generate", fix="temperature >= 0 and top_k >= 1")
    if temperature == 0:
        return logits.argmax(-1)
    if top_k is not None and top_k < logits.shape[-1]:
        least = logits.topk(top_k).values[:, -1:]
        logits = logits.masked_fill(logits < least, float("-inf"))
    chances = (logits.float() / temperature).softmax(-1)
    return torch.multinomial(chances.cpu(), 1, generator=dice).squeeze(1).to(logits.device)
