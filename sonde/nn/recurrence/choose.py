"""Which form runs fastest: a small cost model with constants measured on a CPU.

The time of a form is a fixed cost per call, a cost per sequential round, and its FLOPs at the measured rate.
`benchmarks/mixers.py forms` prints estimate beside measurement.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2
from typing import NamedTuple, final

from . import fused
from .forms import CHUNK, PIECE
from .steps import Steps


class Price(NamedTuple):
    """Cost of a form: seconds per call, seconds per sequential round, FLOPs per second."""

    call: float
    round: float
    rate: float


PRICES = {
    "fused": Price(50e-6, 0.0, 60e9),
    "step": Price(80e-6, 95e-6, 8e9),
    "parallel": Price(250e-6, 60e-6, 25e9),
    "chunk": Price(400e-6, 40e-6, 30e9),
    "scan": Price(300e-6, 120e-6, 9e9),
    "convolution": Price(400e-6, 0.0, 5e9),
}
TOUCH = 6e-9
"""seconds per element for the exponentials, masks and products around the matrix products"""
COMPLEX = 6
"""factor of that for complex numbers"""


@final
@dataclass(frozen=True)
class Choice:
    """The form chosen, why, and the estimate of each form, in seconds for a forward pass."""

    form: str
    why: str
    estimates: dict[str, float]


def choose(s: Steps) -> Choice:
    """The form with the lowest estimate among those that can run here."""
    problem = fused.why_not(s)
    estimates = {form: estimate(s, form) for form in fused.available_forms(s)}
    best = min(estimates, key=lambda form: estimates[form])
    if best == "fused":
        others = {form: seconds for form, seconds in estimates.items() if form != "fused"}
        second = min(others, key=lambda form: others[form])
        why = f"about {max(others[second] / estimates[best], 1):.0f}x faster than the next best form, {second}"
    elif problem and "fused" in s.forms:
        why = f"the fastest without fused kernels: {problem}"
    else:
        why = f"the fastest for {s.v.shape[2]} steps"
    return Choice(best, why, estimates)


def fastest(s: Steps) -> str:
    """The form that `choose` returns, without its reasons: a fused kernel is fastest wherever there is one."""
    return choose(s).form if fused.why_not(s) else "fused"


def estimate(s: Steps, form: str) -> float:
    """Expected seconds of a forward pass."""
    price = PRICES[form]
    work = flops(s, form) / price.rate * (2 if s.kind == "delta" and form in ("chunk", "parallel") else 1)  # triangular solves
    return price.call + rounds(s, form) * price.round + work + elementwise_count(s, form) * TOUCH


def rounds(s: Steps, form: str) -> int:
    """Number of sequential operations."""
    L = max(s.v.shape[2], 1)
    if form == "step":
        return L
    if form == "scan":
        return 2 * ceil(log2(max(L if s.kind == "hadamard" else ceil(L / 16), 2)))
    if form == "chunk":
        return ceil(L / PIECE) * 2 * ceil(log2(PIECE)) if s.kind == "hadamard" else ceil(L / CHUNK)
    if form == "parallel":
        return ceil(log2(max(L, 2)))
    return 1


def elementwise_count(s: Steps, form: str) -> float:
    """Number of elements in elementwise operations."""
    B, H, L, K, V = s.sizes
    if s.kind == "hadamard":
        if form == "convolution":
            return H * K * V * 4 * L**0.5 * (COMPLEX if s.complex else 1)
        per_step = {"step": 0.3, "chunk": 1.0, "scan": 1.4}.get(form, 0.0)
        return B * H * L * K * V * per_step * (COMPLEX if s.complex else 1)
    if form in ("step", "fused"):
        return 0.0
    C = {"parallel": L, "chunk": CHUNK, "scan": 16}[form]
    axes = sum(width for gate, width in ((s.log_key, K), (s.log_value, V)) if gate is not None)
    pairs = C if s.log_head is not None and s.log_key is None else 0
    return B * H * max(L, C) * (pairs + axes * log2(max(C, 2)))


def flops(s: Steps, form: str) -> float:
    """FLOPs of a forward pass: a multiply-add counts as two."""
    B, H, L, K, V = s.sizes
    heads = float(B * H)
    decays = 1 if any(x is not None for x in (s.log_head, s.log_key, s.log_value)) else 0
    if s.kind == "hadamard":
        if form == "convolution":
            return heads * V * (15 * L * log2(max(2 * L, 2)) + (8 if s.complex else 2) * K * L * (1 + 1 / max(B, 1)))
        work = 5 * K * V + 10 * K * V * (0 if s.constant else 1)  # the exponential counts as ten
        return heads * L * (work + (8 * K * V * (2 if form == "scan" else 1) if form in ("scan", "chunk") else 0))
    if form in ("step", "fused"):
        return heads * L * K * V * ((6 if s.kind == "delta" else 4) + decays)
    C = {"parallel": L, "chunk": CHUNK, "scan": 16}[form]
    if s.kind == "delta":
        pairs = 4 * C * K + C * (K + V) + 2 * C * V  # two sets of scores, the triangular solve, the weighted sum
    else:  # recursive halving skips the upper triangle, which one product for all channels computes and discards
        pairs = (1 if s.log_key is not None or s.log_value is not None else 2) * C * (K + V)
    states = 0 if form == "parallel" else (6 if s.kind == "delta" else 4) * K * V
    joins = 0.0 if form != "scan" else (4 * K * K * (K + V) / C if s.kind == "delta" else 4 * K * V / C)
    return heads * L * (pairs + states + joins)
