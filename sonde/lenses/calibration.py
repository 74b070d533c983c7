"""Calibration: accuracy of a classifier against its confidence, and the expected calibration error."""

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
    """A reliability diagram: for each bin of confidence the number of predictions, their mean confidence and their accuracy."""

    counts: Tensor
    confidence: Tensor
    accuracy: Tensor

    @property
    def error(self) -> float:
        """Expected calibration error: mean of |accuracy - confidence| over bins, weighted by count (Naeini et al., 2015)."""
        filled = self.counts > 0
        return float((self.counts * (self.accuracy - self.confidence).abs())[filled].sum() / self.counts.sum())

    @property
    def max_error(self) -> float:
        """Maximum calibration error: the largest |accuracy - confidence| of a bin."""
        return float((self.accuracy - self.confidence).abs()[self.counts > 0].max())


def why_not(subject: Subject) -> str:
    """Why the lens does not apply to a subject, or ''; `guard` turns it into an error."""
    if reason := not_classes(subject):
        return reason
    return "" if hasattr(subject.objective, "predict") else "there is no objective with a `predict` that turns scores into probabilities"


@guard
def read(subject: Subject, bins: Annotated[int, Range(1, 200)] = 10) -> list[Reading]:
    """Accuracy against confidence, and a histogram of the confidence.

    Args:
        bins: number of bins of confidence, from 0 to 1
    """
    y, y_pred, confidence, _, _ = predict_labels(subject)
    if not len(y):
        raise BadInput("no example has a label", where="lens 'calibration'", fix="choose another split")
    if float(confidence.min()) < 0 or float(confidence.max()) > 1 + 1e-6:
        raise BadInput("the model's predictions are not probabilities", where="lens 'calibration'", fix="check the objective's predict")
    stats = curve(confidence.double(), y == y_pred, bins)
    filled = stats.counts > 0
    mean_confidence, accuracy = float(confidence.double().mean()), float((y == y_pred).double().mean())
    verdict = "overconfident" if mean_confidence > accuracy else "underconfident"
    if abs(mean_confidence - accuracy) < 5e-5:
        verdict = "well calibrated"
    return [
        Lines(
            "Calibration",
            {"accuracy": stats.accuracy[filled], "perfect calibration": [0.0, 1.0]},
            axes=["confidence", "accuracy"],
            note=f"Expected calibration error {stats.error:.2%}, maximum over bins {stats.max_error:.2%}; {len(y):,} predictions. "
            f"Mean confidence {mean_confidence:.2%}, accuracy {accuracy:.2%}: {verdict}.",
            x={"accuracy": stats.confidence[filled].tolist(), "perfect calibration": [0.0, 1.0]},
            results={"error": stats.error},
        ),
        Bars(
            "Histogram of confidence",
            {"predictions": stats.counts},
            axes=["confidence", "predictions"],
            note=f"{float((confidence >= 0.99).double().mean()):.1%} of the predictions have a confidence of at least 99 %.",
            edges=[i / bins for i in range(bins + 1)],
        ),
    ]


def curve(confidence: Tensor, correct: Tensor, bins: int) -> Curve:
    """Sort predictions into bins of equal width; one on an edge belongs to the lower bin.  Means of an empty bin are NaN."""
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64)
    bin_index = torch.bucketize(confidence, edges[1:-1])
    count = torch.bincount(bin_index, minlength=bins)

    def mean(values: Tensor) -> Tensor:
        return torch.zeros(bins, dtype=torch.float64).index_add(0, bin_index, values.double()) / count

    return Curve(count, mean(confidence), mean(correct))


def tiny() -> Subject:
    """A small subject for the contract tests."""
    return images()
