"""Confusion matrix, and precision, recall and F1 of every class."""

from __future__ import annotations

import torch

from ..core.reading import Heat, Reading, Subject, Table
from .tools.readonly import guard, not_classes, predict_labels
from .tools.tiny import images

REPORT = {"position": 30, "section": "Predictions"}
MAX_CLASSES = 128


def why_not(subject: Subject) -> str:
    """Why the lens does not apply to a subject, or ''; `guard` turns it into an error."""
    missing, many = not_classes(subject), len(getattr(subject.data, "classes", ()))
    return missing or (f"{many:,} classes are more than a matrix can show" if many > MAX_CLASSES else "")


@guard
def read(subject: Subject) -> list[Reading]:
    """The matrix (true class in rows, predicted class in columns) and a table per class; a ratio without examples is '-'."""
    y, y_pred, _, _, names = predict_labels(subject)
    k, unit = len(names), "examples" if subject.batch.y.numel() == len(subject.batch) else "positions"  # each pixel or token has a class
    counts = torch.bincount(y * k + y_pred, minlength=k * k).reshape(k, k)
    right, true, predicted = counts.diagonal(), counts.sum(1), counts.sum(0)
    total, correct = int(counts.sum()), int(right.sum())

    def ratio(numerator: torch.Tensor, denominator: torch.Tensor) -> list[float | None]:
        return [a / b if b else None for a, b in zip(numerator.tolist(), denominator.tolist(), strict=True)]

    matrix = Heat(
        "Confusion matrix",
        {unit: counts},
        axes=["true class", "predicted class"],
        note=_note(counts, names, correct, total, unit),
        rows=names,
        columns=names,
        share="row",
        diagonal=True,
    )
    table = Table(
        "Precision and recall",
        {
            "class": names,
            "precision": ratio(right, predicted),
            "recall": ratio(right, true),
            "F1": ratio(2 * right, true + predicted),
            unit: true,
        },
        axes=["class"],
        note="Precision: fraction of the predictions of a class that are correct. Recall: fraction of a class that is predicted correctly.",
        formats=dict.fromkeys(("precision", "recall", "F1"), "percent"),
    )
    return [matrix, table]


def _note(counts, names: list[str], correct: int, total: int, unit: str) -> str:
    if not total:
        return f"No labeled {unit}."
    text = f"{correct:,} of {total:,} correct ({100 * correct / total:.2f} %)."
    wrong = counts.clone().fill_diagonal_(0)
    if int(wrong.max()):
        row, column = divmod(int(wrong.argmax()), len(names))
        count = int(wrong.max())
        text += f" Most frequent mistake: {names[row]} predicted as {names[column]}, {count:,} {'time' if count == 1 else 'times'}."
    return text


def tiny() -> Subject:
    """A small subject for the contract tests."""
    return images()
