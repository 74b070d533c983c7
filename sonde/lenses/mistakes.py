"""Misclassified images, the most confident mistakes first."""

from __future__ import annotations

from typing import Annotated

from ..core.options import Range
from ..core.reading import Images, Reading, Subject
from .tools.pictures import picture
from .tools.readonly import guard, not_classes, predict_labels
from .tools.tiny import images

REPORT = {"position": 40}


def why_not(subject: Subject) -> str:
    """Why the lens does not apply to a subject, or ''; `guard` turns it into an error."""
    reason = not_classes(subject)
    if reason:
        return reason
    x, y = subject.batch.x, subject.batch.y
    if y.numel() != len(x):
        return f"an example has a label of size {tuple(y.shape[1:])}, not one class"
    if x.dim() != 4 or x.shape[1] not in (1, 3):
        return f"the inputs are not images (examples of size {tuple(x.shape[1:])})"
    return ""


@guard
def read(subject: Subject, n: Annotated[int, Range(least=1)] = 24) -> Reading:
    """Images with the predicted class, the true class and the confidence.

    Args:
        n: maximum number of images
    """
    y, y_pred, confidence, where, names = predict_labels(subject)
    wrong = (y != y_pred).nonzero().flatten()
    wrong = wrong[confidence[wrong].argsort(descending=True, stable=True)]
    shown = wrong[:n].tolist()
    indices = where[wrong[:n]].tolist()
    ids = subject.batch.get("ids")
    count = f"{len(wrong):,} of {len(y):,} examples are misclassified"
    order = "the most confident come first" if len(wrong) > len(shown) else "all are shown"
    return Images(
        "Mistakes",
        {"images": [picture(subject.batch.x[i]) for i in indices]},
        axes=["example", "row", "column"],
        note=f"{count}; {order}, each with the confidence of the prediction." if shown else f"{count}.",
        labels=[f"predicted {names[y_pred[i]]}" for i in shown],
        details=[f"true {names[y[i]]} ({100 * float(confidence[i]):.0f} %)" for i in shown],
        results={"ids": [int(ids[i]) if ids is not None else i for i in indices]},
    )


def tiny() -> Subject:
    """A small subject for the contract tests."""
    return images()
