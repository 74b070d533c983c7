"""The runner with made-up exhibits: verdicts, crashes, hangs, the cache and what is printed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sonde.atlas import runner
from sonde.atlas import worker as _worker
from sonde.core.errors import BadInput

GOOD = """
def par_01(exhibit):
    print("this line must not stand among the results")
    exhibit.expect("one", 1, 1)
    return "one is [1]"
"""
BAD = """
def par_02(exhibit):
    exhibit.expect("two", 3, 2)
    return "two is 3"
"""
CRASH = """
import os, signal
def par_03(exhibit):
    os.kill(os.getpid(), signal.SIGSEGV)
"""
LEAVES = """
import os
def mlp_01(exhibit):
    raise SystemExit("enough")
def mlp_02(exhibit):
    os._exit(9)
"""
HANGS = """
import subprocess, sys, threading
def mlp_02(exhibit):
    child = subprocess.Popen([sys.executable, "-c", "import threading; threading.Event().wait()"])
    open(r"{pid}", "w").write(str(child.pid))
    threading.Event().wait()
"""
STOPS = """
import os, signal
def mlp_03(exhibit):
    os.kill(os.getpid(), signal.SIGSTOP)
"""


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "sonde" / "atlas"


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "chapters"
    path.mkdir()
    return path


def write(folder, name, *bodies):
    (folder / f"{name}.py").write_text("\n".join(bodies), encoding="utf-8")


def test_all_pass(folder, capsys, cache):
    write(folder, "par", GOOD)
    assert runner.check(folder=folder) == 0
    out = capsys.readouterr().out
    assert "PAR-01" in out and "one is [1]" in out
    assert "1 pass, 0 fail, 258 missing" in out
    assert [path.name for path in cache.iterdir()] == ["PAR-01.json"]


def test_a_wrong_number_a_crash_and_an_exit_each_fail_their_own_row(folder, capsys):
    write(folder, "par", GOOD, BAD, CRASH)
    write(folder, "mlp", LEAVES)
    assert runner.check(folder=folder, jobs=2) == 1
    out = capsys.readouterr().out
    assert "PAR-02 failed: two: 3, expected 2" in out
    assert "PAR-03 failed: its process died of SIGSEGV (par.py line 15)" in out
    assert "MLP-01 failed: SystemExit: enough (mlp.py line 4)" in out
    assert "MLP-02 failed: its process ended with exit code 9" in out
    assert "1 pass, 4 fail, 254 missing" in out


def test_a_hang_is_named_and_takes_its_children_along(folder, tmp_path, monkeypatch):
    pid = tmp_path / "pid"
    write(folder, "mlp", HANGS.format(pid=pid), STOPS)
    write(folder, "par", GOOD)
    monkeypatch.setattr(_worker, "GRACE", 2.0)
    results = {result.id: result for result in _worker.each(["MLP-02", "MLP-03", "PAR-01"], jobs=2, limit=1.0, folder=folder)}
    assert results["MLP-02"].why == "it did not finish within 1 s (mlp.py line 6)"
    assert results["MLP-03"].why.startswith("it did not finish within 1 s")
    assert results["PAR-01"].passed
    child = int(pid.read_text())
    # Killed with its group; init may not have reaped it yet, but nothing of it runs.
    try:
        status = Path(f"/proc/{child}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        status = "gone"
    assert status in ("Z", "X", "gone")


def test_leaving_early_ends_the_workers(folder):
    write(folder, "par", GOOD, BAD)
    results = _worker.each(["PAR-01", "PAR-02"], jobs=1, folder=folder)
    next(results)
    worker = results.gi_frame.f_locals["idle"][0]
    results.close()
    assert worker.process.returncode is not None


def test_rows_run_with_one_thread(folder, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    body = "import os\ndef par_01(exhibit):\n    exhibit.expect('threads', os.environ['OMP_NUM_THREADS'], '1')\n    return 'one'"
    write(folder, "par", body)
    (result,) = _worker.each(["PAR-01"], folder=folder)
    assert result.passed, result.why


def test_nothing_run_is_not_a_pass(folder, capsys):
    assert runner.check(["PAR"], folder=folder) == 1
    assert "0 pass, 0 fail, 3 missing" in capsys.readouterr().out


def test_a_result_counts_until_its_row_is_edited(folder, capsys, cache):
    write(folder, "par", GOOD, BAD)
    runner.check(folder=folder)
    capsys.readouterr()
    runner.listing("par", folder)
    assert "1 pass, 1 fail, 1 missing" in capsys.readouterr().out
    write(folder, "par", GOOD, BAD.replace("3, 2", "2, 2"), "# a comment changes nothing")
    runner.listing("par", folder)
    assert "1 pass, 0 fail, 1 not run, 1 missing" in capsys.readouterr().out


def test_a_damaged_cache_is_a_row_not_run(folder, capsys, cache):
    write(folder, "par", GOOD)
    runner.show("PAR-01", folder)
    for text in ("{", "[]", '{"id": "PAR-01"}', "null"):
        (cache / "PAR-01.json").write_text(text)
        capsys.readouterr()
        runner.listing("PAR-01", folder)
        assert "1 not run" in capsys.readouterr().out


def test_a_cache_that_cannot_be_written_does_not_fail_a_row(folder, capsys, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    write(folder, "par", GOOD)
    assert runner.check(["PAR-01"], folder=folder) == 0
    assert "the result of PAR-01 is not cached" in capsys.readouterr().out


def test_show_prints_statement_expectations_and_tables(folder, capsys):
    table = "from sonde.core.reading import Table\n" + GOOD.replace(
        "return", "exhibit.show(Table('Layers', {'layer': ['a', 'b'], 'size': [3, 0.5]}, note='two of them'))\n    return"
    )
    write(folder, "par", table, BAD)
    assert runner.show("par-1", folder) == 0
    out = capsys.readouterr().out
    assert "PAR-01  Data parallelism, five steps" in out and "split the batch over K" in out
    assert "Layers" in out and "0.5" in out and "two of them" in out
    assert runner.show("PAR-02", folder) == 1
    assert "two: 3, expected 2" in capsys.readouterr().out


def test_show_draws_pictures_beside_the_results(folder, capsys, cache):
    reading = "exhibit.show(Lines('Curve', {'y': [1.0, 4.0, 9.0]}, axes=['x']))"
    write(folder, "par", "from sonde.core.reading import Lines\n" + GOOD.replace("return", f"{reading}\n    return"))
    assert runner.show("PAR-01", folder) == 0
    assert str(cache / "PAR-01-1.png") in capsys.readouterr().out.replace("\n", "")
    assert (cache / "PAR-01-1.png").read_bytes().startswith(b"\x89PNG")


def test_names_are_refused_before_anything_runs(folder):
    write(folder, "par", GOOD)
    with pytest.raises(BadInput, match="did you mean 'PAR-01'"):
        runner.check(["PAR-01", "PAR-o1"], folder=folder)
    for call in (runner.show, runner.listing):
        with pytest.raises(BadInput, match="did you mean 'PAR-01'"):
            call("PAR-o1", folder=folder)
    with pytest.raises(BadInput, match="PAR-02.*has no exhibit yet"):
        runner.show("PAR-02", folder)


def test_listing_imports_no_torch(tmp_path):
    code = "import sys\nfrom sonde.atlas import runner\nrunner.listing()\nassert not {'torch', 'numpy'} & set(sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)}, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("-01 ") == 25 and "MISC-06" in done.stdout
