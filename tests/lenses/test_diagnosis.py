"""Diagnosis: regimes of curves drawn by hand, and of polynomials whose regime is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sonde.core.errors import BadInput
from sonde.core.reading import Subject
from sonde.lenses import diagnosis
from sonde.lenses.tools.tiny import images

STEPS = list(range(0, 100))


def run_of(train, valid):
    return diagnosis.diagnose_run((STEPS, [train(s) for s in STEPS]), (STEPS[::5], [valid(s) for s in STEPS[::5]]))


@pytest.mark.parametrize(
    "train, valid, regime",
    [
        (lambda s: 0.1 + 2 * math.exp(-s / 5), lambda s: 0.15 + 2 * math.exp(-s / 5), "good fit"),
        (lambda s: 0.01 + 2 * math.exp(-s / 5), lambda s: 0.8 + 1.2 * math.exp(-s / 5), "overfitting"),
        (lambda s: 0.2 + 2 * math.exp(-s / 5), lambda s: 0.3 + 2 * math.exp(-s / 5) + max(0, s - 40) * 0.004, "overfitting"),
        (lambda s: 1.8 + 0.2 * math.exp(-s / 5), lambda s: 1.8 + 0.2 * math.exp(-s / 5), "underfitting"),
        (lambda s: 2 * math.exp(-s / 60), lambda s: 0.02 + 2 * math.exp(-s / 60), "still learning"),
        (lambda s: 2.0 + 0.1 * s, lambda s: 2.0 + 0.1 * s, "diverging"),
        (lambda s: math.nan if s > 90 else 1.0, lambda s: 1.0, "diverging"),
    ],
)
def test_regimes_of_curves(train, valid, regime):
    verdict = run_of(train, valid)
    assert verdict.regime == regime and verdict.why
    assert bool(verdict.remedies) == (regime != "good fit")


def test_a_short_run_with_few_checks_is_still_learning():
    losses = [2.3 - 0.02 * s for s in range(60)]
    verdict = diagnosis.diagnose_run((list(range(60)), losses), ([20, 40, 60], [1.9, 1.5, 1.1]))
    assert verdict.regime == "still learning" and "longer training" in verdict.remedies
    assert diagnosis.diagnose_run(([0, 1], [2.0, 1.9]), ([1], [1.9])).regime == "underfitting"


@pytest.mark.parametrize("train, regime", [(0.45, "overfitting"), (0.79, "overfitting"), (0.99, "diverging"), (1.1, "diverging")])
def test_validation_far_above_the_start_is_no_underfitting(train, regime):
    assert diagnosis.diagnose_losses(train, valid=5.0, start=1.0).regime == regime
    assert diagnosis.diagnose_losses(train, valid=1.1, start=1.0).regime == "underfitting"


def test_a_few_steps_that_taught_hardly_anything_have_taught_nothing_too_well():
    """Validation swings by a tenth of what little was learned, as it does before the statistics of a batch norm settle."""
    verdict = diagnosis.diagnose_run(([0, 1, 2], [2.0, 1.95, 1.9]), ([1, 2], [1.92, 1.94]))
    assert verdict.regime == "underfitting" and "fell by only 5.00 %" in verdict.why
    assert diagnosis.diagnose_run(([0, 1, 2], [2.0, 1.0, 0.5]), ([1, 2], [0.5, 0.65])).regime == "overfitting"
    for first in (2.5, 5.0):  # statistics that have not settled make the first checks high
        verdict = diagnosis.diagnose_run(([0, 1, 2], [2.3, 2.25, 2.2]), ([1, 2], [first, 5.3]))
        assert verdict.regime == ("underfitting" if first == 5.0 else "diverging") and any(
            "longer training" in each for each in verdict.remedies
        )


def test_a_game_has_no_diagnosis():
    rows = [{"step": s, "loss": 2.0, "valid/loss": 2.0, "phase": s % 2} for s in range(4)]
    assert "trained in turns" in diagnosis.why_not(Subject(None, None, metrics=rows))


def test_shares_by_hand():
    verdict = diagnosis.diagnose_losses(train=0.4, valid=0.7, start=2.0, floor=0.0)
    assert (verdict.learned, verdict.lost) == (pytest.approx(0.8), pytest.approx(0.1875)) and verdict.regime == "overfitting"
    assert diagnosis.diagnose_losses(0.4, 0.5, 2.0).regime == "good fit"
    assert (
        diagnosis.diagnose_losses(1.0, 1.1, 2.0).regime == "underfitting"
        and diagnosis.diagnose_losses(1.0, 1.1, 2.0, floor=0.9).regime == "good fit"
    )


@given(shift=st.floats(-50, 50), scale=st.floats(0.01, 100), train=st.floats(0, 1.9), gap=st.floats(0, 3))
def test_shift_and_scale_of_the_loss_change_nothing(shift, scale, train, gap):
    plain = diagnosis.diagnose_losses(train, train + gap, 2.0)
    moved = diagnosis.diagnose_losses(*(shift + scale * value for value in (train, train + gap, 2.0, 0.0)))
    near_the_edge = min(abs(plain.learned - 0.6), abs(plain.lost - 0.15)) < 1e-6
    assert plain.regime == moved.regime or near_the_edge
    assert moved.learned == pytest.approx(plain.learned, abs=1e-6)


@pytest.mark.parametrize("degree, regime", [(0, "underfitting"), (1, "underfitting"), (7, "good fit"), (19, "overfitting")])
def test_polynomials(degree, regime):
    random = np.random.default_rng(0)
    x, new = np.linspace(-1, 1, 24), random.uniform(-1, 1, 400)
    y, truth = (np.sin(2 * np.pi * t) + 0.2 * random.normal(size=t.shape) for t in (x, new))
    fit = np.polynomial.Legendre.fit(x, y, degree, domain=[-1, 1])
    errors = [np.mean((fit(t) - v) ** 2) for t, v in ((x, y), (new, truth))]
    verdict = diagnosis.diagnose_losses(*errors, start=float(np.var(truth)), floor=0.04)
    assert verdict.regime == regime, verdict


def test_reading_names_the_regime_and_what_helps():
    rows = [{"step": s, "loss": 0.01 + 2 / (1 + s), "valid/loss": 1.5 if s else 2.0} for s in STEPS]
    curve, table = diagnosis.read(Subject(None, None, metrics=rows))
    assert curve.title == "Diagnosis: overfitting" and "does not generalize" in curve.note
    assert "dropout" in table.values["what helps"] and "early stopping" in table.values["what helps"]
    good = [{"step": s, "loss": 0.01 + 2 / (1 + s) ** 2, "valid/loss": 0.02 + 2 / (1 + s) ** 2} for s in STEPS]
    assert [reading.title for reading in diagnosis.read(Subject(None, None, metrics=good))] == ["Diagnosis: good fit"]


def test_bad_input():
    with pytest.raises(BadInput, match="not above the floor"):
        diagnosis.diagnose_losses(0.5, 0.5, 1.0, floor=1.0)
    with pytest.raises(BadInput, match="needs training and validation"):
        diagnosis.diagnose_run(([], []), ([], []))
    with pytest.raises(BadInput, match="'most_lost'"):
        diagnosis.read(images(), most_lost=2.0)
    assert "no validation loss" in diagnosis.why_not(Subject(None, None, metrics=[{"step": s, "loss": 1.0} for s in range(3)]))
