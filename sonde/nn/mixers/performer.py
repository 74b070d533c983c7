"""Performer: softmax attention whose weights exp(q . k) are estimated by positive random features, at linear cost.

    phi(x) = exp(W x - |x|^2 / 2) / sqrt(M)        E[phi(q) . phi(k)] = exp(q . k)        o_t = S_t^T phi(q_t) / (z_t . phi(q_t))

Choromanski et al., Rethinking Attention with Performers, 2020; queries and keys are scaled by K^-1/4 each.  The M rows of
W are Gaussian, orthogonal in blocks, drawn once and fixed.

Features are stored as logarithms.  The published code divides the keys by their maximum over the whole sequence, which
lets the future leak into the past; here every feature c has a running maximum m_t[c], the row of the state that belongs
to it is stored relative to it, so it decays by exp(m_{t-1} - m_t) when a larger key arrives.  The feature with the
largest q has weight one and has met a key of weight one, so the denominator is never below one.

B batch, H heads, L length, M features, K width of a head, V value width.
"""

from __future__ import annotations

import math
from typing import Annotated, final

import torch
from torch import Tensor, nn

from ...core.options import Range, checked
from ..precision import full_precision
from ..recurrence import Rule, State, Steps, normalize, with_ones
from ._mixer import Recurrent
from ._parts import Heads, PositiveWidth, advance_position, merge, rotate, split
from .attention import head_width, refuse_state


def rule(log_q: Tensor, log_k: Tensor, v: Tensor, state: State | None = None) -> Rule:
    """S += phi(k) (x) v, z += phi(k), o = S^T phi(q) / (z . phi(q)), from the logs of the features (B, H, L, M)."""
    H, M = log_k.shape[1], log_k.shape[3]
    # no gradient through m: it cancels in the output
    if state is None:
        m = log_k.detach().cummax(2).values
        before = torch.cat([m[:, :, :1], m[:, :, :-1]], 2)
    else:
        old = state["m"].view(-1, H, 1, M)
        m = torch.cat([old.detach(), log_k.detach()], 2).cummax(2).values[:, :, 1:]
        before = torch.cat([old, m[:, :, :-1]], 2)
    out = yield Steps(_query_features(log_q, m), torch.exp(log_k - m), with_ones(v), log_key=before - m)
    return normalize(out), {"m": m.mT.flatten(1, 2)}


def _query_features(log_q: Tensor, m: Tensor) -> Tensor:
    """phi(q) for a state relative to m, scaled so that the largest feature is one: a common factor cancels in the output."""
    log = log_q + m
    return torch.exp(log - log.detach().amax(-1, keepdim=True))


def log_features(x: Tensor, W: Tensor) -> Tensor:
    """log phi(x) of x (.., K) by directions W (M, K) -> (.., M); in float32 or better, because it is the argument of exp."""
    with full_precision(x):
        x = x.to(torch.promote_types(x.dtype, torch.float32))
        return x @ W.to(x.dtype).mT - (x.square().sum(-1, keepdim=True) + math.log(len(W))) / 2


def directions(M: int, K: int) -> Tensor:
    """(M, K) orthogonal random features: rows with Gaussian norms, orthogonal in blocks of K; unbiased, with less variance."""
    blocks = [nn.init.orthogonal_(torch.empty(K, K)) for _ in range(-(-M // K))]
    return torch.cat(blocks)[:M] * torch.randn(M, K).norm(dim=1, keepdim=True)


@final
class Performer(Recurrent):
    """The layer: heads of attention by random features, the same features in all heads.

    Args:
        width: model dimension
        heads: independent states
        features: number of random features; the error of the weights falls with one over their root
        causal: tokens attend to earlier tokens only; otherwise to all, and there is no state
        rotary: rotary position embeddings
    """

    W: Tensor

    @checked
    def __init__(
        self, width: PositiveWidth = 64, heads: Heads = 4, features: Annotated[int, Range(1)] = 64, causal: bool = True, rotary: bool = True
    ) -> None:
        super().__init__()
        d = head_width(width, heads, rotary, "Performer")
        self.width, self.heads, self.causal, self.rotary = width, heads, causal, rotary
        self.q, self.k, self.v, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.register_buffer("W", directions(features, d))

    def mix(self, x: Tensor, state: State | None, lengths: Tensor | None) -> tuple[Tensor, State]:
        if not self.causal:
            refuse_state(state, "Performer(causal=False)")
        q, k, v = (split(project(x), self.heads) for project in (self.q, self.k, self.v))
        position = None if state is None else state["position"]
        if self.rotary:
            q, k = rotate(q, position), rotate(k, position)
        log_q, log_k = (log_features(one * one.shape[-1] ** -0.25, self.W) for one in (q, k))
        o, after = self.recur(rule(log_q, log_k, v.to(log_k.dtype), state), state, lengths)
        if not self.causal:  # the same recurrence, but all tokens read its final state
            m = after["m"].unflatten(1, (self.heads, -1)).unsqueeze(2).nan_to_num(neginf=0.0)  # -inf: an empty row
            o, after = normalize(_query_features(log_q, m) @ after["S0"]), {}
        else:
            after["position"] = advance_position(position, x, lengths)
        return self.out(merge(o).to(x.dtype)), after


def tiny() -> Performer:
    """A small layer for the contract tests."""
    return Performer(width=12, heads=3, features=7)
