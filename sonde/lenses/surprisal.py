"""Surprisal: log2 1/p of each token given the context, in bits, as colors over the text."""

from __future__ import annotations

import math
from typing import Annotated, Any

import torch

from ..core.options import Range
from ..core.reading import Reading, Subject, Text
from .tools.readonly import guard, preserve_state, target_mask
from .tools.tiny import letters
from .tools.tokens import BLANK, is_next_token, logits, no_logits, original, select_row, spell_tokens, token_names

REPORT = {"position": 50}


def why_not(subject: Subject) -> str:
    """Why the lens does not apply to a subject, or ''; `guard` turns it into an error."""
    return no_logits(subject)


@guard
def read(subject: Subject, n: Annotated[int, Range(1, 64)] = 3, tokens: Annotated[int, Range(1, 4096)] = 64) -> list[Reading]:
    """Bits of each token of the first examples; tokens that are not predicted have no color.

    Args:
        n: examples to show
        tokens: how many of the first tokens to show of each
    """
    names = spell_tokens(subject)
    texts = [_text(select_row(subject.batch, row), subject.model) for row in range(min(n, len(subject.batch)))]
    top = max((bits for _, cost in texts for bits in cost[: tokens + 1] if not math.isnan(bits)), default=0.0)
    return [
        Text(
            f"Surprisal of example {row}",
            {"token": [word.replace(BLANK, " ") for word in token_names(words, names)][: tokens + 1], "bits": cost[: tokens + 1]},
            axes=["token", "bits"],
            note=_note(cost, tokens),
            top=top,
        )
        for row, (words, cost) in enumerate(texts)
    ]


def _note(cost: list[float], shown: int) -> str:
    known = [bits for bits in cost if not math.isnan(bits)]
    if not known:
        return "No token is predicted."
    mean = sum(known) / len(known)
    cut = f"; the first {shown} are shown" if len(cost) > shown + 1 else ""
    rest = " Tokens without color are not predicted." if len(known) < len(cost) - 1 else ""
    return f"{mean:.3g} bits per token over {len(known)} tokens, perplexity {2**mean:.4g}{cut}.{rest}"


def bits(model: Any, batch: Any) -> Any:
    """(B, T) log2 1/p of each target; NaN where there is none."""
    with preserve_state(model), torch.no_grad():
        log_p = logits(model, batch).double().log_softmax(-1)
    y = batch.y.long()
    mask = target_mask(batch, y)
    cost = -log_p.gather(-1, torch.where(mask, y, 0).unsqueeze(-1)).squeeze(-1) / math.log(2)
    return torch.where(mask, cost, math.nan)


def _text(batch: Any, model: Any) -> tuple[Any, list[float]]:
    """The tokens of one example and their bits; where targets are next tokens, the first token has none."""
    cost = bits(model, batch)[0].tolist()
    if is_next_token(batch):
        return torch.cat([batch.x[0, :1], batch.y[0]]), [math.nan, *cost]
    return original(batch)[0], cost


def tiny() -> Subject:
    """A small subject for the contract tests."""
    return letters()
