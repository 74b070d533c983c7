"""Cost of mixers: time, memory and FLOPs of every mixer and form against the length of the sequence."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from ... import kernels
from ...core.live import Live
from ...core.reading import Lines, Reading, Table
from ...nn.mixers import Mixer
from ...nn.recurrence import record_recurrences
from ...nn.recurrence.choose import flops as arithmetic
from ..cost import attention_on_cpu

PROJECTIONS = ("aten.mm", "aten.addmm")  # products with weights: every mixer has them, so they do not count as mixing


class MixerRow(NamedTuple):
    """One mixer in one form at one length."""

    mixer: str
    form: str
    length: int
    seconds: float
    """of one forward pass, with `backward` of the backward pass too"""
    peak: int
    """peak memory of the tensors, in bytes"""
    flops: float
    """FLOPs along the sequence in one forward pass, without products with weights"""
    state: int
    """bytes of the state after the sequence, per sequence; 0 where there is none"""


def measure(name: str, mixer: Mixer, form: str, length: int, batch_size: int = 1, backward: bool = False, budget: float = 1.0) -> MixerRow:
    """The fastest of several passes within `budget` seconds, at least two."""
    mixer.use(form)
    x = torch.randn(batch_size, length, mixer.width, generator=torch.Generator().manual_seed(length))
    call = _call(mixer, x, backward)
    with Live() as live:
        state = call()
    seconds, started = float("inf"), time.perf_counter()
    for turn in range(20):
        if turn >= 2 and time.perf_counter() - started > budget:
            break
        pass_start = time.perf_counter()
        call()
        seconds = min(seconds, time.perf_counter() - pass_start)
    state_bytes = sum(s.numel() * s.element_size() for s in state.values()) // batch_size
    return MixerRow(name, form, length, seconds, live.peak, mixing_flops(mixer, x), state_bytes)


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


def mixing_flops(mixer: Mixer, x: Tensor) -> float:
    """FLOPs of the recurrences, or without any, of the products between tokens."""
    with torch.no_grad(), record_recurrences() as watch, FlopCounterMode(display=False, custom_mapping=attention_on_cpu()) as counter:
        mixer(x)
    if watch.seen:
        return sum(arithmetic(steps, form) for steps, form in watch.seen)
    counts = counter.get_flop_counts()["Global"]
    return float(sum(n for op, n in counts.items() if str(op) not in PROJECTIONS))


def sweep(
    mixers: dict[str, Mixer], forms: Sequence[str], lengths: Sequence[int], batch_size: int = 1, backward: bool = False, limit: float = 2.0
) -> Iterator[MixerRow]:
    """Every mixer in each of its forms at increasing length; a form that takes more than `limit` seconds is not tried at longer ones."""
    for name, mixer in mixers.items():
        for form in mixer.forms():
            if form not in forms if forms else form == "fused" and not kernels.available():
                continue  # without `forms`, those that can run here
            for length in lengths:
                row = measure(name, mixer, form, length, batch_size, backward)
                yield row
                if row.seconds > limit:
                    break


COLUMNS = ("mixer", "form", "length", "ms", "tokens/s", "peak memory", "FLOPs of mixing", "state")
FORMATS = {"peak memory": "bytes", "FLOPs of mixing": "si", "state": "bytes"}


def cells(row: MixerRow, batch_size: int = 1) -> tuple[str | float, ...]:
    """A row as cells of the table."""
    speed = round(batch_size * row.length / row.seconds)
    return row.mixer, row.form, row.length, round(1e3 * row.seconds, 2), speed, row.peak, row.flops, row.state


def readings(rows: Sequence[MixerRow], batch_size: int = 1, setting: str = "") -> list[Reading]:
    """The rows as a table, and time and memory of each mixer's best form against length as curves.

    Args:
        setting: how it was measured, for the notes
    """
    table = dict(zip(COLUMNS, map(list, zip(*(cells(row, batch_size) for row in rows)))))
    panels: list[Reading] = [Table("Mixers: time, memory and FLOPs against length", table, note=setting, formats=FORMATS)]
    lengths = sorted({row.length for row in rows})
    members = {name: [row for row in rows if row.mixer == name] for name in dict.fromkeys(row.mixer for row in rows)}
    for title, unit, value in (("Time", "ms", lambda r: 1e3 * r.seconds), ("Memory", "peak MiB", lambda r: r.peak / 2**20)):
        curves = {
            name: [min((value(row) for row in own if row.length == length), default=None) for length in lengths]
            for name, own in members.items()
        }
        note = f"{setting}{'. ' if setting else ''}Best form {_winners(members, value)}."
        panels.append(
            Lines(
                f"{title} of one layer, each in its best form",
                curves,
                ["length", unit],
                note,
                x=lengths,
                ticks=lengths,
                thin=True,
                log=["x", "y"],
            )
        )
    return panels


def _winners(members: dict[str, list[MixerRow]], value: Callable[[MixerRow], float]) -> str:
    """The best form of each mixer at its longest measured length."""
    by_form: dict[tuple[int, str], list[str]] = {}
    for name, own in members.items():
        longest = max(row.length for row in own)
        best = min((row for row in own if row.length == longest), key=lambda row: (value(row), row.seconds))
        by_form.setdefault((-longest, best.form), []).append(name)
    parts: dict[int, list[str]] = {}
    for (length, form), names in sorted(by_form.items()):
        parts.setdefault(-length, []).append(f"{form} for {', '.join(names)}")
    return "; ".join(f"at {length:,} steps: {'; '.join(winners)}" for length, winners in parts.items())
