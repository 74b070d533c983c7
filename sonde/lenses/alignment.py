"""Alignment: how much each target token attends to each source token."""

from __future__ import annotations

from typing import Annotated, Any

import torch

from ..core.errors import BadInput
from ..core.options import Range
from ..core.reading import Heat, Reading, Subject
from .tools.readonly import guard, no_model, preserve_state, target_mask
from .tools.tiny import reverse


def why_not(subject: Subject) -> str:
    """Why the lens does not apply to a subject, or ''; `guard` turns it into an error."""
    if missing := no_model(subject):
        return missing
    if not hasattr(subject.model, "align") or "source" not in subject.batch:
        return "the model does not attend from a target sequence to a source sequence"
    try:
        with preserve_state(subject.model), torch.no_grad():
            subject.model.align(*_inputs(subject, slice(1)))
    except BadInput as error:
        return error.what
    return ""


@guard
def read(subject: Subject, n: Annotated[int, Range(1, 16)] = 2) -> list[Reading]:
    """Attention weights of the first pairs of the batch: targets in rows, source in columns; each row sums to 1.

    Args:
        n: how many pairs to show
    """
    batch = subject.batch[:n]
    with preserve_state(subject.model), torch.no_grad():
        weights = subject.model.align(*_inputs(subject, slice(n)))
    target = batch.get("y", batch.x)
    counts, lengths = target_mask(batch, target).sum(1).tolist(), batch.get("lengths")
    readings: list[Reading] = []
    for i, weight in enumerate(weights):
        rows, columns = counts[i], weights.shape[2] if lengths is None else int(lengths[i])
        readings.append(
            Heat(
                f"Alignment of pair {i + 1}",
                {"weight": weight[:rows, :columns].double().round(decimals=3)},  # more digits only hide the shape
                axes=["target", "source"],
                note="How much each target token attends to each source token; each row sums to 1.",
                rows=_names(target[i, :rows], getattr(subject.data, "classes", ())),
                columns=_names(batch.source[i, :columns], getattr(subject.data, "features", ())),
                share="row",
            )
        )
    return readings


def _inputs(subject: Subject, part: slice) -> list[Any]:
    batch = subject.batch[part]
    return [batch.get(name) for name in subject.model.reads]


def _names(tokens: Any, names: Any) -> list[str]:
    """Names of tokens, or their ids where they have no names."""
    return [names[token] if token < len(names) else str(token) for token in tokens.tolist()]


def tiny() -> Subject:
    """A small subject for the contract tests."""
    return reverse()
