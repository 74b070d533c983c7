"""Residuals of a regression: predicted against true values, and a histogram of the residuals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import torch

from ..core.errors import BadInput
from ..core.numbers import number
from ..core.options import Range
from ..core.reading import Bars, Reading, Scatter, Subject
from .tools.readonly import guard, not_values, predictions, target_mask
from .tools.tiny import values

if TYPE_CHECKING:
    from torch import Tensor

REPORT = {"position": 30, "section": "Predictions"}
POINTS = 2000


def why_not(subject: Subject) -> str:
    """Why the lens does not apply to a subject, or ''; `guard` turns it into an error."""
    return not_values(subject)


@guard
def read(subject: Subject, bins: Annotated[int, Range(1, 1000)] = 31) -> list[Reading]:
    """Predicted against true, and a histogram of true minus predicted; R2 of several outputs is the mean over them.

    Args:
        bins: number of bins of the histogram
    """
    y, guess = subject.batch.y.double(), predictions(subject).double()
    n = len(y)
    y, guess = y.reshape(n, -1), guess.reshape(n, -1)
    if y.shape != guess.shape:
        raise BadInput(
            f"the model outputs {guess.shape[1]} numbers for {y.shape[1]} targets",
            where="lens 'residuals'",
            fix="check the objective's predict",
        )
    counted = target_mask(subject.batch, subject.batch.y).reshape(n, -1)
    r2 = determination(y, guess, counted)
    y, guess = y[counted], guess[counted]
    if not len(y):
        raise BadInput("all targets are masked", where="lens 'residuals'", fix="look at other examples")
    residual = y - guess
    rmse, mae = float(residual.square().mean().sqrt()), float(residual.abs().mean())
    summary = f"RMSE {number(rmse)}, mean absolute error {number(mae)}, {n:,} examples"
    shown = torch.linspace(0, len(y) - 1, min(len(y), POINTS), dtype=torch.float64).round().long()
    # The histogram is centered on zero, so that a bias shows as a shift.
    limit = float(residual.abs().max()) or 1.0
    edges = torch.linspace(-limit, limit, bins + 1, dtype=torch.float64)
    where = torch.bucketize(residual, edges[1:-1])
    return [
        Scatter(
            "Predicted against true",
            {"true": y[shown], "predicted": guess[shown]},
            axes=["true", "predicted"],
            note=(f"R² {r2:.4f}; " if r2 is not None else "R² undefined, all targets are equal; ") + summary + ".",
            diagonal=True,
            results={"r2": r2, "rmse": rmse, "mae": mae},
        ),
        Bars(
            "Residuals",
            {"examples": torch.bincount(where, minlength=bins)},
            axes=["true − predicted", "examples"],
            note=f"Mean {number(float(residual.mean()))}, standard deviation {number(float(residual.std(correction=0)))}.",
            edges=edges,
        ),
    ]


def determination(y: Tensor, guess: Tensor, counted: Tensor) -> float | None:
    """Mean over the outputs of R2 = 1 - squared error / total sum of squares; a constant output has none."""
    scores = []
    for column in range(y.shape[1]):
        true, predicted = y[counted[:, column], column], guess[counted[:, column], column]
        total = float((true - true.mean()).square().sum()) if len(true) else 0.0
        if total > 0:
            scores.append(1 - float((true - predicted).square().sum()) / total)
    return sum(scores) / len(scores) if scores else None


def tiny() -> Subject:
    """A small subject for the contract tests."""
    return values()
