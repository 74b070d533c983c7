"""Models with a fixed window of tokens: their state is the last tokens, -1 where there is none yet.

B batch, T time, K tokens kept.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..core.errors import BadInput
from ..nn.recurrence import State
from ..nn.spans import Spans

NONE = -1
"""marks a missing token: before the first one, and between documents"""

Answer = Callable[[Tensor], Tensor]
"""tokens (B, K + T) -> outputs at each of the last T positions (B, T, ...)"""


def continue_from(answer: Answer, keep: int, tokens: Tensor, state: State | None, spans: Spans | None) -> tuple[Tensor, State]:
    """Outputs (B, T, ...) of a model that reads each token and the `keep` before it, and the state after them."""

    def piece(tokens: Tensor, state: State | None, lengths: Tensor | None) -> tuple[Tensor, State]:
        tokens = tokens.squeeze(-1)
        before = tokens.new_full((len(tokens), keep), NONE) if state is None else state["recent"]
        joined = torch.cat([before, tokens], 1)
        if lengths is None:
            return answer(joined), {"recent": joined[:, tokens.shape[1] :]}
        last = lengths.unsqueeze(1) + torch.arange(keep, device=tokens.device)
        return answer(joined), {"recent": joined.gather(1, last)}

    x = tokens.unsqueeze(-1)
    return piece(x, state, None) if spans is None else spans.apply(piece, x, state)


def check_tokens(tokens: Tensor, vocabulary: int, where: str, lowest: int = 0) -> Tensor:
    """The tokens as int64; an error where one is not in the vocabulary."""
    if tokens.dtype.is_floating_point or tokens.dtype.is_complex or tokens.dtype == torch.bool:
        kind = str(tokens.dtype).removeprefix("torch.")
        raise BadInput(f"tokens are whole numbers, not {kind}", where=where, fix="give token numbers, int64 or int32")
    if tokens.numel() and not tokens.is_meta:
        low, high = (int(end) for end in tokens.aminmax())
        if low < lowest or high >= vocabulary:
            raise BadInput(
                f"token out of range: {low if low < lowest else high}", where=where, fix=f"give numbers from 0 to {vocabulary - 1}"
            )
    return tokens.long()
