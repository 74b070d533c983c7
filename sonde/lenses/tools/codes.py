"""What lenses over auto-encoders share: codes of examples, and decoded examples as pictures."""

from __future__ import annotations

import math
from typing import Any

from ...core.reading import Subject
from .pictures import flat
from .readonly import no_model


def no_codes(subject: Subject) -> str:
    """Why the model is not an auto-encoder of images, or ''."""
    if missing := no_model(subject):
        return missing
    if not callable(getattr(subject.model, "encode", None)) or not callable(getattr(subject.model, "decode", None)):
        return "the model has no methods encode and decode"
    x = subject.batch.x
    if not x.is_floating_point() or not _sides(x):
        return f"the inputs are not images (examples of size {tuple(x.shape[1:])})"
    return ""


def _sides(x: Any) -> tuple[int, ...]:
    """Channels, height and width of an example as a picture; a flat example of n^2 values is an n x n gray image."""
    if x.dim() == 4:
        return tuple(x.shape[1:])
    side = math.isqrt(x.shape[1]) if x.dim() == 2 else 0
    return (1, side, side) if side > 1 and side * side == x.shape[1] else ()


def codes(subject: Subject, x: Any) -> Any:
    """The code of each example; for a distribution, its mean."""
    encoding = subject.model.encode(x)
    return encoding[0] if isinstance(encoding, tuple) else encoding


def decode_codes(subject: Subject, h: Any) -> Any:
    """Decoded examples: the mean of the decoder's distribution."""
    if callable(getattr(subject.model, "mean", None)):
        return subject.model.mean(h)
    out = subject.model.decode(h)
    return subject.objective.predict(out) if hasattr(subject.objective, "predict") else out


def to_pictures(subject: Subject, images: Any) -> list[Any]:
    """Examples as pictures, all on the scale of the batch, so that they are comparable."""
    x = subject.batch.x
    low, high = x.min(), x.max()
    shown = ((images - low) / (high - low).clamp_min(1e-12)).clamp(0, 1)
    return [flat(image.reshape(_sides(x))) for image in shown.detach().float()]
