"""Exposure bias: how often the next token is right after true tokens, and after the model's own, place by place."""

from __future__ import annotations

import torch

from ..core.batch import ask
from ..core.reading import Lines, Reading, Subject
from ..objectives.scheduled import mix_inputs
from .tools.readonly import guard, no_model, preserve_state, real
from .tools.tiny import reverse


def why_not(subject: Subject) -> str:
    if missing := no_model(subject):
        return missing
    if not hasattr(subject.model, "advance") or not getattr(subject.model, "causal", True):
        return "the model does not continue from its own tokens"
    x, y = subject.batch.x, subject.batch.get("y")
    if y is None or x.dim() != 2 or x.is_floating_point() or y.shape != x.shape:
        return "the batch has no token for every place and its next"
    moved = (x[:, 1:] == y[:, :-1]) | ~real(subject.batch, y)[:, :-1]
    return "" if bool(moved.all()) else "the inputs are not the targets moved on by one place"


@guard
def read(subject: Subject) -> Reading:
    """Share of right tokens at each place of the target, with true inputs (forced) and with the model's own (free running)."""
    model, batch = subject.model, subject.batch
    counts = real(batch, batch.y)
    with preserve_state(model), torch.no_grad():
        free = batch.replace(x=mix_inputs(model, batch, 1.0, likeliest=True))
        right = {name: (ask(model, part).argmax(-1) == batch.y) & counts for name, part in (("forced", batch), ("free running", free))}
    there = counts.sum(0)
    lines = {name: (hits.sum(0)[there > 0] / there[there > 0]).tolist() for name, hits in right.items()}
    whole = {name: float(hits.sum() / counts.sum()) for name, hits in right.items()}
    note = ", ".join(f"{name} {share:.1%}" for name, share in whole.items())
    return Lines(
        "Right tokens by place",
        lines,
        axes=["place", "share of right tokens"],
        note=f"Over all places {note}; {len(batch):,} sequences. Free running reads its own likeliest tokens.",
        x=(1 + (there > 0).nonzero().flatten()).tolist(),
        results={"whole": whole},
    )


def tiny() -> Subject:
    return reverse()
