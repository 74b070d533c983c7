"""--precision: bf16 gives float32's values up to rounding, `auto` measures once and keeps its choice, and slowness is announced."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import sonde
from sonde.core import renamed
from sonde.core.errors import BadInput, Preempted
from sonde.engine import checkpoint, precision
from sonde.runs import checkpoints
from tests.engine import harness
from tests.engine.harness import differences, digest
from tests.engine.small import line, tagger
from tests.engine.test_train import StopAt

ZEN4 = {"avx512_f": True, "avx512_bf16": True, "cpu_name": "zen4"}
SAPPHIRE = {**ZEN4, "amx_bf16": True, "amx_tile": True}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "sonde" / "precision.json"


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, float]]:
    """What measuring will give, (float32, bf16) for each time it is asked, on a machine with bf16 arithmetic."""
    queue: list[tuple[float, float]] = []
    monkeypatch.setattr(precision, "describe_bf16", lambda device: ("avx512_bf16", ""))
    monkeypatch.setattr(precision, "time_precisions", lambda job, batch: dict(zip(("float32", "bf16"), queue.pop(0))))
    return queue


@pytest.fixture
def without_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "describe_bf16", lambda device: ("", "this processor has no bf16 arithmetic"))
    monkeypatch.setattr(precision, "time_precisions", lambda job, batch: pytest.fail("measured without need"))


def go(path: Path, stop: int = 99, recipe: Any = None, **options: Any) -> sonde.Run:
    """Start or continue a run, up to a step."""
    recipe = (recipe or line(steps=6)).replace(callbacks=[StopAt(stop)])
    try:
        sonde.train(recipe, run=path, **{"threads": 1, "quiet": True, **options})
    except Preempted:
        assert stop < 99
    return sonde.open_run(path, recipe)


def used(run: sonde.Run) -> str:
    return run.info["fingerprint"]["precision"]


@pytest.mark.parametrize(
    "flags, onednn, enabled, expected",
    [
        (ZEN4, "avx512_core_bf16", True, "avx512_bf16"),
        (ZEN4, "avx512_core_bf16", False, ""),
        (ZEN4, "avx512_core_vnni", True, ""),
        (ZEN4, "avx2", True, ""),
        (SAPPHIRE, "avx512_core_amx_fp16", True, "amx_bf16"),
        (SAPPHIRE, "avx512_core_amx", True, "amx_bf16"),
        (SAPPHIRE, "avx512_core_fp16", True, "avx512_bf16"),
        ({"avx2": True}, "avx2", True, ""),
        ({"avx512_f": True}, "avx512_core_vnni", True, ""),
        ({"neon": True, "bf16": True}, "default", True, "bf16"),
        ({"neon": True}, "default", True, ""),
    ],
)
def test_which_processors_have_the_arithmetic(flags, onednn, enabled, expected):
    assert precision.bf16_arithmetic(flags, onednn, enabled) == expected


def test_why_there_is_none(monkeypatch):
    cpu = torch.device("cpu")
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: ZEN4)
    monkeypatch.setattr(precision, "fingerprint", lambda: {"onednn": "avx512_core_bf16"})
    assert precision.describe_bf16(cpu) == ("avx512_bf16", "")
    monkeypatch.setattr(precision, "fingerprint", lambda: {"onednn": "avx2"})
    assert precision.describe_bf16(cpu) == ("", "the bf16 arithmetic of this processor is turned off: oneDNN is limited to avx2")
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True})
    assert precision.describe_bf16(cpu) == ("", "this processor has no bf16 arithmetic (AVX-512 BF16, AMX)")


def test_the_option_wins_over_the_recipe(tmp_path, times):
    recipe = line(steps=2)
    assert used(go(tmp_path / "a", recipe=recipe)) == "float32"
    assert used(go(tmp_path / "b", recipe=recipe, precision="bf16")) == "bf16"
    assert used(go(tmp_path / "c", recipe=recipe.replace(precision="bf16"))) == "bf16"
    assert used(go(tmp_path / "d", recipe=recipe.replace(precision="bf16"), precision="float32")) == "float32"
    times.append((2.0, 1.0))
    assert used(go(tmp_path / "e", recipe=recipe.replace(precision="auto"))) == "bf16" and not times
    with pytest.raises(BadInput, match="precision"):
        go(tmp_path / "f", precision="fp16")


@pytest.mark.parametrize("recipe", ["tiny_mlp", "fashion_cnn", "char_lm"])
def test_every_recipe_has_the_option(recipe):
    from sonde.cli import _names
    from sonde.cli._options import by_name
    from sonde.cli.commands import train

    merged = _names.merge_options(by_name(train.options(), "sonde train"), _names.recipe(recipe))
    assert "precision" in merged and "precision" not in _names.recipe(recipe).options


@pytest.mark.parametrize(
    "seconds, expected, speedup", [((3.0, 2.0), "bf16", 1.5), ((2.0, 4.0), "float32", 0.5), ((1.05, 1.0), "float32", 1.05)]
)
def test_auto_takes_bf16_only_where_it_is_faster(tmp_path, times, capsys, seconds, expected, speedup):
    times.append(seconds)
    run = go(tmp_path / "r", precision="auto", quiet=False)
    assert used(run) == run.info["precision"]["chosen"] == expected and run.info["run_options"]["precision"] == "auto"
    assert run.info["precision"]["speedup"] == pytest.approx(speedup, rel=1e-12)
    [event] = [event for event in run.events if event["event"] == "precision"]
    assert event["message"] in capsys.readouterr().err and f"precision: {expected}; bf16 is {speedup:.2f} times as fast" in event["message"]


def test_a_machine_measures_a_model_once(tmp_path, times, own_cache):
    times += [(3.0, 1.0), (1.0, 3.0)]
    assert used(go(tmp_path / "a", precision="auto")) == "bf16"
    again = go(tmp_path / "b", precision="auto", seed=4)
    assert used(again) == "bf16" and "measured before" in again.info["precision"]["message"] and len(times) == 1
    assert used(go(tmp_path / "c", recipe=tagger(steps=3), precision="auto")) == "float32"  # another model
    assert len(json.loads(own_cache.read_text())) == 2


@pytest.mark.parametrize("damage", ["{", "[1]", '{"a": 1}', '{"KEY": {"float32": 1.0}}', '{"KEY": {"float32": 0.0, "bf16": 1.0}}'])
def test_a_damaged_cache_is_measured_again(tmp_path, times, own_cache, damage):
    times += [(3.0, 1.0), (1.0, 3.0)]
    go(tmp_path / "a", precision="auto")
    (key,) = json.loads(own_cache.read_text())
    own_cache.write_text(damage.replace("KEY", key))
    assert used(go(tmp_path / "b", precision="auto")) == "float32" and not times
    assert json.loads(own_cache.read_text())[key] == {"float32": 1.0, "bf16": 3.0}


def test_a_cache_that_cannot_be_written_stops_nothing(tmp_path, times, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    times += [(3.0, 1.0)] * 2
    assert [used(go(tmp_path / name, precision="auto")) for name in "ab"] == ["bf16", "bf16"] and not times


def test_a_resume_keeps_the_choice_on_any_machine(tmp_path, times, monkeypatch, capsys):
    times.append((3.0, 1.0))
    go(tmp_path / "r", 2, precision="auto")
    go(tmp_path / "whole", precision="bf16")
    monkeypatch.setattr(precision, "time_precisions", lambda job, batch: pytest.fail("measured anew"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "elsewhere"))
    monkeypatch.setattr(precision, "describe_bf16", lambda device: ("", "this processor has no bf16 arithmetic"))
    assert used(go(tmp_path / "r", 4)) == "bf16"
    run = go(tmp_path / "r", precision="auto", quiet=False)
    assert used(run) == run.info["precision"]["chosen"] == "bf16" and "bf16 is slow here" in capsys.readouterr().err
    assert {*differences(digest(tmp_path / "r"), digest(tmp_path / "whole"))} <= {"state", "kept checkpoints"}


def test_a_resume_in_another_precision_is_said_and_kept(tmp_path, capsys):
    go(tmp_path / "r", 2, precision="bf16")
    with pytest.raises(BadInput, match="precision bf16 -> float32"):
        go(tmp_path / "r", precision="float32", exact=True)
    assert used(go(tmp_path / "r", 4, precision="float32", quiet=False)) == "float32"
    assert "precision bf16 -> float32" in capsys.readouterr().err
    assert used(go(tmp_path / "r")) == "float32"


def test_where_there_is_none_bf16_trains_and_says_that_it_is_slow(tmp_path, without_bf16, capsys):
    run = go(tmp_path / "r", precision="bf16", quiet=False)
    lines = [text for text in capsys.readouterr().err.splitlines() if "bf16" in text]
    assert lines == [
        "notice: bf16 is slow here: this processor has no bf16 arithmetic; the results are valid, and --precision float32 is faster"
    ]
    assert used(run) == "bf16" and run.result["status"] == "done"
    assert [event["message"] for event in run.events if event["event"] == "precision"] == lines


def test_where_there_is_none_auto_takes_float32_and_says_why(tmp_path, without_bf16, capsys):
    run = go(tmp_path / "r", precision="auto", quiet=False)
    assert used(run) == "float32"
    assert "precision: float32, because this processor has no bf16 arithmetic" in capsys.readouterr().err.splitlines()


@pytest.mark.parametrize("chosen", ["float32", "bf16"])
def test_measuring_changes_no_bit_of_the_run(tmp_path, monkeypatch, chosen):
    """With dropout, batch norm, and user code that draws from every global generator and counts its calls in a buffer."""
    monkeypatch.setattr(precision, "describe_bf16", lambda device: ("avx512_bf16", ""))
    monkeypatch.setattr(precision, "LEAST", 0.0 if chosen == "bf16" else 1e9)
    harness.train(tmp_path / "plain", precision=chosen)
    run = harness.train(tmp_path / "auto", precision="auto")
    assert used(run) == chosen and run.info["precision"]["speedup"] > 0
    assert differences(digest(tmp_path / "auto"), digest(tmp_path / "plain")) == []


def test_measuring_times_both_and_stops_when_it_is_long(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(precision, "describe_bf16", lambda device: ("avx512_bf16", ""))
    monkeypatch.setattr(precision, "_gradient_seconds", lambda model, objective, *more: seen.append(type(objective).__name__) or 1.0)
    go(tmp_path / "a", precision="auto")
    assert seen == ["Gaussian", "Autocast"] * (precision.ROUNDS + 1)
    seen.clear()
    monkeypatch.setattr(precision, "SECONDS", -1.0)
    go(tmp_path / "b", recipe=line(steps=6).replace(batch_size=3), precision="auto")
    assert seen == ["Gaussian", "Autocast"]


def test_a_step_that_cannot_be_timed_leaves_float32(tmp_path, times, own_cache, monkeypatch):
    def fail(job: Any, batch: Any) -> Any:
        raise RuntimeError("not implemented for 'BFloat16'\nsecond line")

    monkeypatch.setattr(precision, "time_precisions", fail)
    run = go(tmp_path / "r", precision="auto")
    assert used(run) == "float32" and run.info["precision"]["message"].endswith("could not be timed: not implemented for 'BFloat16'")
    assert not own_cache.exists()


def test_all_processes_take_the_choice_of_the_first(tmp_path, monkeypatch):
    def by_rank(job: Any, batch: Any) -> dict[str, float]:
        assert job.world.rank == 0
        return {"float32": 3.0, "bf16": 1.0}

    monkeypatch.setattr(precision, "describe_bf16", lambda device: ("avx512_bf16", ""))
    monkeypatch.setattr(precision, "time_precisions", by_rank)
    assert used(go(tmp_path / "auto", precision="auto", processes=2, shards=2)) == "bf16"
    monkeypatch.setattr(precision, "time_precisions", lambda job, batch: pytest.fail("measured without need"))
    go(tmp_path / "one", precision="bf16", shards=2)
    assert {*differences(digest(tmp_path / "auto"), digest(tmp_path / "one"))} <= {"random states"}


def test_weights_and_moments_stay_float32_and_close(tmp_path):
    """Twenty steps of a small network: bf16 moves the loss by the order of its rounding, 2^-8, and the weights stay float32."""
    runs = {name: go(tmp_path / name, recipe=tagger(dropout=0.0), precision=name) for name in ("float32", "bf16")}
    snapshots = {name: checkpoint.read(checkpoints.path_of(tmp_path / name / "checkpoints", 20)) for name in runs}
    for part in ("model", "optim"):
        kinds = {name: {key: tensor.dtype for key, tensor in snapshot.parts[part].items()} for name, snapshot in snapshots.items()}
        assert kinds["bf16"] == kinds["float32"]
    losses = {name: run.result["metrics"]["valid/loss"] for name, run in runs.items()}
    assert losses["bf16"] != losses["float32"] and losses["bf16"] == pytest.approx(losses["float32"], rel=8 * 2**-8)


def test_a_record_of_a_recipe_that_had_the_option_itself():
    info = {"format": 2, "recipe": {"name": "fashion_cnn"}, "options": {"width": 3, "precision": "bf16"}, "run_options": {"threads": 1}}
    new = renamed.record(info)
    assert new["options"] == {"width": 3} and new["run_options"] == {"threads": 1, "precision": "bf16"}
    own = {**info, "recipe": {"file": "mine.py"}}
    assert renamed.record(own) == own
