"""Calibration: of the answers a classifier is so sure of, how many are right; its expected error, and how sure it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, NamedTuple

import torch

from ..core.errors import BadInput
from ..core.options import Range
from ..core.reading import Bars, Lines, Reading, Subject
from .tools.readonly import guard, not_classes, predict_labels
from .tools.tiny import images

if TYPE_CHECKING:
    from torch import Tensor


class Curve(NamedTuple):
    """Of each bin of confidence (n, all of one width) how many answers it has, their mean confidence and the share that is right."""

    answers: Tensor
    confidence: Tensor
    right: Tensor

    @property
    def error(self) -> float:
        """Expected calibration error: sum over bins of share of answers |right - confidence| (Naeini et al., 2015)."""
        there = self.answers > 0
        return float((self.answers * (self.right - self.confidence).abs())[there].sum() / self.answers.sum())

    @property
    def worst(self) -> float:
        return float((self.right - self.confidence).abs()[self.answers > 0].max())


def why_not(subject: Subject) -> str:
    if reason := not_classes(subject):
        return reason
    return "" if hasattr(subject.objective, "predict") else "there is no objective that turns scores into probabilities"


@guard
def read(subject: Subject, bins: Annotated[int, Range(1, 200)] = 10) -> list[Reading]:
    """Share of right answers against confidence, and a histogram of the confidence.

    Args:
        bins: of confidence, from 0 to 1
    """
    y, y_pred, confidence, _, _ = predict_labels(subject)
    if not len(y):
        raise BadInput("no example has a label", where="lens 'calibration'", fix="choose another split")
    if float(confidence.min()) < 0 or float(confidence.max()) > 1 + 1e-6:
        raise BadInput("the model's answers are not probabilities", where="lens 'calibration'", fix="check the objective's predict")
    stats = curve(confidence.double(), y == y_pred, bins)
    there = stats.answers > 0
    sure, right = float(confidence.double().mean()), float((y == y_pred).double().mean())
    manner = "too sure" if sure > right else "not sure enough"
    return [
        Lines(
            "Calibration",
            {"right": stats.right[there], "as sure as right": [0.0, 1.0]},
            axes=["confidence", "share that is right"],
            note=f"Expected calibration error {stats.error:.2%}, largest of a bin {stats.worst:.2%}; {len(y):,} answers in {bins} bins. "
            f"On the whole {sure:.2%} sure and {right:.2%} right: {manner if abs(sure - right) >= 5e-5 else 'as sure as right'}.",
            x={"right": stats.confidence[there].tolist(), "as sure as right": [0.0, 1.0]},
            results={"error": stats.error},
        ),
        Bars(
            "How sure the answers are",
            {"answers": stats.answers},
            axes=["confidence", "answers"],
            note=f"{float((confidence >= 0.99).double().mean()):.1%} of the answers are at least 99 % sure.",
            edges=[i / bins for i in range(bins + 1)],
        ),
    ]


def curve(confidence: Tensor, right: Tensor, bins: int) -> Curve:
    """Answers by confidence; one on the bound of two bins belongs to the lower one.  A bin without answers has no figures (NaN)."""
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64)
    where = torch.bucketize(confidence, edges[1:-1])
    count = torch.bincount(where, minlength=bins)

    def mean(values: Tensor) -> Tensor:
        return torch.zeros(bins, dtype=torch.float64).index_add(0, where, values.double()) / count

    return Curve(count, mean(confidence), mean(right))


def tiny() -> Subject:
    return images()
