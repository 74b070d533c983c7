"""Sweeps: all combinations, ranked, resumable."""

import pytest

from sonde.api.sweeps import sweep
from sonde.core.errors import BadInput
from tests.engine.small import line


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
