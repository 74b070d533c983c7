"""The recipe that overfits, and its remedies: each moves the number it is meant to move."""

from __future__ import annotations

import pytest

import sonde
from sonde.core.errors import BadInput


def run_of(where, **options):
    return sonde.train("overfit", run=where, threads=1, quiet=True, **{"steps": 1000, "width": 64, **options})


def train_error(run):
    return 2 * next(row["loss"] for row in reversed(run.metrics) if "loss" in row)


def zeros(run):
    weights = [p for p in run.model().parameters() if p.ndim > 1]
    return sum(int((w == 0).sum()) for w in weights) / sum(w.numel() for w in weights)


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    return run_of(tmp_path_factory.mktemp("overfit") / "bare")


def test_without_a_remedy_it_learns_by_heart(bare):
    assert train_error(bare) < 0.05 < 0.3**2 < bare.result["metrics"]["valid/squared_error"]
    assert bare.look("diagnosis")[0].title == "Diagnosis: overfitting" and zeros(bare) == 0
    assert [len(source) for source in bare.data.splits.values()] == [30, 45, 45]


@pytest.mark.parametrize("options", [{"penalty": "l2"}, {"penalty": "decoupled"}, {"dropout": 0.1}, {"jitter": 0.05}])
def test_a_remedy_raises_the_training_error_and_lowers_the_other(bare, options, tmp_path):
    run = run_of(tmp_path / "run", **options)
    assert train_error(run) > train_error(bare)
    assert run.result["metrics"]["valid/squared_error"] < bare.result["metrics"]["valid/squared_error"]


def test_l1_leaves_real_zeros(tmp_path):
    assert zeros(run_of(tmp_path / "run", penalty="l1")) > 0.3


def test_early_stopping_goes_back_to_the_best(bare, tmp_path):
    run = run_of(tmp_path / "run", patience=5)
    assert run.result["steps"] < 1000
    checks = [row["valid/loss"] for row in run.metrics if "valid/loss" in row]
    assert run.result["metrics"]["valid/loss"] == pytest.approx(min(checks))
    assert min(checks) < bare.result["metrics"]["valid/loss"]


def test_a_strength_without_a_penalty_is_refused(tmp_path):
    with pytest.raises(BadInput, match="no effect without a penalty"):
        run_of(tmp_path / "run", strength=0.1)
