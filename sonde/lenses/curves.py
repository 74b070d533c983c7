"""Learning curves: loss, validation metrics, learning rate and gradient norm over the steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..core.metrics import direction
from ..core.numbers import number
from ..core.reading import Lines, Reading, Subject
from .tools.readonly import guard
from .tools.tiny import images

REPORT = {"position": 10, "section": "Learning curves"}
CurvePoints = tuple[list[float], list[float]]
"""steps and values"""
NOT_METRICS = ("step", "epoch", "model_step", "phase")
TRAINING_METRICS = {"lr": "Learning rate", "grad_norm": "Gradient norm"}
COLORS = {"train": 0, "valid": 1, "test": 2}
LOGARITHMIC = 20  # a positive metric that spans more than this factor is drawn on a logarithmic axis
SMOOTHED = 60  # a line with this many points gets a running mean over a twentieth of them


def why_not(subject: Subject) -> str:
    """Why the lens does not apply to a subject, or ''; `guard` turns it into an error."""
    return "" if series(subject.metrics) else "there are no metrics yet"


@guard
def read(subject: Subject) -> list[Reading]:
    """One panel per metric; training and validation values of the same metric share a panel."""
    grouped: dict[str, dict[str, CurvePoints]] = {}
    for key, line in without_copies(series(subject.metrics)).items():
        split, _, metric = key.rpartition("/")
        grouped.setdefault(metric, {})[metric if metric in TRAINING_METRICS else split or "train"] = line
    for lines in grouped.values():  # test metrics are a single point at the end, not a curve
        longer = {label: line for label, line in lines.items() if len(line[0]) > 1}
        for label in set(lines) - set(longer or lines):
            del lines[label]
    first = [name for name in ("loss", "accuracy") if name in grouped]
    last = [name for name in TRAINING_METRICS if name in grouped]
    return [panel(name, grouped[name]) for name in (*first, *sorted(set(grouped) - {*first, *last}), *last)]


def panel(key: str, lines: Mapping[str, CurvePoints], colors: Mapping[str, int] = COLORS) -> Reading:
    """One metric, one line per label; `colors` {label: index in the palette} gives a label the same color in every panel."""
    split, _, metric = key.rpartition("/")
    flat = [value for _, values in lines.values() for value in values if value == value]
    log = metric != "lr" and direction(metric) != "max" and bool(flat) and min(flat) > 0 and max(flat) > LOGARITHMIC * min(flat)
    words = TRAINING_METRICS.get(metric, metric.replace("_", " "))
    title = f"{split} {words}".strip()
    smooth = {label: len(steps) // 20 | 1 for label, (steps, _) in lines.items() if len(steps) >= SMOOTHED and metric != "lr"}
    notes = [_note(metric, lines) if "valid" in lines else ""]
    if smooth:
        notes.append(f"The thick line is a running mean over {max(smooth.values())} rows.")
    return Lines(
        title[:1].upper() + title[1:],
        {label: values for label, (_, values) in lines.items()},
        axes=["step", metric],
        note=" ".join(filter(None, notes)),
        x={label: steps for label, (steps, _) in lines.items()},
        log=["y"] if log else [],
        colors=colors,
        smooth=smooth,
    )


def _note(metric: str, lines: Mapping[str, CurvePoints]) -> str:
    at = best(metric, lines["valid"])
    if at is None:
        return ""
    word = "Highest" if direction(metric) == "max" else "Lowest"
    return f"{word} validation {metric.replace('_', ' ')} {number(at[0])} at step {number(at[1])}."


def best(metric: str, line: CurvePoints) -> tuple[float, float] | None:
    """(value, step) of the best value of a line, or None where no value is better than another."""
    good = [(value, step) for step, value in zip(*line, strict=True) if value == value]
    if not good or direction(metric) is None:
        return None
    return max(good, key=lambda pair: pair[0]) if direction(metric) == "max" else min(good, key=lambda pair: pair[0])


def series(metrics: Sequence[Mapping[str, Any]]) -> dict[str, CurvePoints]:
    """Name -> (steps, values) of every metric; a missing value becomes NaN, so that the line has a gap there."""
    history: dict[str, CurvePoints] = {}
    for row in metrics:
        step = row.get("step")
        for name, value in row.items():
            if name in NOT_METRICS or isinstance(step, bool) or not isinstance(step, (int, float)):
                continue
            if value is None or (isinstance(value, (int, float)) and not isinstance(value, bool)):
                steps, values = history.setdefault(name, ([], []))
                steps.append(step)
                values.append(float("nan") if value is None else float(value))
    return history


def without_copies(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Metrics without terms such as nll that equal the whole loss of their split."""
    distinct = {}
    for key, value in metrics.items():
        split, slash, metric = key.rpartition("/")
        if metric == "loss" or not _nearly_equal(value, metrics.get(f"{split}{slash}loss")):
            distinct[key] = value
    return distinct


def _nearly_equal(a: Any, b: Any) -> bool:
    """Equal to within rounding: numbers, or lists of them to any depth."""
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(_nearly_equal, a, b))
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        return math.isclose(a, b, rel_tol=1e-6) or (a != a and b != b)
    return False


def tiny() -> Subject:
    """A small subject for the contract tests."""
    return images()
