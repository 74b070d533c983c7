"""Beam search: keep the K most likely partial texts, and extend these.

A text of n new tokens has the score  log p(text) / n^power; power 1 compares means per token, 0 whole probabilities.  The
search of a prompt ends when no partial text can still beat the K best finished ones: a log-probability only falls, so
a partial text scores at most its own, divided by the largest n^power still possible.

B batch, K beams, N tokens, V vocabulary.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from ..core.options import Range, checked
from ..nn.recurrence import State
from .choice import OUT, finite
from .sample import Advances, DecodingState, Rows, Weights, at_rest, check, last, prepare, read
from .stop import Stop


class Beams(NamedTuple):
    """The best texts of each prompt, best first."""

    tokens: Tensor
    """(B, K, N) with pad behind the end"""
    scores: Tensor
    """(B, K) log-probability / length^power; -inf where there are fewer than K texts"""
    lengths: Tensor
    """(B, K) tokens up to the end, the end token among them"""


@torch.no_grad()
@checked
def beam(
    model: Advances,
    prompts: Rows,
    new: Annotated[int, Range(1)],
    *,
    beams: Annotated[int, Range(1)] = 4,
    power: float = 1.0,
    stop: Stop | None = None,
    state: State | None = None,
    weights: Weights = None,
) -> Beams:
    """The most likely continuations of at most `new` tokens that the search finds.

    Args:
        beams: partial texts kept for each prompt; 1 is greedy
        power: length penalty: a log-probability is divided by length^power; larger prefers longer texts
        stop: as in `generate`
        state: as in `generate`
        weights: as in `generate`
    """
    check(model, prompts, new, state)
    stop = stop or Stop()
    with at_rest(model):
        current, fast = read(model, prompts, state), prepare(model, len(prompts) * beams, weights)
        B, V = current.logits.shape
        device = current.logits.device
        mine = torch.arange(B * beams, device=device)
        current = _select(current, mine // beams)
        tokens = torch.empty(B, beams, 0, dtype=torch.long, device=device)
        scores = torch.full((B, beams), OUT, dtype=torch.float64, device=device)
        scores[:, 0] = 0  # all beams of a prompt start equal: one of them is enough
        hypotheses = Beams(
            torch.full((B, beams, new), stop.pad, device=device),
            torch.full_like(scores, OUT),
            torch.zeros(B, beams, dtype=torch.long, device=device),
        )
        live = torch.ones(B, dtype=torch.bool, device=device)
        width = min(beams * max(2, 1 + len(stop.ends)), beams * V)  # enough that K continue, even if every beam ends now
        for n in range(1, new + 1):
            finite(current.logits.amax(-1))
            total = scores.unsqueeze(-1) + stop.mask_scores(current.logits.float().log_softmax(-1)).view(B, beams, V)
            best, where = total.flatten(1).topk(width)
            parent = where // V
            grown = torch.cat([_gather_rows(tokens, parent), (where % V).unsqueeze(-1)], -1)
            over = stop.is_finished(grown.flatten(0, 1)).view(B, width) | (n == new)
            ended = over & live.unsqueeze(1) & (torch.arange(width, device=device) < beams)
            hypotheses = _merge(hypotheses, grown, torch.where(ended, best / n**power, OUT))
            scores, going = best.masked_fill(over, OUT).topk(beams)
            live = live & (scores[:, 0] / (new if power > 0 else n) ** power > hypotheses.scores[:, -1])
            if beams == 1:
                live = live & ~ended[:, 0]  # greedy: the only text has ended
            if not bool(live.any()):
                break
            tokens = _gather_rows(grown, going)
            order = (parent.gather(1, going) + beams * torch.arange(B, device=device).unsqueeze(1)).flatten()
            if not torch.equal(order, mine):  # a copy of all that was read, so only where it is needed
                current = _select(current, order)
            current = last(fast, tokens[:, :, -1].reshape(-1, 1), current.state)
    longest = int(hypotheses.lengths.max())
    return hypotheses._replace(tokens=hypotheses.tokens[:, :, :longest])


def _merge(hypotheses: Beams, grown: Tensor, scores: Tensor) -> Beams:
    """The K best of the texts found so far and those that ended now; grown (B, W, n), scores (B, W)."""
    n, W = grown.shape[-1], grown.shape[1]
    rest = hypotheses.tokens[:, :1, n:].expand(-1, W, -1)  # nothing found is longer than n, so these are pad
    lengths = torch.cat([hypotheses.lengths, hypotheses.lengths.new_full((len(grown), W), n)], 1)
    best, kept = torch.cat([hypotheses.scores, scores], 1).topk(hypotheses.scores.shape[1])
    lengths = lengths.gather(1, kept).masked_fill(best == OUT, 0)
    tokens = _gather_rows(torch.cat([hypotheses.tokens, torch.cat([grown, rest], -1)], 1), kept)
    return Beams(torch.where((best == OUT).unsqueeze(-1), hypotheses.tokens, tokens), best, lengths)


def _gather_rows(tokens: Tensor, rows: Tensor) -> Tensor:
    """tokens (B, K, N), rows (B, W) -> (B, W, N)."""
    return tokens.gather(1, rows.unsqueeze(-1).expand(-1, -1, tokens.shape[-1]))


def _select(current: DecodingState, rows: Tensor) -> DecodingState:
    return DecodingState(current.logits[rows], {name: s.index_select(0, rows) for name, s in current.state.items()})
