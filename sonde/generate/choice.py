"""From logits to the next token: filters, probabilities and one draw for each row.

Filters and their order are those of the `transformers` package: repetition (Keskar et al., CTRL, 2019), temperature,
top-k, top-p (Holtzman et al. 2020), min-p (Nguyen et al. 2024).

B batch, V vocabulary.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from ..core.errors import NumericalStop
from ..core.seeds import generator
from .sampling import Sampling

HEAD = 1024
"""most likely tokens among which top-p looks first; sorting a whole vocabulary can take longer than a small model"""
BLOCK = 64
"""random numbers drawn at once for each row"""
OUT = float("-inf")


@final
class Dice:
    """A stream of uniform random numbers for each row.

    They depend on the seed, the row's prompt and how many equal prompts come before it: a row draws the same numbers
    alone and in a batch, and equal prompts draw different ones.
    """

    def __init__(self, seed: int, prompts: Sequence[Tensor]) -> None:
        names = [" ".join(map(str, row.tolist())) for row in prompts]
        seen: Counter[str] = Counter()
        self._rows, self._left = [], torch.empty(0, len(names), dtype=torch.float64)
        for name in names:
            self._rows.append(generator(seed, "generate", name, seen[name]))
            seen[name] += 1

    def roll(self) -> Tensor:
        """(B,) numbers in [0, 1), float64."""
        if not len(self._left):
            self._left = torch.stack([torch.rand(BLOCK, generator=row, dtype=torch.float64) for row in self._rows], 1)
        now, self._left = self._left[0], self._left[1:]
        return now


def choose(logits: Tensor, how: Sampling, roll: Tensor | None = None, seen: Tensor | None = None) -> Tensor:
    """A token (B,) for each row of logits (B, V).

    Args:
        roll: a uniform number (B,) for each row; temperature 0 needs none
        seen: (B, V) tokens that are already in the text, for the repetition penalty
    """
    scores = shape_logits(logits, how, seen)
    if how.temperature == 0:
        best, tokens = scores.max(-1)
        finite(best)
        return tokens
    assert roll is not None
    below = scores.softmax(-1, dtype=torch.float64).cumsum(-1)
    finite(below[:, -1])
    # dividing by the sum makes the last exactly 1, which is above every roll; a token of probability 0 is never the first above one
    return torch.searchsorted(below / below[:, -1:], roll.to(below.device).unsqueeze(1), right=True).squeeze(1)


def shape_logits(logits: Tensor, how: Sampling, seen: Tensor | None = None) -> Tensor:
    """The filtered logits (B, V), float32; tokens left out have -inf."""
    x = logits.float()
    if seen is not None and how.repetition != 1:
        x = torch.where(seen, torch.where(x < 0, x * how.repetition, x / how.repetition), x)
    if how.temperature == 0:
        return x  # the most likely passes every filter
    x = x / how.temperature
    if how.top_k is not None and how.top_k < x.shape[-1]:
        x = x.masked_fill(x < x.topk(how.top_k).values[:, -1:], OUT)
    if how.top_p < 1:
        chances = x.softmax(-1)
        x = x.masked_fill(chances < _threshold(chances, how.top_p), OUT)
    if how.min_p > 0:
        x = x.masked_fill(x < x.amax(-1, keepdim=True) + math.log(how.min_p), OUT)
    return x


def _threshold(chances: Tensor, share: float) -> Tensor:
    """(B, 1) the smallest of the largest probabilities that together reach `share`."""
    for n in (HEAD, chances.shape[-1]):
        if n <= chances.shape[-1]:
            top = chances.topk(n).values
            inside = top.cumsum(-1) - top < share  # the probabilities before it do not reach it yet
            if n == chances.shape[-1] or not bool(inside[:, -1].any()):
                break
    return top.gather(1, inside.sum(-1, keepdim=True) - 1)


def finite(sums: Tensor) -> None:
    """Refuse rows (B,) with NaN."""
    if not bool(sums.isfinite().all()):
        raise NumericalStop(
            "the model's logits are not numbers, so no token can be chosen",
            where=f"row {int((~sums.isfinite()).int().argmax())} of the batch",
            fix="look for NaN in its weights, or load an earlier checkpoint",
        )
