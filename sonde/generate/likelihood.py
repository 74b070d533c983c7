"""Log-likelihood of given answers, log p(answer | prompt), without generating anything.

B batch, C answers, N tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..core.errors import BadInput
from ..nn.recurrence import State
from .sample import Advances, DecodingState, Rows, at_rest, check, pad_prompts, pieces, read


@torch.no_grad()
def logprobs(model: Advances, prompts: Rows, answers: Rows, *, state: State | None = None) -> Tensor:
    """(B, N) log-probability of each token of the answers, one answer per prompt; 0 after its end.

    Args:
        state: what the model has read before the prompts
    """
    if len(prompts) != len(answers):
        raise BadInput(f"{len(prompts)} prompts have {len(answers)} answers", where="logprobs", fix="give one for each")
    check(model, prompts, int(pad_prompts(answers, "an answer")[1].max()), state)
    with at_rest(model):
        return _follow(model, read(model, prompts, state), answers)


def score(model: Advances, prompts: Rows, answers: Rows, *, state: State | None = None) -> Tensor:
    """(B,) log-probability of each answer as a whole."""
    return logprobs(model, prompts, answers, state=state).sum(1)


@torch.no_grad()
def rank_answers(model: Advances, prompts: Rows, answers: Sequence[Tensor], *, mean: bool = False) -> Tensor:
    """(B, C) log-probability of each of the same C answers after each prompt, which is read once.

    The most likely answer is a class: `rank_answers(...).argmax(1)`.

    Args:
        mean: per token, so that a longer answer is not less likely by its length alone
    """
    lengths = pad_prompts(answers, "an answer")[1]
    check(model, prompts, int(lengths.max()))
    with at_rest(model):
        B, C, current = len(prompts), len(answers), read(model, prompts)
        each = DecodingState(current.logits.repeat_interleave(C, 0), {name: s.repeat_interleave(C, 0) for name, s in current.state.items()})
        log_probs = _follow(model, each, list(answers) * B).sum(1).view(B, C)
    return log_probs / lengths if mean else log_probs


def _follow(model: Advances, current: DecodingState, answers: Rows) -> Tensor:
    """(B, N) log-probability of each token that follows `position`."""
    rows, lengths = pad_prompts(answers, "an answer")
    expected = [current.logits.unsqueeze(1)]
    if rows.shape[1] > 1:  # the last token is only predicted, never read
        expected += [logits for _, _, logits, _ in pieces(model.advance, rows[:, :-1], lengths - 1, current.state)]
    log_probs, start = [], 0
    for logits in expected:
        tokens = rows[:, start : start + logits.shape[1]]
        log_probs.append(logits.float().log_softmax(-1).gather(2, tokens.long().unsqueeze(-1)).squeeze(-1))
        start += logits.shape[1]
    inside = torch.arange(rows.shape[1], device=rows.device) < lengths.unsqueeze(1)
    return torch.where(inside, torch.cat(log_probs, 1), 0)
