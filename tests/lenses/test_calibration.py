"""Calibration against scikit-learn and against numbers worked by hand."""

from __future__ import annotations

import pytest
import torch
from sklearn.calibration import calibration_curve
from torch import nn

from sonde.core.batch import Batch
from sonde.core.errors import BadInput
from sonde.core.reading import Subject
from sonde.lenses import calibration
from sonde.lenses.tools.tiny import images


class FixedOutputs(nn.Module):
    def __init__(self, chances: torch.Tensor) -> None:
        super().__init__()
        self.chances = nn.Parameter(chances)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.chances[x.long().flatten()]


class Same:
    def predict(self, output: torch.Tensor) -> torch.Tensor:
        return output


def subject(chances: torch.Tensor, y: torch.Tensor) -> Subject:
    return Subject(FixedOutputs(chances), Batch(x=torch.arange(len(y)).float(), y=y), Same())


@pytest.mark.parametrize("bins", [1, 7, 10, 33])
def test_the_curve_equals_scikit_learn(bins: int) -> None:
    rng = torch.Generator().manual_seed(0)
    chances = (3 * torch.randn(613, 5, generator=rng, dtype=torch.float64)).softmax(-1)
    y = torch.randint(0, 5, (613,), generator=rng)
    y = torch.where(torch.rand(613, generator=rng) < 0.7, chances.argmax(-1), y)
    reading, counts = calibration.read(subject(chances, y), bins=bins)
    sure = chances.amax(-1).numpy()
    right, confidence = calibration_curve((chances.argmax(-1) == y).numpy(), sure, n_bins=bins)
    assert reading.values["accuracy"] == pytest.approx(right.tolist(), abs=1e-12)
    assert reading.x["accuracy"] == pytest.approx(confidence.tolist(), abs=1e-12)
    assert sum(counts.values["predictions"]) == 613 and len(counts.edges) == bins + 1
    weights = [n for n in counts.values["predictions"] if n]
    error = sum(n * abs(a - b) for n, a, b in zip(weights, right, confidence, strict=True)) / 613
    assert reading.results["error"] == pytest.approx(error, abs=1e-12)


def test_by_hand() -> None:
    """Two answers of 0.9, one right: off by 0.4; two of 0.6, both right: off by 0.4; so 40 %, and as a whole as sure as right."""
    chances = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.4, 0.6], [0.4, 0.6]])
    reading, counts = calibration.read(subject(chances, torch.tensor([0, 1, 1, 1])), bins=4)
    assert reading.results["error"] == pytest.approx(0.4, abs=1e-6) and "maximum over bins 40.00%" in reading.note
    assert "Mean confidence 75.00%, accuracy 75.00%: well calibrated" in reading.note
    assert counts.values["predictions"] == [0, 0, 2, 2]


def test_an_answer_on_a_bound_belongs_below() -> None:
    curve = calibration.curve(torch.tensor([0.5, 0.5, 1.0, 0.0]).double(), torch.tensor([True, False, True, True]), bins=2)
    assert curve.counts.tolist() == [3, 1]


def test_what_is_no_probability_is_refused() -> None:
    with pytest.raises(BadInput, match="not probabilities"):
        calibration.read(subject(torch.tensor([[3.0, -1.0]]), torch.tensor([0])))
    scores = images()
    assert (
        calibration.why_not(Subject(scores.model, scores.batch))
        == "there is no objective with a `predict` that turns scores into probabilities"
    )
    with pytest.raises(BadInput, match="no example has a label"):
        calibration.read(subject(torch.tensor([[0.5, 0.5]]), torch.tensor([-100])))
