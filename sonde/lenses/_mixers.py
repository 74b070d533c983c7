"""What mixers cost: time, memory and arithmetic of every member and form against the length of the sequence."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..core.live import Live
from ..core.reading import Reading
from ..nn.mixers import Mixer
from ..nn.recurrence import watching
from ..nn.recurrence.choose import flops as arithmetic

PARTS = ("aten.mm", "aten.addmm")  # products with weights: the same for every mixer, so not counted as mixing


class Row(NamedTuple):
    """One mixer in one form at one length."""

    mixer: str
    form: str
    length: int
    seconds: float
    """of one forward pass, and of the backward pass too where it was asked for"""
    peak: int
    """bytes of tensors alive at once at most"""
    flops: float
    """of moving information along the sequence in one forward pass, products with weights left out"""
    state: int
    """bytes of the state after the sequence, per sequence; 0 where there is none"""


def measure(name: str, mixer: Mixer, form: str, length: int, batch: int = 1, backward: bool = False, budget: float = 1.0) -> Row:
    """Best of several passes within `budget` seconds, two at least."""
    mixer.use(form)
    x = torch.randn(batch, length, mixer.width, generator=torch.Generator().manual_seed(length))
    call = _call(mixer, x, backward)
    with Live() as live:
        state = call()
    seconds, started = float("inf"), time.perf_counter()
    for turn in range(20):
        if turn >= 2 and time.perf_counter() - started > budget:
            break
        begun = time.perf_counter()
        call()
        seconds = min(seconds, time.perf_counter() - begun)
    kept = sum(s.numel() * s.element_size() for s in state.values()) // batch
    return Row(name, form, length, seconds, live.peak, mixing(mixer, x), kept)


def _call(mixer: Mixer, x: Tensor, backward: bool) -> Callable[[], dict[str, Tensor]]:
    if not backward:

        def call() -> dict[str, Tensor]:
            with torch.no_grad():
                return mixer(x)[1]

        return call
    weights = [p for p in mixer.parameters() if p.requires_grad]

    def both() -> dict[str, Tensor]:
        y, state = mixer(x)
        torch.autograd.grad(y.sum(), weights, allow_unused=True)
        return state

    return both


def mixing(mixer: Mixer, x: Tensor) -> float:
    """FLOPs of the recurrences that run, or of the products between tokens where there is none."""
    from torch.utils.flop_counter import FlopCounterMode

    on_cpu = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention}  # torch counts the one of a GPU only
    with torch.no_grad(), watching() as watch, FlopCounterMode(display=False, custom_mapping=on_cpu) as counter:
        mixer(x)
    if watch.seen:
        return sum(arithmetic(steps, form) for steps, form in watch.seen)
    counts = counter.get_flop_counts()["Global"]
    return float(sum(n for op, n in counts.items() if str(op) not in PARTS))


def _attention(q: Sequence[int], k: Sequence[int], v: Sequence[int], *_: object, out_val: object = None, **__: object) -> int:
    """Scores and weighted sums of all pairs, from the shapes (B, H, T, d)."""
    return 2 * q[0] * q[1] * q[2] * k[2] * (q[3] + v[3])


def sweep(
    mixers: dict[str, Mixer], forms: Sequence[str], lengths: Sequence[int], batch: int = 1, backward: bool = False, limit: float = 2.0
) -> Iterator[Row]:
    """Every member in each of its forms at growing length; a form that takes longer than `limit` seconds goes no further."""
    for name, mixer in mixers.items():
        for form in mixer.forms():
            if forms and form not in forms:
                continue
            for length in lengths:
                row = measure(name, mixer, form, length, batch, backward)
                yield row
                if row.seconds > limit:
                    break


def readings(rows: Sequence[Row], batch: int = 1) -> list[Reading]:
    """The rows as a table, and time and memory against length as curves of each member's fastest form."""
    table = {
        "mixer": [row.mixer for row in rows],
        "form": [row.form for row in rows],
        "length": [row.length for row in rows],
        "ms": [round(1e3 * row.seconds, 2) for row in rows],
        "tokens/s": [round(batch * row.length / row.seconds) for row in rows],
        "peak memory": [row.peak for row in rows],
        "FLOPs of mixing": [row.flops for row in rows],
        "state": [row.state for row in rows],
    }
    formats = {"peak memory": "bytes", "FLOPs of mixing": "si", "state": "bytes"}
    found = [Reading("Mixers: time, memory and arithmetic against length", "table", table, extra={"formats": formats})]
    for title, unit, value in (("Time", "ms", lambda r: 1e3 * r.seconds), ("Memory", "peak MB", lambda r: r.peak / 2**20)):
        lengths = sorted({row.length for row in rows})
        curves = {}
        for name in dict.fromkeys(row.mixer for row in rows):
            best = [min((value(r) for r in rows if r.mixer == name and r.length == length), default=None) for length in lengths]
            curves[name] = best
        extra = {"x": lengths, "log": ["x", "y"]}
        found.append(Reading(f"{title} of one layer, each in its best form", "lines", curves, axes=["length", unit], extra=extra))
    return found
