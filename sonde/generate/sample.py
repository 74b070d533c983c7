"""Generation: read prompts, then sample one token after the other.

A model is anything with `advance(tokens (B, T), state, spans=...) -> (logits (B, T, V), state)`.  A prompt is read in
pieces, so a mixer with a state of fixed size needs no more memory for a longer one.  An encoder-decoder continues from its
source: `generate(model, starts, new, state=model.begin(source, lengths))`, where `starts` (B, 1) are start tokens.

B batch, T time, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, Protocol, final

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..core.errors import BadInput
from ..core.options import Range, checked
from ..models.language_model import LanguageModel
from ..nn.positions import Positions
from ..nn.recurrence import State
from ..nn.spans import Spans
from . import fused
from .choice import Dice, choose
from .sampling import Sampling
from .stop import Stop

PIECE = 512
"""tokens of a prompt read at once"""

Rows = Tensor | Sequence[Tensor]
"""rows of tokens: a tensor (B, T), or tensors (T,) of any lengths"""
Weights = Literal["int8"] | None
"""precision of the weights while generating; None is unchanged"""


class Advances(Protocol):
    """The interface that generation needs of a model."""

    training: bool

    def advance(self, tokens: Tensor, state: State | None = None, *, spans: Spans | None = None) -> tuple[Tensor, State]: ...

    def train(self, mode: bool = True) -> Any: ...


@final
@dataclass(frozen=True)
class GenerationStep:
    """One token of each row."""

    tokens: Tensor
    """(B,); pad in rows that had ended"""
    logits: Tensor
    """(B, V) logits of the model"""
    open: Tensor
    """(B,) rows that had not ended before this token"""

    @property
    def logprobs(self) -> Tensor:
        """(B,) log-probability of each token under the model itself, before any filter; 0 in rows that had ended."""
        chosen = self.logits.float().log_softmax(-1).gather(1, self.tokens.unsqueeze(1)).squeeze(1)
        return torch.where(self.open, chosen, 0)


@checked
def generate(
    model: Advances,
    prompts: Rows,
    new: Annotated[int, Range(0)],
    *,
    state: State | None = None,
    stop: Stop | None = None,
    stream: Callable[[Tensor], Any] | None = None,
    weights: Weights = None,
    **sampling: Any,
) -> Tensor:
    """Tokens (B, N) that follow the prompts, at most `new` of each; fewer where all rows have ended.

    Args:
        state: what the model has read before the prompts
        stop: what ends a row, which then emits pad; and which tokens are excluded
        stream: called with the tokens (B,) of each step
        weights: 'int8' reads a quarter of the memory for each token, with slightly different values
        sampling: the options of `Sampling`: temperature, top_k, top_p, min_p, repetition, seed
    """
    tokens = []
    for step in steps(model, prompts, new, state=state, stop=stop, weights=weights, **sampling):
        tokens.append(step.tokens)
        if stream is not None:
            stream(step.tokens)
    return torch.stack(tokens, 1) if tokens else torch.empty(len(prompts), 0, dtype=torch.long)


@torch.no_grad()
@checked
def steps(
    model: Advances,
    prompts: Rows,
    new: Annotated[int, Range(0)],
    *,
    state: State | None = None,
    stop: Stop | None = None,
    weights: Weights = None,
    **sampling: Any,
) -> Iterator[GenerationStep]:
    """The same, one step after the other, with the logits of each."""
    how, stop = Sampling.of(sampling), stop or Stop()
    check(model, prompts, new, state)
    rng = Dice(how.seed, prompts) if how.temperature else None  # type: ignore[arg-type]
    with at_rest(model):
        current, fast = read(model, prompts, state), prepare(model, len(prompts), weights)
        seen = _prompt_tokens(prompts, current.logits) if how.repetition != 1 else None
        open = torch.ones(len(current.logits), dtype=torch.bool, device=current.logits.device)
        so_far = open.new_empty(len(open), 0, dtype=torch.long)
        watched = bool(stop.ends or stop.strings)
        for i in range(new):
            tokens = choose(stop.mask_scores(current.logits), how, rng and rng.roll(), seen)
            if watched:
                tokens = torch.where(open, tokens, stop.pad)
            yield GenerationStep(tokens, current.logits, open)
            if seen is not None:
                seen.scatter_(1, tokens.unsqueeze(1), True)
            if watched:
                so_far = torch.cat([so_far, tokens.unsqueeze(1)], 1)[:, -stop.reach :]
                open = open & ~stop.is_finished(so_far)
                if not bool(open.any()):
                    return
            if i + 1 < new:
                current = last(fast, tokens.unsqueeze(1), current.state)


class DecodingState(NamedTuple):
    """Logits of the next token (B, V), and the state of the model."""

    logits: Tensor
    state: State


def read(model: Advances, prompts: Rows, state: State | None = None) -> DecodingState:
    """Logits and state after each prompt."""
    rows, lengths = pad_prompts(prompts)
    # Logits are needed at the ends only: with a large vocabulary those of every token are most of the work, and of the memory.
    advance, head = (model.features, model.logits) if isinstance(model, LanguageModel) else (model.advance, None)
    ends = torch.empty(0)
    for start, count, every, after in pieces(advance, rows, lengths, state):
        if count is None:
            ends = every[:, -1]
        else:  # a row that ended in an earlier piece keeps what it has
            here = every[torch.arange(len(rows), device=rows.device), (count - 1).clamp_min(0)]
            ends = here if start == 0 else torch.where((count > 0).unsqueeze(1), here, ends)
        state = after
    assert state is not None
    return DecodingState(ends if head is None else head(ends), state)


def pieces(
    advance: Callable[..., tuple[Tensor, State]], rows: Tensor, lengths: Tensor, state: State | None
) -> Iterator[tuple[int, Tensor | None, Tensor, State]]:
    """Rows (B, T) in pieces: where each starts, tokens of each row in it (None where all count), what comes out, and the state."""
    whole = bool((lengths == rows.shape[1]).all())
    for start in range(0, rows.shape[1], PIECE):
        piece = rows[:, start : start + PIECE]
        count = None if whole else (lengths - start).clamp(0, piece.shape[1])
        every, state = advance(piece, state, spans=None if count is None else Spans.of_lengths(count))
        yield start, count, every, state


def last(model: Advances | fused.Fused, tokens: Tensor, state: State | None) -> DecodingState:
    """Logits and state after tokens (B, T)."""
    logits, state = model.advance(tokens, state)
    return DecodingState(logits[:, -1], state)


def pad_prompts(rows: Rows, what: str = "a prompt") -> tuple[Tensor, Tensor]:
    """Rows (B, T) with padding on the right, and their lengths (B,)."""
    if rows.dim() != 2 if isinstance(rows, Tensor) else any(not isinstance(row, Tensor) or row.dim() != 1 for row in rows):
        raise BadInput(f"{what} must be a row of tokens", where="generate", fix="give a tensor (batch, time), or a list of tensors (time,)")
    lengths = torch.tensor([len(row) for row in rows])
    if not len(lengths) or int(lengths.min()) < 1:
        raise BadInput(f"{what} is empty", where="generate", fix="give at least one token")
    together = rows if isinstance(rows, Tensor) else pad_sequence(list(rows), batch_first=True)
    return together, lengths.to(together.device)


def check(model: Any, prompts: Rows, new: int, state: State | None = None) -> None:
    """Check the request before anything is generated."""
    kind = type(model).__name__
    if not callable(getattr(model, "advance", None)) or not getattr(model, "causal", True):
        raise BadInput(
            f"{kind} looks at later tokens, so it can read a text but cannot continue one",
            where="generate",
            fix="use its outputs, or train a causal model such as char_lm",
        )
    if state is None and hasattr(model, "begin"):
        raise BadInput(f"{kind} is an encoder-decoder and needs a source", where="generate", fix="give state=model.begin(source, lengths)")
    longest, most = int(pad_prompts(prompts)[1].max()) + _before(state), max_length(model)
    if most is not None and longest + new - 1 > most:  # the last token is never read
        detail = f"a prompt of {longest} tokens" + (f" and {new} new ones do" if longest <= most else " does")
        raise BadInput(
            f"{detail} not fit into the model's context of {most} tokens",
            where="generate",
            fix="shorten the prompt, or train with a longer context",
        )


def max_length(model: Any) -> int | None:
    """The longest sequence that a model can read, in tokens; None is unlimited."""
    positions = getattr(model, "positions", None)
    return positions.max_positions if isinstance(positions, Positions) and positions.kind != "sinusoidal" else None


def _before(state: State | None) -> int:
    """How many positions the state has used."""
    return 0 if state is None or "positions.seen" not in state else int(state["positions.seen"].max())


@contextmanager
def at_rest(model: Advances) -> Iterator[None]:
    """Evaluation mode inside the `with`; afterwards the mode it had."""
    training = model.training
    model.train(False)
    try:
        yield
    finally:
        model.train(training)


def prepare(model: Advances, batch_size: int, weights: Weights) -> Advances | fused.Fused:
    """The fastest implementation that advances this model with a batch of this size."""
    fast = fused.prepare(model, batch_size, weights)
    if fast is None and weights is not None:
        raise BadInput(f"{weights} weights cannot be used: {fused.why_not(model, batch_size)}", where="generate", fix="leave weights out")
    return model if fast is None else fast


def _prompt_tokens(prompts: Rows, like: Tensor) -> Tensor:
    """(B, V) the tokens of each prompt."""
    seen = torch.zeros_like(like, dtype=torch.bool)
    for mine, row in zip(seen, prompts):
        mine[row.to(seen.device)] = True
    return seen
