"""Exposure bias: accuracy of the next token after true tokens and after the model's own tokens, by position."""

from __future__ import annotations

import torch

from ..core.batch import call_model
from ..core.reading import Lines, Reading, Subject
from ..objectives.scheduled import mix_inputs
from .tools.readonly import guard, no_model, preserve_state, target_mask
from .tools.tiny import reverse


def why_not(subject: Subject) -> str:
    """Why the lens does not apply to a subject, or ''; `guard` turns it into an error."""
    if missing := no_model(subject):
        return missing
    # `advance` predicts the next token from a state, as in generation
    if not hasattr(subject.model, "advance") or not getattr(subject.model, "causal", True):
        return "the model does not generate tokens from its own output"
    x, y = subject.batch.x, subject.batch.get("y")
    if y is None or x.dim() != 2 or x.is_floating_point() or y.shape != x.shape:
        return "the batch does not have an input and a target token at each position"
    shifted = (x[:, 1:] == y[:, :-1]) | ~target_mask(subject.batch, y)[:, :-1]
    return "" if bool(shifted.all()) else "the inputs are not the targets shifted by one position"


@guard
def read(subject: Subject) -> Reading:
    """Accuracy at each position of the target, with true inputs (teacher forcing) and with the model's own (free running)."""
    model, batch = subject.model, subject.batch
    mask = target_mask(batch, batch.y)  # False for padding
    with preserve_state(model), torch.no_grad():
        free = batch.replace(x=mix_inputs(model, batch, 1.0, likeliest=True))  # every input after the first is the model's argmax
        inputs = {"forced": batch, "free running": free}
        correct = {name: (call_model(model, each).argmax(-1) == batch.y) & mask for name, each in inputs.items()}
    total = mask.sum(0)
    lines = {name: (hits.sum(0)[total > 0] / total[total > 0]).tolist() for name, hits in correct.items()}
    overall = {name: float(hits.sum() / mask.sum()) for name, hits in correct.items()}
    note = ", ".join(f"{name} {accuracy:.1%}" for name, accuracy in overall.items())
    return Lines(
        "Accuracy by position",
        lines,
        axes=["position", "accuracy"],
        note=f"Over all positions {note}; {len(batch):,} sequences. Forced: the inputs are the true tokens. "
        "Free running: they are the model's own most likely tokens.",
        x=(1 + (total > 0).nonzero().flatten()).tolist(),
        results={"whole": overall},
    )


def tiny() -> Subject:
    """A small subject for the contract tests."""
    return reverse()
