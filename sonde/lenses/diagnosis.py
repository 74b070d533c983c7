"""Diagnosis of a run from its training and validation loss: over- or underfitting, divergence, and what helps.

Losses have no absolute scale, so two ratios are used, with `start` the loss before training and `floor` the loss that no
model can beat (noise in the targets; 0 where it is not known):

    learned = (start - train) / (start - floor)     fraction of the possible improvement that was reached
    lost    = (valid - train) / (start - train)     fraction of that which does not generalize to new examples
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from ..core.errors import BadInput
from ..core.numbers import number, percent
from ..core.options import Range
from ..core.reading import Lines, Reading, Subject, Table
from .curves import COLORS, CurvePoints, series
from .tools.readonly import guard
from .tools.tiny import images

REMEDIES: Mapping[str, Mapping[str, str]] = {
    "overfitting": {
        "more data, or augmentation": "augment= of a recipe; sonde.data.augment",
        "weight decay (L2)": "weight_decay of 'adamw' (decoupled) or 'adam' (in the loss)",
        "L1, for weights that are exactly 0": "optimizer 'proximal' with weight_decay",
        "dropout": "dropout of a model",
        "early stopping": "patience= of a recipe",
        "a smaller model": "fewer or narrower layers",
    },
    "underfitting": {
        "more capacity": "more or wider layers",
        "less regularization": "lower weight_decay, dropout, augmentation",
        "longer training": "more steps or epochs",
        "a larger learning rate or a better schedule": "lr, schedule= of a recipe",
    },
    "still learning": {"longer training": "more steps or epochs", "a larger learning rate": "lr, schedule= of a recipe"},
    "diverging": {
        "a smaller learning rate": "lr; look at 2 / lambda_max in `sonde look RUN spectrum`",
        "gradient clipping": "clip_norm= of a recipe",
        "better initial weights": "initialize= of a recipe; `sonde look RUN flow`",
        "longer training, if there were few steps": "batch norm needs a few hundred steps to estimate its statistics",
    },
    "good fit": {},
}
ABOVE = 0.2
"""how far above its start, as a fraction of start - floor, a loss must end to count as worse than before training"""
LITTLE = 0.2
"""value of `learned` below which a run cannot be overfitting"""
TAIL = 0.1
"""fraction of the logged rows, at the end, over which the training loss is averaged: one batch alone is noisy"""
FALLING = 0.02
"""fraction of the improvement that the last quarter must contribute for a run to count as still learning"""


@dataclass(frozen=True)
class Diagnosis:
    """The regime, the numbers it follows from, and what helps."""

    regime: str
    learned: float
    lost: float
    why: str

    @property
    def remedies(self) -> Mapping[str, str]:
        """What to do -> the option or command of Sonde for it."""
        return REMEDIES[self.regime]


def why_not(subject: Subject) -> str:
    """Why the lens does not apply to a subject, or ''; `guard` turns it into an error."""
    history = series(subject.metrics)
    if "loss" not in history or len(history["loss"][1]) < 2:
        return "there are no training losses yet"
    if any("phase" in row for row in subject.metrics):
        return "the networks are trained in turns and have no common loss"
    return "" if "valid/loss" in history else "there is no validation loss to compare with"


@guard
def read(subject: Subject, floor: float = 0.0, most_lost: Annotated[float, Range(0, 1)] = 0.15) -> list[Reading]:
    """Both losses with the diagnosis, and the remedies as a table.

    Args:
        floor: loss that no model can beat, such as the noise of the targets
        most_lost: a run counts as overfitting above this fraction of the improvement that does not generalize
    """
    history = series(subject.metrics)
    diagnosis = diagnose_run(history["loss"], history["valid/loss"], floor, most_lost)
    lines = {"train": history["loss"], "valid": history["valid/loss"]}
    curve = Lines(
        f"Diagnosis: {diagnosis.regime}",
        {name: line[1] for name, line in lines.items()},
        axes=["step", "loss"],
        note=f"{diagnosis.why} Training losses are those of the batches, with dropout and augmentation.",
        x={name: line[0] for name, line in lines.items()},
        colors=COLORS,
        results={"regime": diagnosis.regime},
    )
    if not diagnosis.remedies:
        return [curve]
    table = {"what helps": list(diagnosis.remedies), "in Sonde": list(diagnosis.remedies.values())}
    return [curve, Table(f"Remedies for {diagnosis.regime}", table, note="Try them in this order.")]


def diagnose_losses(
    train: float, valid: float, start: float, floor: float = 0.0, most_lost: float = 0.15, least_learned: float = 0.6
) -> Diagnosis:
    """The regime of two final losses, given the loss before training."""
    if not all(map(math.isfinite, (train, valid, start, floor))):
        return Diagnosis("diverging", math.nan, math.nan, f"The loss is not finite: training {number(train)}, validation {number(valid)}.")
    if start <= floor:
        raise BadInput(
            f"the loss at the start, {number(start)}, is not above the floor {number(floor)}", where="diagnosis", fix="lower the floor"
        )
    learned = (start - train) / (start - floor)
    lost = (valid - train) / (start - train) if train < start else math.nan
    facts = f"Training {number(train)}, validation {number(valid)}, before training {number(start)}."
    worse = valid - start > ABOVE * (start - floor)
    if learned < -ABOVE or (learned <= 0 and worse):
        return Diagnosis("diverging", learned, lost, f"{facts} The loss ended above its start.")
    if learned < LITTLE and worse:
        little = f"The validation loss ended above its start, and the training loss fell by only {percent(learned)} of what is possible."
        return Diagnosis("diverging", learned, lost, f"{facts} {little}")
    if learned < least_learned and not worse:
        return Diagnosis(
            "underfitting", learned, lost, f"{facts} Even the training loss fell by only {percent(learned)} of what is possible."
        )
    if lost > most_lost:
        return Diagnosis("overfitting", learned, lost, f"{facts} {percent(lost)} of the improvement does not generalize to new examples.")
    return Diagnosis(
        "good fit",
        learned,
        lost,
        f"{facts} The training loss fell by {percent(learned)} of what is possible; {percent(max(lost, 0))} of that does not generalize.",
    )


def diagnose_run(train: CurvePoints, valid: CurvePoints, floor: float = 0.0, most_lost: float = 0.15) -> Diagnosis:
    """The regime of a whole run: its final losses, whether the validation loss rose again, and whether it was still falling."""
    losses, checks = ([value for value in line[1]] for line in (train, valid))
    if not losses or not checks:
        raise BadInput("a diagnosis needs training and validation losses", where="diagnosis", fix="evaluate on a validation split")
    tail = losses[-max(1, round(TAIL * len(losses))) :]
    end, start = sum(tail) / len(tail), max(losses[0], checks[0])
    diagnosis = diagnose_losses(end, checks[-1], start, floor, most_lost)
    little = losses[0] - end < LITTLE * (losses[0] - floor)
    if (
        diagnosis.regime == "overfitting" and little and losses[0] > floor
    ):  # a high first validation loss does not mean that something was learned
        return diagnose_losses(end, checks[-1], losses[0], floor, most_lost)
    if diagnosis.regime in ("diverging", "overfitting"):
        return diagnosis
    best = min(checks)
    if not little and checks[-1] - best > most_lost * (start - end) / 2:
        at = valid[0][checks.index(best)]
        lost = (checks[-1] - best) / (start - end)
        return Diagnosis(
            "overfitting",
            diagnosis.learned,
            diagnosis.lost,
            f"{diagnosis.why} Validation was best at step {number(at)} and has risen since by {percent(lost)} of the improvement.",
        )
    enough = checks if len(checks) >= 4 else losses  # a short run has few evaluations, but many batches
    if len(enough) >= 4 and _is_falling(enough, start - end):
        return Diagnosis("still learning", diagnosis.learned, diagnosis.lost, f"{diagnosis.why} The loss was still falling at the end.")
    return diagnosis


def _is_falling(values: Sequence[float], learned: float) -> bool:
    """Whether the mean of the last quarter is still well below that of the quarter before it."""
    quarter = len(values) // 4
    before, last = (sum(part) / quarter for part in (values[-2 * quarter : -quarter], values[-quarter:]))
    return before - last > FALLING * learned


def tiny() -> Subject:
    """A small subject for the contract tests."""
    return images()
