"""Sweeps: all combinations, ranked, resumable; members trained together equal members trained alone."""

import pytest
import torch
from torch import nn

import sonde
from sonde.api.sweeps import sweep
from sonde.core.batch import Data
from sonde.core.errors import BadInput
from sonde.data.tensors import TensorSource
from sonde.nn.activations import activation
from sonde.objectives.gaussian import Gaussian
from sonde.objectives.penalized import Penalized
from sonde.optim.build import optimizer
from tests.engine.small import line


def test_members_trained_together_equal_members_trained_alone(tmp_path):
    axes = {"lr": [0.01, 0.05, 0.2], "seed": [0, 1, 4]}
    together = sweep(line, axes, folder=tmp_path / "a", threads=1, quiet=True)
    alone = sweep(line, axes, folder=tmp_path / "b", threads=1, quiet=True, vectorize=False)
    assert together.notices == []
    for row, other in zip(together.rows, alone.rows, strict=True):
        assert row.setting == other.setting and len(row.runs) == 3
        for run, peer in zip(row.runs, other.runs, strict=True):
            mine, theirs = sonde.open_run(run, recipe=line), sonde.open_run(peer, recipe=line)
            assert [r["step"] for r in mine.metrics] == [r["step"] for r in theirs.metrics]
            for a, b in zip(mine.metrics, theirs.metrics, strict=True):
                for name in a:
                    assert a[name] == pytest.approx(b[name], rel=2e-4, abs=2e-5), (run.name, a["step"], name)
            for name, value in theirs.model().state_dict().items():
                torch.testing.assert_close(mine.model().state_dict()[name], value, rtol=1e-3, atol=1e-4)


def restrained(l2: float = 0.0, variance: float = 1.0, seed: int = 0):
    """A recipe whose options reach the objective."""
    plain = Gaussian(variance=variance)
    return line(seed=seed).replace(objective=Penalized(plain, l2=l2) if l2 else plain)


@pytest.mark.parametrize("axes", [{"variance": [1.0, 4.0]}, {"l2": [0.1, 1.0]}, {"l2": [0.5]}])
def test_each_member_has_its_own_objective(tmp_path, axes):
    together, alone = (
        sweep(restrained, {**axes, "seed": [0, 1]}, folder=tmp_path / str(way), threads=1, quiet=True, vectorize=way)
        for way in (True, False)
    )
    for row, other in zip(together.rows, alone.rows, strict=True):
        assert row.setting == other.setting
        assert row.mean("valid/loss") == pytest.approx(other.mean("valid/loss"), rel=2e-4)


class Wobble(nn.Module):
    """A network of the user."""

    def __init__(self, power):
        super().__init__()
        self.inner, self.power = nn.Linear(1, 1), power

    def forward(self, x):
        return self.inner(x**self.power)


def frozen_first(seed):
    net = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
    net[0].requires_grad_(False)
    return net


def shaken(batch, rng):
    return batch.replace(x=batch.x + torch.randn(batch.x.shape, generator=rng))


def other(kind: str = "", value: float = 0.0, seed: int = 0):
    """A recipe in which an option reaches a place other than the learning rate."""
    plain = line(seed=seed)
    width = nn.Linear
    return plain.replace(
        **{
            "": lambda: {},
            "augment": lambda: {
                "augment": (lambda b, g: b.replace(x=b.x + value * torch.randn(b.x.shape, generator=g))) if value else None
            },
            "bf16": lambda: {"precision": "bf16" if value else "float32"},
            "patience": lambda: {"patience": int(value)},
            "sine": lambda: {"model": lambda: nn.Sequential(width(1, 8), activation("sine", frequency=1 + value), width(8, 1))},
            "slope": lambda: {"model": lambda: nn.Sequential(width(1, 8), nn.LeakyReLU(value), width(8, 1))},
            "user": lambda: {"model": lambda: Wobble(1 + value)},
            "frozen": lambda: {"model": lambda: frozen_first(seed), "clip_norm": 1.0 + value},
            "double": lambda: {"model": lambda: nn.Sequential(width(1, 8), nn.Tanh(), width(8, 1)).double(), "data": in_double(plain.data)},
            "skip": lambda: {"on_bad": "skip" if value else "stop"},
            "clip": lambda: {"clip_norm": value},
            "decay": lambda: {"optimizer": optimizer("adamw", lr=0.05, weight_decay=value)},
        }[kind]()
    )


def in_double(data):
    sources = (TensorSource(part.fields["x"].double(), part.fields["y"].double()) for part in (data.train, data.valid, data.test))
    return Data(*sources, name="line", task="values")


