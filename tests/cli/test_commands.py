"""Each command does what it says, on a user's own recipe that trains in a blink."""

from __future__ import annotations

import csv
import fcntl
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from sonde.api.run import open_run
from sonde.core import registry
from sonde.core.reading import Heat, Lines, Table, Text
from sonde.report.readings import text


@pytest.fixture
def plain_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing a report takes a second; tests that look elsewhere get no page."""
    monkeypatch.setattr("sonde.report.page.report", lambda run: run.path / "report.html")


def figures(shown: str) -> dict[str, str]:
    return dict(line.split(maxsplit=1) for line in shown.splitlines() if line.startswith("  "))


def test_train_ends_with_figures_and_a_report(sonde: Callable, mine: str, here: Path) -> None:
    answer = sonde("train", mine, "--lr", "0.1", "--width=7", "--no-bias", "--seed", "3", "--quiet")
    assert answer.code == 0 and answer.err == "", answer.err
    shown = figures(answer.out)
    run = open_run("mine-001")
    assert run.info["options"] == {"width": 7, "lr": 0.1, "widths": [3, 4], "bias": False, "way": "up", "text": None}
    assert run.info["seed"] == 3
    assert float(shown["test/loss"]) == pytest.approx(run.result["metrics"]["test/loss"], rel=1e-3)
    assert (here / shown["report"]).is_file()
    assert [path.name for path in here.iterdir()] == ["runs"]
    assert sonde("train", mine, "--run", "loud").err.endswith("writing the report ...\n")


@pytest.mark.usefixtures("plain_report")
def test_the_command_line_and_python_train_the_same_bits(sonde: Callable, mine: str) -> None:
    import sonde as package

    assert sonde("train", mine, "--width", "3", "--run", "a", "--threads", "1", "--quiet").code == 0
    other = package.train(mine, width=3, run="b", threads=1, quiet=True)
    assert open_run("a").metrics == other.metrics


@pytest.mark.usefixtures("plain_report")
def test_a_name_may_stand_after_options(sonde: Callable, mine: str) -> None:
    assert sonde("train", "--quiet", "--seed", "5", mine, "--width", "2").code == 0
    assert open_run("mine-001").info["seed"] == 5


def test_help_of_a_recipe_shows_its_options(sonde: Callable, mine: str) -> None:
    shown = sonde("train", mine, "--help").out
    assert "recipe 'mine': A line through points." in shown
    for line in (
        "  --width N          numbers between the two layers (1 to 64, default 5)",
        "  --lr X             length of a step (> 0, default 0.05)",
        "  --widths N ...     (default 3 4)",
        "  --way up|down      (default up)",
        "  --text PATH",
        "  --bias, --no-bias  (default on)",
    ):
        assert line in shown.splitlines()
    assert "--seed" not in shown


@pytest.mark.usefixtures("plain_report")
def test_resume_goes_on_with_a_run_and_keeps_its_options(sonde: Callable, mine: str) -> None:
    assert sonde("train", mine, "--run", "kept", "--width", "3", "--quiet").code == 0
    whole = Path("kept/metrics.jsonl").read_bytes()
    Path("kept/result.json").unlink()  # as if it had been stopped after its last checkpoint
    for words in (["--resume", "kept"], ["--resume", "--run", "kept"]):
        assert sonde("train", "--quiet", *words).code == 0
        assert Path("kept/metrics.jsonl").read_bytes() == whole
    refused = sonde("train", "--resume", "kept", "--width", "4")
    assert refused.code == 2 and "has no option '--width'" in refused.err


@pytest.mark.usefixtures("plain_report")
def test_the_latest_run_is_resumed_where_none_is_named(sonde: Callable, mine: str) -> None:
    assert sonde("train", mine, "--quiet").code == 0
    assert "mine-001 is already finished" in sonde("train", "--resume").out


@pytest.mark.usefixtures("plain_report")
def test_only_the_first_process_of_torchrun_speaks(sonde: Callable, mine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sonde("train", mine, "--quiet", "--run", "r").code == 0
    monkeypatch.setenv("RANK", "1")
    assert sonde("train", "--resume", "r", "--quiet") == (0, "", "")


def test_an_error_of_the_engine_keeps_its_exit_code(sonde: Callable, mine: str, here: Path) -> None:
    (here / "file").write_text("")
    answer = sonde("train", mine, "--run", "file")
    assert answer.code == 6 and "to do: " in answer.err and "Traceback" not in answer.err
    diverged = sonde("train", mine, "--lr", "1e30", "--quiet")
    assert diverged.code == 5 and 1 < len(diverged.err.splitlines()) <= 4


def test_sweep_ranks_and_draws(sonde: Callable, mine: str) -> None:
    answer = sonde("sweep", mine, "--lr", "0.01", "0.1", "--seed", "0", "1", "--dir", "s", "--quiet", "--threads", "1")
    assert answer.code == 0, answer.err
    lines = answer.out.splitlines()
    assert Path(lines[-1]) == Path("s/sweep.png") and Path(lines[-1]).is_file()
    ranked = [line.split() for line in lines if line[:1].isdigit()]
    assert [row[1] for row in ranked] == ["0.1", "0.01"] and len(list(Path("s").glob("*/run.json"))) == 4


def test_sweep_hands_over_what_was_typed(sonde: Callable, mine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from sonde.api import sweeps as module

    calls: list = []
    result = type("Result", (), {"table": lambda self: "table", "plot": lambda self: Path("plot.png")})()
    monkeypatch.setattr(module, "sweep", lambda *words, **more: calls.append((words, more)) or result)
    words = ["--widths", "3,4", "5", "--bias", "yes", "no", "--way=down", "--method", "tpe", "--trials", "9", "--width", "2", "7"]
    assert sonde("sweep", mine, *words) == (0, "table\nplot.png\n", "")
    axes = {"width": [2, 7], "widths": [(3, 4), (5,)], "bias": [True, False], "way": ["down"]}
    assert calls == [((mine, axes), {"folder": None, "method": "tpe", "trials": 9})]


def test_look_writes_the_report(sonde: Callable, mine: str) -> None:
    import sonde as package

    package.train(mine, quiet=True)
    answer = sonde("look", "mine-001")
    assert answer == (0, "runs/mine-001/report.html\n", "") and Path(answer.out.strip()).is_file()


@pytest.mark.usefixtures("plain_report")
def test_look_through_a_lens_prints_and_draws(sonde: Callable, mine: str) -> None:
    assert sonde("train", mine, "--quiet").code == 0
    answer = sonde("look", "runs/mine-001", "residuals", "--bins", "3")
    assert answer.code == 0, answer.err
    picture = Path(answer.out.splitlines()[-1])
    assert picture == Path("runs/mine-001/figures/residuals.png") and picture.read_bytes()[:4] == b"\x89PNG"
    assert answer.out.count(" to ") == 3
    wrong = sonde("look", "mine-001", "residuals", "--bin", "3")
    assert wrong.code == 2 and wrong.err == "error: lens 'residuals' has no option '--bin'; did you mean '--bins'?\n"
    assert "did you mean 'residuals'?" in sonde("look", "mine-001", "residual").err
    assert "  --bins N" in sonde("look", "mine-001", "residuals", "--help").out


@pytest.mark.parametrize("lens", registry.names("lenses"))
def test_every_lens_can_be_read_in_a_terminal(lens: str) -> None:
    module = registry.load("lenses", lens)
    readings = module.read(module.tiny())
    for reading in readings if isinstance(readings, list) else [readings]:
        assert text(reading).replace("\n", "").isprintable() and reading.title in text(reading)


def test_readings_as_text() -> None:
    table = Table("T", {"layer": ["a", "b"], "FLOPs": [1500, None]}, formats={"FLOPs": "si"}, total={"FLOPs": 1500})
    assert text(table).splitlines() == ["T", "layer  FLOPs", "-----  -----", "a      1.5 k", "b          -", "total  1.5 k"]
    heat = Heat("H", {"n": [[1, 2], [3, 40]]}, axes=["true", "said"], rows=["x", "y"], columns=["x", "y"])
    assert text(heat).splitlines()[1:] == ["true / said  x   y", "-----------  -  --", "x            1   2", "y            3  40"]
    lines = Lines("L\x1b", {"loss": [3.0, float("nan"), 1.0, 2.0]}, note="down")
    assert text(lines).splitlines()[0] == "L\\x1b" and text(lines).splitlines()[3].split() == ["loss", "4", "3", "2", "1", "3"]


@pytest.mark.usefixtures("plain_report")
def test_compare_shows_what_differs(sonde: Callable, mine: str) -> None:
    for name, rate in (("a", "0.01"), ("b", "0.1")):
        assert sonde("train", mine, "--lr", rate, "--run", name, "--quiet").code == 0
    answer = sonde("compare", "a", "b", "--out", "pages/both.html")
    assert answer.code == 0, answer.err
    head, _, first, second, page = answer.out.splitlines()
    assert head.split()[:2] == ["run", "lr"] and (first.split()[:2], second.split()[:2]) == (["a", "0.01"], ["b", "0.1"])
    assert page == "pages/both.html" and Path(page).is_file()
    assert "twice" in sonde("compare", "a", "./a").err


@pytest.mark.usefixtures("plain_report")
def test_predict_values_equal_the_model(sonde: Callable, mine: str, here: Path) -> None:
    assert sonde("train", mine, "--quiet").code == 0
    (here / "new.csv").write_text("0.25\n-0.5\n1\n")
    answer = sonde("predict", "mine-001", "new.csv")
    assert answer.code == 0, answer.err
    rows = list(csv.DictReader(io.StringIO(answer.out)))
    with torch.no_grad():
        expected = open_run("mine-001").model()(torch.tensor([[0.25], [-0.5], [1.0]])).flatten().tolist()
    assert [row["row"] for row in rows] == ["0", "1", "2"]
    assert [float(row["value"]) for row in rows] == pytest.approx(expected, rel=1e-5)
    assert sonde("predict", "mine-001", "new.csv", "--out", "said.csv") == (0, "said.csv\n", "")
    assert (here / "said.csv").read_text() == answer.out
    assert sonde("predict", "mine-001", "gone.csv").err == "error: no file 'gone.csv'; give a file of the kind the run was trained on\n"
    assert "create it first" in sonde("predict", "mine-001", "new.csv", "--out", "no/said.csv").err
    several = sonde("predict", "mine-001", "new.csv", "new.csv")
    assert several.code == 2 and "not trained on image files, and several files are supported only for those" in several.err
    assert sonde("predict", "mine-001", "new.csv", "--out", ".") == (
        2,
        "",
        "error: '.' is a folder; give a file for --out, such as answers.csv\n",
    )


@pytest.mark.usefixtures("plain_report")
def test_predictions_of_a_folder_bear_the_names_of_its_pictures(sonde: Callable, here: Path) -> None:
    shades = {"dark": (40, 7), "light": (210, 6)}
    rng = np.random.default_rng(0)
    for kind, (shade, count) in shades.items():
        (here / "photos" / kind).mkdir(parents=True)
        for i in range(count):
            picture(here / "photos" / kind / f"{i}.png", rng, shade)
    words = ("--size", "8", "--channels", "4", "--hidden", "0", "--dropout", "0", "--lr", "0.05", "--epochs", "12", "--threads", "1")
    assert sonde("train", "images", "--data", "photos", *words, "--quiet").code == 0
    new = {"b.png": 215, "a/z.png": 30, "c.png": 35, "a/a.png": 220}
    (here / "new" / "a").mkdir(parents=True)
    for name, shade in new.items():
        picture(here / "new" / name, rng, shade)
    answer = sonde("predict", "images-001", "new")
    assert answer.code == 0, answer.err
    rows = {row["file"]: row["class"] for row in csv.DictReader(io.StringIO(answer.out))}
    assert rows == {name: "light" if shade > 128 else "dark" for name, shade in new.items()}
    assert sonde("predict", "images-001", "new/b.png").out.splitlines()[1].startswith("b.png,light,")
    picture(here / "new" / "d\x1b[2J.png", rng, 40)
    os.rename(here / "new" / "c.png", os.fsencode(here / "new") + b"/c\xe9.png")
    shown = sonde("predict", "images-001", "new").out
    assert "\x1b" not in shown and "d\\x1b[2J.png,dark," in shown
    assert sonde("predict", "images-001", "new", "--out", "said.csv").code == 0
    written = (here / "said.csv").read_bytes()
    assert b"\nc\xe9.png,dark," in written and b"\nd\x1b[2J.png,dark," in written
    (here / "new" / "b.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    assert sonde("predict", "images-001", "new").err.endswith("; fix it, remove it, or use --skip-corrupt (skip_corrupt=True)\n")
    answer = sonde("predict", "images-001", "new", "--skip-corrupt")
    assert answer.code == 0 and answer.err == "1 of 5 pictures cannot be read and is skipped: b.png\n"
    assert [row["class"] for row in csv.DictReader(io.StringIO(answer.out))] == ["light", "dark", "dark", "dark"]
    assert "b.png" not in answer.out and "d\\x1b[2J.png,dark," in answer.out  # those behind it keep their own names
    several = sonde("predict", "images-001", "photos/light/2.png", "new/a", "new/b.png", "--skip-corrupt")
    assert several.err == "1 of 4 pictures cannot be read and is skipped: new/b.png\n"
    rows = {row["file"]: row["class"] for row in csv.DictReader(io.StringIO(several.out))}
    assert rows == {"photos/light/2.png": "light", "new/a/a.png": "light", "new/a/z.png": "dark"}
    np.save(here / "x.npy", np.zeros((2, 1, 8, 8), np.uint8))
    mixed = sonde("predict", "images-001", "photos", "x.npy")
    assert (
        mixed.code == 2
        and mixed.err == "error: 'x.npy' is not an image; several files can be given only if all are images; give it alone\n"
    )
    assert "only images can be skipped" in sonde("predict", "images-001", "x.npy", "--skip-corrupt").err
    alone = sonde("predict", "images-001", "new/b.png", "--skip-corrupt")
    assert alone.code == 2 and "none of 1 images can be read: b.png" in alone.err


def picture(path: Path, rng: np.random.Generator, shade: int) -> None:
    Image.fromarray(rng.integers(shade - 20, shade + 20, (9, 11), dtype=np.uint8)).save(path)


def test_answers_of_a_classifier() -> None:
    from types import SimpleNamespace

    from sonde.cli.commands.predict import prediction_rows

    data = SimpleNamespace(task="classes", classes=("cat", "dog"))
    assert list(prediction_rows(torch.tensor([[0.125, 0.875], [0.75, 0.25]]), data)) == [
        ("row", "class", "probability"),
        (0, "dog", "0.875"),
        (1, "cat", "0.75"),
    ]
    assert list(prediction_rows(torch.tensor([0.25, 0.625]), data))[1:] == [(0, "cat", "0.75"), (1, "dog", "0.625")]
    unnamed = SimpleNamespace(task="classes", classes=())
    assert list(prediction_rows(torch.tensor([[0.0, 0.25, 0.75]]), unnamed))[1:] == [(0, 2, "0.75")]
    values = SimpleNamespace(task="values", classes=())
    assert list(prediction_rows(torch.tensor([[1.5, -2.0]]), values)) == [("row", "value0", "value1"), (0, "1.5", "-2")]


def test_a_recipe_is_explained_without_its_data_and_says_so(sonde: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    from sonde.cli.commands.explain import _size_without_data
    from sonde.core.errors import DataUnusable
    from sonde.recipes.tools import parts

    gone = DataUnusable("the photographs are not here", where="there", fix="fetch them")

    def missing(name: str) -> None:
        raise gone

    monkeypatch.setattr(parts, "load", missing)
    answer = sonde("explain", "cifar_cnn", "--hidden", "0")
    assert answer.code == 0 and "blocks.conv4" in answer.out
    assert answer.err == "notice: the photographs are not here; explained for an input of 3 x 32 x 32, as the model specifies\n"
    with pytest.raises(DataUnusable, match="to do: give the size of an example, such as --input 3 32 32, or fetch them"):
        _size_without_data(torch.nn.Conv2d(3, 4, 5), "mine", gone)


def test_explain_a_model_of_77_billion_weights(sonde: Callable) -> None:
    answer = sonde("explain", "mlp", "--widths", "196608", "196608", "196608")
    assert answer.code == 0, answer.err
    assert f"{2 * 196608**2 + 2 * 196608:,} parameters" in answer.out


def test_explain_counts_what_torch_counts(sonde: Callable, mine: str) -> None:
    answer = sonde("explain", mine, "--width", "11", "--no-bias")
    assert answer.code == 0, answer.err
    net = torch.nn.Sequential(torch.nn.Linear(1, 11, bias=False), torch.nn.Linear(11, 1))
    assert f"{sum(p.numel() for p in net.parameters())} parameters" in answer.out
    sized = sonde("explain", "cnn", "--channels", "3", "5", "7", "--image", "none", "--input", "3", "20", "24")
    assert sized.code == 0 and "7 × 5 × 6" in sized.out


def test_explain_counts_all_of_a_vision_transformer_and_a_model_of_pixels(sonde: Callable) -> None:
    for name, parameters in (("vit_b16", "86,567,656"), ("pixels", "")):
        answer = sonde("explain", name)
        assert answer.code == 0 and f"{parameters} parameters" in answer.out and "Unknown FLOPs" not in answer.out, answer.err


def test_atlas_lists_and_hands_over(sonde: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    from sonde.atlas import runner

    calls: list = []
    monkeypatch.setattr(runner, "listing", lambda *words: calls.append(("listing", *words)))
    monkeypatch.setattr(runner, "show", lambda word: calls.append(("show", word)) or 1)
    monkeypatch.setattr(runner, "check", lambda ids, jobs: calls.append(("check", ids, jobs)) or 1)
    assert [sonde("atlas").code, sonde("atlas", "cnn").code, sonde("atlas", "CNN-12").code] == [0, 0, 1]
    assert [sonde("atlas", "--check").code, sonde("atlas", "PAR", "--check", "--jobs", "3").code] == [1, 1]
    assert calls == [("listing",), ("listing", "CNN"), ("show", "CNN-12"), ("check", None, 2), ("check", ["PAR"], 3)]


# The table of runs


def directory(path: Path, **files: object) -> Path:
    """A run directory made by hand; a value that is no text is written as JSON."""
    path.mkdir(parents=True)
    for name, value in files.items():
        file = path / name.replace("_", ".")
        file.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


def record(**options: object) -> dict:
    empty: dict = {"run_options": {}, "fingerprint": {}, "data": {}}
    return {"format": 2, "recipe": {"name": "toy"}, "options": options, "seed": 0, **empty}


def test_runs_says_how_far_each_came(sonde: Callable, here: Path) -> None:
    clock = '{"event": "%s", "step": 0, "time": "2026-01-01T10:%s+00:00"}\n'
    done = {"status": "done", "steps": 90, "metrics": {"valid/loss": 0.5, "test/accuracy": 0.975}}
    events = "".join(clock % pair for pair in (("start", "00:00"), ("checkpoint", "00:40"), ("resume", "30:00"), ("finish", "31:25")))
    directory(here / "runs" / "a", run_json=record(lr=0.1, width=3), result_json=done, events_jsonl=events)
    rows = '{"step": 10, "loss": 0.75}\n{"step": 20, "valid/accuracy": 0.5}\n{"step": 30, "lo'
    directory(here / "runs" / "b", run_json=record(lr=0.2, width=3), metrics_jsonl=rows)
    directory(here / "runs" / "notes")  # no run
    answer = sonde("runs")
    assert answer.code == 0 and answer.err == ""
    lines = [[cell.strip() for cell in line.split("  ") if cell] for line in answer.out.splitlines()]
    assert lines[2] == ["a", "toy", "done", "90", "test/accuracy 0.975", "2 min 05 s", "lr=0.1"]
    assert lines[3] == ["b", "toy", "stopped at step 20, continues from 0", "20", "valid/accuracy 0.5", "-", "lr=0.2"]
    assert len(lines) == 4


def test_runs_sees_a_run_that_is_at_work(sonde: Callable, here: Path) -> None:
    path = directory(here / "runs" / "busy", run_json=record(), run_lock="")
    code = "import fcntl, sys; f = open(sys.argv[1], 'r+'); fcntl.lockf(f, fcntl.LOCK_EX); print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code, str(path / "run.lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None and owner.stdin is not None
        owner.stdout.readline()
        assert " running " in sonde("runs").out
        owner.stdin.close()
    assert " stopped at step 0 " in sonde("runs").out
    with open(path / "run.lock", "r+") as file:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # looking took nothing away


BROKEN = {
    "empty": {"run_json": ""},
    "torn": {"run_json": '{"format": 1, "rec'},
    "a list": {"run_json": "[]"},
    "of the future": {"run_json": {"format": 99}},
    "deep": {"run_json": "[" * 100_000},
    "wrong kinds": {"run_json": {"format": 1, "recipe": 3, "options": [], "seed": {}}, "result_json": "[1]", "metrics_jsonl": "[]\n3\n"},
    "wrong figures": {"run_json": record(), "result_json": {"status": "done", "metrics": {"a": "b", "c": None}}},
    "wrong clock": {"run_json": record(), "events_jsonl": '{"event": "start", "time": "soon"}\n'},
    "deep rows": {"run_json": record(), "metrics_jsonl": "[" * 100_000},
    "no record": {"events_jsonl": ""},
    "control": {"run_json": record(**{"x\x1b[2J": "y\n"})},
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_run_is_a_row_not_a_crash(fault: str, sonde: Callable, here: Path) -> None:
    directory(here / "runs" / "bad", **BROKEN[fault])
    directory(here / "runs" / "good", run_json=record(), result_json={"status": "done", "steps": 3})
    answer = sonde("runs")
    assert answer.code == 0 and answer.err == ""
    assert [line.split()[0] for line in answer.out.splitlines()[2:]] == ["bad", "good"]
    assert answer.out.replace("\n", "").isprintable()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_run_that_may_not_be_read_is_a_row(sonde: Callable, here: Path) -> None:
    path = directory(here / "runs" / "secret", run_json=record())
    (path / "run.json").chmod(0)
    assert "unreadable" in sonde("runs").out


def test_no_runs_yet(sonde: Callable) -> None:
    assert sonde("runs") == (0, "no runs under runs; start one with `sonde train NAME`\n", "")


def test_a_text_reading_is_printed_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    from sonde.report import readings as _readings
    from sonde.report import terminal

    words = [*"the cat ", "sat↵", "\x1b[31mon"]
    reading = Text("t", {"token": words, "bits": [float("nan"), *range(len(words) - 1)]}, axes=["token", "bits"])
    plain = _readings._text(reading)
    assert plain.splitlines()[:2] == ["the cat sat↵", "\\x1b[31mon"] and "\x1b" not in plain
    assert plain.splitlines()[2].startswith("largest bits: '\\x1b[31mon' 8, 'sat↵' 7, ")
    for name, value in {"TERM": "xterm-256color", "COLORTERM": "truecolor", "COLUMNS": "80"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(_readings, "wants_color", lambda: True)
    color = _readings._text(reading)
    first, second, scale, _ = color.splitlines()
    assert first.startswith("\x1b[2mt\x1b[0m\x1b[30;48;2;255;250;240mh\x1b[0m")  # not predicted, then the smallest
    assert "48;2;255;110;40m" in second and "48;2;255;110;40m 8 " in scale and scale.startswith("bits:")
    long = Text("t", {"token": list("word " * 60), "bits": [1.0] * 300}, axes=["token", "bits"])
    lines = re.sub(r"\x1b\[[\d;]*m", "", _readings._text(long)).splitlines()[:-2]
    assert len(lines) > 2 and all(len(line) <= terminal.width() for line in lines) and "".join(lines).count("word") == 60
