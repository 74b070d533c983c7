"""Over- or underfitting: names the regime a run ended in, from its training and validation loss, and what helps.

Losses have no scale of their own, so two shares are used, with `start` the loss before anything was learned and `floor`
the loss nobody can beat (noise in the targets; 0 where it is not known):

    learned = (start - train) / (start - floor)     how much of what can be learned was learned
    lost    = (valid - train) / (start - train)     how much of that does not carry over to new examples
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
        "a larger or better scheduled learning rate": "lr, schedule= of a recipe",
    },
    "still learning": {"longer training": "more steps or epochs", "a larger learning rate": "lr, schedule= of a recipe"},
    "diverging": {
        "a smaller learning rate": "lr; look at 2 / lambda_max in `sonde look RUN spectrum`",
        "gradient clipping": "clip_norm= of a recipe",
        "better first weights": "initialize= of a recipe; `sonde look RUN flow`",
        "longer training, where there were few steps": "a batch norm needs some hundred of them to know its statistics",
    },
    "good fit": {},
}
ABOVE = 0.2
"""how far above its start, as a share of all there is to learn, a loss must end to count as worse than nothing learned"""
LITTLE = 0.2
"""share of all there is to learn below which nothing was learned well enough to be learned too well"""
TAIL = 0.1
"""share of the logged rows at the end that the training loss is averaged over: one batch alone is noisy"""
FALLING = 0.02
"""share of all that was learned which the last quarter must still bring for a run to count as unfinished"""


@dataclass(frozen=True)
class Diagnosis:
    """The regime, the numbers it follows from, and what helps."""

    regime: str
    learned: float
    lost: float
    why: str

    @property
    def remedies(self) -> Mapping[str, str]:
        """What to do -> how it is said here."""
        return REMEDIES[self.regime]


def why_not(subject: Subject) -> str:
    history = series(subject.metrics)
    if "loss" not in history or len(history["loss"][1]) < 2:
        return "there are no training losses yet"
    if any("phase" in row for row in subject.metrics):
        return "networks that take turns have no common loss that should fall"
    return "" if "valid/loss" in history else "there is no validation loss to compare with"


@guard
def read(subject: Subject, floor: float = 0.0, most_lost: Annotated[float, Range(0, 1)] = 0.15) -> list[Reading]:
    """Both losses with the verdict, and the remedies as a table.

    Args:
        floor: loss that no model can beat, such as the noise of the targets
        most_lost: share of what was learned that may fail to carry over before it counts as overfitting
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
    table = {"what helps": list(diagnosis.remedies), "how to say it here": list(diagnosis.remedies.values())}
    return [curve, Table(f"Against {diagnosis.regime}", table, note="In the order in which they are usually worth trying.")]


def diagnose_losses(
    train: float, valid: float, start: float, floor: float = 0.0, most_lost: float = 0.15, least_learned: float = 0.6
) -> Diagnosis:
    """The regime of two final losses, given the loss before anything was learned."""
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
        return Diagnosis("diverging", learned, lost, f"{facts} The loss ended above where it began.")
    if learned < LITTLE and worse:
        little = f"The validation loss ended above where it began, with {percent(learned)} of the training loss learned."
        return Diagnosis("diverging", learned, lost, f"{facts} {little}")
    if learned < least_learned and not worse:
        return Diagnosis(
            "underfitting", learned, lost, f"{facts} Only {percent(learned)} of the loss was learned, even on the training data."
        )
    if lost > most_lost:
        return Diagnosis("overfitting", learned, lost, f"{facts} {percent(lost)} of what was learned does not carry over to new examples.")
    return Diagnosis(
        "good fit", learned, lost, f"{facts} {percent(learned)} of the loss was learned, {percent(max(lost, 0))} of that was lost."
    )


def diagnose_run(train: CurvePoints, valid: CurvePoints, floor: float = 0.0, most_lost: float = 0.15) -> Diagnosis:
    """The regime of a whole run: its ends, whether validation turned upwards on the way, and whether it was still falling."""
    losses, checks = ([value for value in line[1]] for line in (train, valid))
    if not losses or not checks:
        raise BadInput("a diagnosis needs training and validation losses", where="diagnosis", fix="evaluate on a validation part")
    tail = losses[-max(1, round(TAIL * len(losses))) :]
    end, start = sum(tail) / len(tail), max(losses[0], checks[0])
    diagnosis = diagnose_losses(end, checks[-1], start, floor, most_lost)
    little = losses[0] - end < LITTLE * (losses[0] - floor)
    if diagnosis.regime == "overfitting" and little and losses[0] > floor:  # a high first check is no sign that something was learned
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
            f"{diagnosis.why} Validation was best at step {number(at)} and has risen since by {percent(lost)} of what was learned.",
        )
    enough = checks if len(checks) >= 4 else losses  # a short run has few checks, but many batches
    if len(enough) >= 4 and _falling(enough, start - end):
        return Diagnosis("still learning", diagnosis.learned, diagnosis.lost, f"{diagnosis.why} The loss was still falling at the end.")
    return diagnosis


def _falling(values: Sequence[float], learned: float) -> bool:
    """Whether the last quarter still brought a good part of all that was learned, against the quarter before it."""
    quarter = len(values) // 4
    before, last = (sum(part) / quarter for part in (values[-2 * quarter : -quarter], values[-quarter:]))
    return before - last > FALLING * learned


def tiny() -> Subject:
    return images()
