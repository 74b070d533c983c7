"""A sheet of misclassified images, the most confident mistakes first."""

from __future__ import annotations

from typing import Annotated

from ..core.dials import Range
from ..core.reading import Reading, Subject
from ._pictures import picture
from ._untouched import answers, need, not_classes


def why_not(subject: Subject) -> str:
    reason = not_classes(subject)
    if reason:
        return reason
    x, y = subject.batch.x, subject.batch.y
    if x.dim() != 4 or x.shape[1] not in (1, 3) or y.numel() != len(x):
        return f"the inputs are not images (examples of size {tuple(x.shape[1:])})"
    return ""


def read(subject: Subject, n: Annotated[int, Range(least=1)] = 24) -> Reading:
    """Images with their true and predicted class.

    n: how many to show at most
    """
    need(__name__, subject, n=n)
    y, said, confidence, where, names = answers(subject)
    wrong = (y != said).nonzero().flatten()
    wrong = wrong[confidence[wrong].argsort(descending=True, stable=True)]
    shown = wrong[:n].tolist()
    places = where[wrong[:n]].tolist()
    ids = subject.batch.get("ids")
    count = f"{len(wrong):,} of {len(y):,} examples are misclassified"
    return Reading(
        "Mistakes",
        "images",
        {"images": [picture(subject.batch.x[i]) for i in places]},
        axes=["example", "row", "column"],
        note=f"{count}; " + ("the most confident come first." if len(wrong) > len(shown) else "all are shown.") if shown else f"{count}.",
        extra={
            "labels": [f"{names[said[i]]}, not {names[y[i]]}" for i in shown],
            "details": [f"{100 * float(confidence[i]):.0f} % sure" for i in shown],
            "ids": [int(ids[i]) if ids is not None else i for i in places],
        },
    )


def tiny() -> Subject:
    from ._tiny import images

    return images()
