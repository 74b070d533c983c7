"""Learning-rate range test, on a quadratic whose limit 2 / lambda_max is known, and by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from sonde.core.batch import Batch
from sonde.core.errors import BadInput
from sonde.core.reading import Subject
from sonde.core.terms import Terms
from sonde.lenses import rate_range
from sonde.lenses.tools.tiny import values


class Squares:
    def __call__(self, model: nn.Module, batch: Batch) -> Terms:
        return Terms(nll=(0.5 * (model(batch.x) - batch.y).square().sum(), len(batch)))


def quadratic(scale: float) -> tuple[Subject, float]:
    """Least squares without noise, and its largest curvature."""
    draw = torch.Generator().manual_seed(5)
    x = scale * torch.randn(60, 4, generator=draw) * torch.tensor([1.0, 0.5, 2.0, 1.0])
    model = nn.Linear(4, 1, bias=False)
    subject = Subject(model, Batch(x=x, y=x @ torch.tensor([[1.0], [2.0], [-1.0], [0.5]])), Squares())
    return subject, float(torch.linalg.eigvalsh(x.T @ x / 60)[-1])


@pytest.mark.parametrize("scale", [0.2, 1.0, 5.0])
def test_it_explodes_just_beyond_two_over_the_curvature(scale) -> None:
    subject, curvature = quadratic(scale)
    reading = rate_range.read(subject, highest=1000.0, lowest=1e-4, steps=400)
    limit = 2 / curvature
    assert reading.results["limit"] == pytest.approx(limit, rel=1e-3) and f"2 / lambda_max = {limit:.2g}" in reading.note
    assert reading.results["ended"] and limit < reading.x[-1] < 3 * limit
    assert 0.005 * limit < reading.results["suggestion"] < limit
    assert f"Try {reading.results['suggestion']:.2g} with sgd" in reading.note and "explodes at" in reading.note


def test_the_picture_shows_the_fall_and_marks_the_rates() -> None:
    """The y axis ends a quarter above the first loss, not at the explosion; three rates are marked."""
    subject, _ = quadratic(1.0)
    reading = rate_range.read(subject, highest=1000.0, steps=400)
    assert max(reading.values["batch loss"]) > 2 * reading.top
    assert reading.top == pytest.approx(1.25 * reading.values["batch loss"][0])
    smooth = reading.values["smoothed"]
    assert list(reading.marks.values()) == [
        reading.results["suggestion"],
        reading.x[smooth.index(min(smooth))],
        reading.x[-1],
    ]


def test_the_rates_rise_geometrically() -> None:
    reading = rate_range.read(values(), lowest=1e-4, highest=1e-2, steps=21)
    assert reading.x == pytest.approx([1e-4 * 10 ** (step / 10) for step in range(21)], rel=1e-12)
    assert not reading.results["ended"] and "has not exploded" in reading.note


def test_smoothing_and_suggestion_by_hand() -> None:
    assert rate_range.smooth_losses([4.0, 2.0]) == pytest.approx([4.0, (0.8 * 0.8 + 0.4) / 0.36], rel=1e-12)
    rates = [10.0**k for k in range(7)]
    assert rate_range.suggestion(rates, [9.0, 9.0, 8.0, 5.0, 1.0, 0.9, 7.0], reach=1) == 1e3
    assert rate_range.suggestion(rates, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], reach=1) is None


def test_a_loss_that_never_falls_gets_no_suggestion() -> None:
    subject = Subject(nn.Linear(2, 1), Batch(x=torch.zeros(7, 2), y=torch.ones(7, 1)), _Constant())
    assert "No rate up to" in rate_range.read(subject).note


class _Constant:
    def __call__(self, model: nn.Module, batch: Batch) -> Terms:
        return Terms(nll=(0 * model(batch.x).sum() + 1.0 + batch.y.sum(), len(batch)))


def test_bad_options_in_one_line() -> None:
    with pytest.raises(BadInput, match="below the highest"):
        rate_range.read(values(), lowest=1.0, highest=0.1)
    with pytest.raises(BadInput, match="has no learning rate"):
        rate_range.read(values(), rule="wolfe")
    with pytest.raises(BadInput, match="did you mean"):
        rate_range.read(values(), rule="sdg")


def test_infinite_losses_end_the_test() -> None:
    class Wild(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 1)

        def forward(self, x):
            return torch.exp(self.inner(x) ** 2)

    subject, _ = quadratic(1.0)
    subject.model = Wild()
    reading = rate_range.read(subject, highest=100.0)
    assert reading.results["ended"] and all(math.isfinite(loss) for loss in reading.values["batch loss"])
