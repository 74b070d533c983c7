"""`sonde bench mixers`: rows for the members and forms asked for, a picture, and clear refusals."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from sonde.cli.main import main
from sonde.lenses.tools import mixers
from sonde.lenses.tools.mixers import MixerRow


def test_prints_a_row_for_each_form_and_length(capsys: pytest.CaptureFixture[str], tmp_path) -> None:
    picture = tmp_path / "cost.png"
    assert main(["bench", "mixers", "gla", "--lengths", "8", "16", "--width", "16", "--forms", "step", "chunk", "--out", str(picture)]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("gla")]
    assert [row[:3] for row in rows] == [["gla", form, n] for form in ("step", "chunk") for n in ("8", "16")]
    assert picture.stat().st_size > 10_000 and picture.with_name("cost-memory.png").exists()


def test_says_how_it_was_measured_and_which_form_won(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "mixers", "linear", "attention", "--lengths", "16", "8", "8", "--width", "16", "--batch", "3"]) == 0
    first, heads, *rest = capsys.readouterr().out.splitlines()
    assert first.startswith("Width 16, batch 3, lengths 8, 16, threads ") and "forward, all forms" in first
    assert heads.split()[:4] == ["mixer", "form", "length", "ms"]
    assert any(line.startswith("Time: Best form at 16 steps: ") for line in rest) and any("Memory: Best form" in line for line in rest)


@pytest.mark.parametrize("number, code", [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_a_signal_keeps_what_was_measured(
    number: int, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def sweep(*_: object) -> Iterator[MixerRow]:
        yield MixerRow("gla", "step", 8, 0.5, 2**20, 1e6, 64)
        yield MixerRow("gla", "fused", 8, 0.25, 2**21, 1e6, 64)
        assert "gla    fused" in capsys.readouterr().out  # printed before the next is measured
        os.kill(os.getpid(), number)
        yield MixerRow("gla", "chunk", 8, 0.1, 2**22, 1e6, 64)

    monkeypatch.setattr(mixers, "sweep", sweep)
    # A test that runs in the background of a shell inherits an interrupt that is ignored.
    signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    before = signal.getsignal(number)
    assert main(["bench", "mixers", "gla", "--width", "16", "--out", str(tmp_path / "cost.png")]) == code
    captured = capsys.readouterr()
    assert "Time: Best form at 8 steps: fused for gla." in captured.out and "Memory: Best form at 8 steps: step for gla." in captured.out
    assert "while measuring" in captured.err and (tmp_path / "cost.png").exists() and signal.getsignal(number) == before


def test_curves_have_the_units_of_the_table() -> None:
    rows = [
        MixerRow("a", "step", 8, 0.5, 3 * 2**20, 1e6, 64),
        MixerRow("a", "scan", 8, 0.25, 6 * 2**20, 1e6, 64),
        MixerRow("b", "step", 32, 0.1, 2**20, 1, 0),
    ]
    table, seconds, memory = mixers.readings(rows, 2, "Width 4")
    assert table.values["ms"] == [500, 250, 100] and table.values["tokens/s"] == [32, 64, 640] and table.note == "Width 4"
    assert seconds.values == {"a": [250, None], "b": [None, 100]} and seconds.axes == ["length", "ms"]
    assert memory.values == {"a": [3, None], "b": [None, 1]} and memory.axes == ["length", "peak MiB"]
    assert seconds.note == "Width 4. Best form at 32 steps: step for b; at 8 steps: scan for a."


@pytest.mark.parametrize(
    "words, message",
    [
        (["bench"], "write: sonde bench mixers"),
        (["bench", "mixers", "retnett"], "did you mean 'retnet'"),
        (["bench", "mixers", "gla", "--forms", "stepp"], "did you mean 'step'"),
        (["bench", "mixers", "gla", "--lengths", "0"], "--lengths"),
        (["bench", "mixers", "gla", "--forms", "convolution"], "they have chunk, fused, parallel, scan, step"),
    ],
)
def test_refuses_what_it_does_not_know(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert message in capsys.readouterr().err


def test_without_kernels_the_other_forms_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    from sonde.lenses.tools import mixers
    from sonde.nn.mixers import mixer

    monkeypatch.setattr(mixers.kernels, "available", lambda: False)
    rows = list(mixers.sweep({"gru": mixer("gru", 8)}, (), [4]))
    assert [row.form for row in rows] == ["step"]