@pytest.mark.parametrize("kind", ["augment", "bf16", "patience", "sine", "slope", "user", "frozen", "double", "skip", "clip", "decay"])
def test_members_that_differ_in_anything_equal_the_runs_alone(tmp_path, kind):
    together, alone = (
        sweep(other, {"value": [0.0, 2.0], "seed": [0, 1]}, folder=tmp_path / str(way), threads=1, quiet=True, vectorize=way, kind=kind)
        for way in (True, False)
    )
    by_value = {row.setting["value"]: row for row in alone.rows}
    for row in together.rows:
        peer = by_value[row.setting["value"]]
        for name, values in row.metrics.items():
            assert values == pytest.approx(peer.metrics[name], rel=5e-4), (kind, name)


def test_the_table_ranks_by_the_monitored_metric_with_mean_and_spread(tmp_path):
    result = sweep(line, {"lr": [1e-6, 0.05], "seed": [0, 1]}, folder=tmp_path / "s", threads=1, quiet=True)
    assert [row.setting["lr"] for row in result.rows] == [0.05, 1e-6]
    values = result.best.metrics["valid/loss"]
    assert result.best.mean("valid/loss") == pytest.approx(sum(values) / 2)
    assert result.best.spread("valid/loss") == pytest.approx(abs(values[0] - values[1]) / 2**0.5)
    picture = result.reading()
    assert picture.dots["valid/loss"][0] == values and "valid/loss" not in picture.title
    lines = result.table().splitlines()
    assert lines[0].startswith("rank") and lines[2].startswith("1     0.05") and "±" in lines[2]


def test_a_sweep_goes_on_where_it_stopped(tmp_path):
    sweep(line, {"width": [4, 6]}, folder=tmp_path / "s", quiet=True, steps=5)
    marks = {path: (path / "result.json").stat().st_mtime_ns for path in (tmp_path / "s").iterdir() if path.is_dir()}
    more = sweep(line, {"width": [4, 6, 9]}, folder=tmp_path / "s", quiet=True, steps=5)
    assert len(more.rows) == 3
    for path, mark in marks.items():
        assert (path / "result.json").stat().st_mtime_ns == mark
    with pytest.raises(BadInput, match="already contains a different sweep"):
        sweep(line, {"width": [4]}, folder=tmp_path / "s", quiet=True, steps=6)


def test_what_cannot_be_trained_together_is_said(tmp_path):
    result = sweep(line, {"dropout": [0.1], "seed": [0, 1]}, folder=tmp_path / "s", quiet=True, steps=4)
    assert "dropout" in result.notices[0] and "one by one" in result.table()
    result = sweep(line, {"width": [4, 5]}, folder=tmp_path / "t", quiet=True, steps=4)
    assert "differ in more than" in result.notices[0]


def test_a_member_that_diverges_is_ranked_last_and_spoils_no_other(tmp_path):
    fine = sweep(line, {"lr": [0.05]}, folder=tmp_path / "a", threads=1, quiet=True)
    result = sweep(wild, {"lr": [0.05, 1e30]}, folder=tmp_path / "b", threads=1, quiet=True)
    assert [row.setting["lr"] for row in result.rows] == [0.05, 1e30]
    assert result.rows[1].failures and "loss" in result.rows[1].failures[0]
    assert result.best.mean("valid/loss") == pytest.approx(fine.best.mean("valid/loss"), rel=1e-4)


def wild(lr: float = 0.05):
    return line(lr=lr)


@pytest.mark.parametrize("method", ["random", "tpe"])
def test_drawn_settings_stay_in_range_and_repeat(tmp_path, method):
    pytest.importorskip("optuna")
    axes = {"lr": [1e-4, 1e-1], "width": [3, 9], "seed": [0]}
    first = sweep(line, axes, method=method, trials=5, folder=tmp_path / "a", quiet=True, steps=4)
    again = sweep(line, axes, method=method, trials=5, folder=tmp_path / "b", quiet=True, steps=4)
    assert [row.setting for row in first.rows] == [row.setting for row in again.rows]
    assert all(1e-4 <= row.setting["lr"] <= 1e-1 and 3 <= row.setting["width"] <= 9 for row in first.rows)
    assert len({row.setting["lr"] for row in first.rows}) == 5


@pytest.mark.parametrize(
    "axes, options, words",
    [
        ({"lr": []}, {}, "has no values"),
        ({"rate": [1]}, {}, "has no option 'rate'"),
        ({"lr": ["fast"]}, {}, "must be a number"),
        ({"lr": [1e-3]}, {"method": "gird"}, "did you mean 'grid'"),
        ({"lr": [1e-3]}, {"method": "tpe"}, "needs a number of trials"),
    ],
)
def test_a_wrong_sweep_is_refused_before_anything_is_trained(tmp_path, axes, options, words):
    with pytest.raises(BadInput, match=words):
        sweep(line, axes, folder=tmp_path / "s", **options)
    assert list(tmp_path.iterdir()) == []
