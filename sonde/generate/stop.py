"""When a text ends: at an end token or a stop string; and which tokens are never generated.

B batch, N tokens so far, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from ..core.errors import BadInput
from ..data.text.tokenizer import Tokenizer


@final
@dataclass(frozen=True, kw_only=True)
class Stop:
    """What ends a row, and which tokens it never contains.

    Args:
        end: one or more end tokens
        texts: one or more stop strings; the tokens that spell them are still emitted
        tokenizer: decodes tokens; needed with `texts`
        pad: the token that a row emits after its end
        barred: tokens that are never generated, such as `no_text(tokenizer)`
    """

    end: int | tuple[int, ...] = ()
    texts: str | tuple[str, ...] = ()
    tokenizer: Tokenizer | None = None
    pad: int = 0
    barred: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if "" in self.strings:
            raise BadInput("a stop string is empty", where="Stop", fix="give at least one character")
        if self.strings and self.tokenizer is None:
            raise BadInput("stop strings need a tokenizer", where="Stop", fix="give tokenizer=...")

    @property
    def ends(self) -> tuple[int, ...]:
        return (self.end,) if isinstance(self.end, int) else tuple(self.end)

    @property
    def strings(self) -> tuple[str, ...]:
        return (self.texts,) if isinstance(self.texts, str) else tuple(self.texts)

    @property
    def reach(self) -> int:
        """How many of the last tokens can contain a stop string: each decodes to at least one byte, except a few special ones."""
        return max((len(text.encode()) + 8 for text in self.strings), default=1)

    def mask_scores(self, scores: Tensor) -> Tensor:
        """Scores (..., V) of tokens, -inf for barred ones."""
        return scores.index_fill(-1, torch.tensor(self.barred, device=scores.device), float("-inf")) if self.barred else scores

    def is_finished(self, tokens: Tensor) -> Tensor:
        """(B,) rows of new tokens (B, N) whose last one ends them."""
        over = torch.isin(tokens[:, -1], torch.tensor(self.ends, dtype=tokens.dtype, device=tokens.device))
        if self.strings:
            assert self.tokenizer is not None
            texts = [self.tokenizer.decode(row) for row in tokens[:, -self.reach :]]
            over |= torch.tensor([any(text in tail for text in self.strings) for tail in texts], device=tokens.device)
        return over


def no_text(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Tokens that are not text: the unknown token and padding.  A model may predict them; no text contains them."""
    return tuple(number for name, number in tokenizer.specials.items() if name in ("unknown", "pad"))
