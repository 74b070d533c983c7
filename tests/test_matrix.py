"""The matrix of processors: what differs is seen, what fails is red, what the machine lacks is named; nothing stays behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks import _arithmetic, _outcomes, _plan, matrix
from sonde.atlas.exhibit import exhibits, row_source
from tests import headroom, sensitive

ROOT = Path(__file__).resolve().parent.parent


ROWS = {row.name: row for row in matrix.ROWS}
FACTS = {"threads": "1", "levels": "base avx2 avx512", "built": "base avx2 avx512"}


def answers(**digests: str) -> dict[str, Any]:
    return {"digests": {"matmul": "a", "kernels": "b", **digests}, "facts": FACTS}


def test_every_value_the_matrix_promises_has_a_row():
    promised = {
        "ATEN_CPU_CAPABILITY": {"default", "avx2", "avx512"},
        "OPENBLAS_CORETYPE": {"Haswell", "Zen", "SkylakeX"},
        "ONEDNN_MAX_CPU_ISA": {"SSE41", "AVX2", "AVX512_CORE"},
        "MKL_CBWR": {"COMPATIBLE", "AVX2"},
        "SONDE_KERNELS": {"base", "avx2", "avx512", "0"},
    }
    single = [next(iter(row.environment.items())) for row in matrix.ROWS if len(row.environment) == 1]
    assert {name: {value for key, value in single if key == name} for name in promised} == promised
    assert len(ROWS) == len(matrix.ROWS)
    assert ROWS["own"].environment == {} and ROWS["threads-2"].environment["OMP_NUM_THREADS"] == "2"
    assert set(ROWS["foreign"].environment) >= set(promised) and ROWS["foreign"].level == "base"


def test_nothing_from_outside_decides_the_arithmetic_of_a_row(monkeypatch):
    for name in ("ATEN_CPU_CAPABILITY", "SONDE_KERNELS", "MKL_NUM_THREADS", "SONDE_DATA", "OMP_NUM_THREADS", "DNNL_MAX_CPU_ISA"):
        monkeypatch.setenv(name, "7")
    monkeypatch.setenv("KEPT", "yes")
    environment = matrix.clean({"SONDE_KERNELS": "base"})
    assert environment["KEPT"] == "yes" and environment["SONDE_KERNELS"] == "base" and environment["OMP_NUM_THREADS"] == "1"
    assert not {"ATEN_CPU_CAPABILITY", "MKL_NUM_THREADS", "SONDE_DATA", "DNNL_MAX_CPU_ISA"} & set(environment)
    with matrix.inside(environment):
        assert dict(os.environ) == environment
    assert os.environ["SONDE_KERNELS"] == "7"


# What a machine lacks


def test_a_level_the_machine_lacks_is_named_as_skipped():
    old = {**answers(), "facts": {**FACTS, "levels": "base avx2", "built": "base avx2"}}
    outcomes = {one.row: one for one in matrix.plan(matrix.ROWS, 1, lambda environment: old, "x86_64")}
    without = {name for name, one in outcomes.items() if "this processor has no AVX-512" in one.skipped}
    assert without == {"aten-avx512", "openblas-skylakex", "onednn-avx512_core", "kernels-avx512"}
    assert outcomes["aten-avx2"].skipped == "same bits as own"


def test_kernels_that_were_not_built_and_other_processors_are_named():
    bare = {**answers(), "facts": {**FACTS, "levels": "base", "built": ""}}
    assert matrix.lacks(ROWS["kernels-base"], bare, "x86_64") == "the base kernels were not built here"
    assert matrix.lacks(ROWS["kernels-0"], bare, "x86_64") == ""
    arm = {row.name for row in matrix.ROWS if not matrix.lacks(row, {"facts": {"levels": "base", "built": "base"}}, "aarch64")}
    assert arm == {"own", "kernels-base", "kernels-0", "threads-2"}
    assert matrix.lacks(ROWS["foreign"], bare, "arm64") == "its variables are for x86-64"


# What a row changes


def test_a_row_is_compared_with_the_own_arithmetic_and_with_those_before_it():
    seen = {"Haswell": answers(matmul="c"), "Zen": answers(matmul="c"), "SkylakeX": answers()}
    rows = [ROWS["own"], *(row for row in matrix.ROWS if row.name.startswith("openblas")), ROWS["threads-2"], ROWS["foreign"]]

    def look(environment: dict[str, str]) -> dict[str, Any]:
        if environment == _arithmetic.FOREIGN:
            return {"digests": {}, "facts": {}, "error": "Illegal instruction"}
        if "SONDE_TEST_THREADS" in environment:
            return {**answers(), "facts": {**FACTS, "threads": "2"}}
        return seen.get(environment.get("OPENBLAS_CORETYPE", ""), answers())

    own, haswell, zen, skylake, threads, foreign = matrix.plan(rows, 2, look, "x86_64")
    assert (own.skipped, own.changed) == ("", []) and (haswell.skipped, haswell.changed) == ("", ["matmul"])
    assert zen.skipped == "same bits as openblas-haswell" and skylake.skipped == "same bits as own"
    assert threads.skipped == "" and threads.facts == {"threads": "2"}
    assert foreign.failures == ["the probe: Illegal instruction"] and not foreign.passed
    alone, again = matrix.plan([ROWS["openblas-skylakex"], ROWS["aten-avx2"]], 1, look, "x86_64")
    assert (alone.skipped, again.skipped) == ("", "same bits as openblas-skylakex"), "own was not planned, so it gives no verdict"


def test_the_probe_sees_a_variable_take_effect():
    own, off = _plan.probe({}), _plan.probe({"SONDE_KERNELS": "0"})
    assert set(own["facts"]) >= {"torch", "kernels", "threads", "levels", "built"} and off["facts"]["kernels"] == "none"
    differ = {name for name in own["digests"] if own["digests"][name] != off["digests"][name]}
    assert differ == ({"kernels"} if own["facts"]["built"] else set())


def test_a_probe_that_dies_says_why():
    assert "is not a level of the kernels" in _plan.probe({"SONDE_KERNELS": "avx1024"})["error"]


# What a row gives


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a test that passes where RIGHT is set, one that is skipped and one that fails."""
    monkeypatch.setattr(matrix, "ROOT", tmp_path)
    (tmp_path / "tests").mkdir()
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow\n")
    (tmp_path / "tests" / "test_few.py").write_text(
        "import os, pytest\n"
        "def test_good(): assert os.environ['RIGHT'] == '1' and os.environ['OMP_NUM_THREADS'] == '1'\n"
        "@pytest.mark.parametrize('n', [1, 2])\ndef test_bad(n): assert n == 1\n"
        "def test_none(): pytest.skip('no')\n"
        "@pytest.mark.slow\ndef test_long(): assert False\n"
    )
    return tmp_path


def test_failures_are_counted_and_named(project: Path):
    shares: list[float] = []
    counts, failures = matrix.tests(matrix.clean({"RIGHT": "1"}), matrix.How("whole", jobs=1), shares.append)
    assert counts == {"passed": 2, "failed": 1, "skipped": 1} and shares[-1] == 1.0
    assert len(failures) == 1 and failures[0].startswith("tests/test_few.py::test_bad[2]: ")
    counts, failures = matrix.tests(matrix.clean({"RIGHT": "1"}), matrix.How("whole", slow=True, jobs=1), shares.append)
    assert counts["failed"] == 2


def test_a_run_that_collects_nothing_or_breaks_is_a_failure(project: Path):
    (project / "tests" / "test_few.py").write_text("import nothing_of_that_name\n")
    counts, failures = matrix.tests(matrix.clean({}), matrix.How("whole", jobs=1), lambda share: None)
    assert failures and counts.get("passed", 0) == 0
    (project / "tests" / "test_few.py").unlink()
    counts, failures = matrix.tests(matrix.clean({}), matrix.How("whole", jobs=1), lambda share: None)
    assert counts == {} and "exit code 5" in failures[0]


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable:
    """The program with two rows, `good` and `other`, on a stand-in for tests and exhibits; returns its exit code and what it ran."""
    ran: list[tuple[str, str]] = []
    broken: set[str] = set()
    expected = [_arithmetic.Row("good", {"SONDE_KERNELS": "base"}), _arithmetic.Row("other", {"SONDE_KERNELS": "0"})]

    def run_tests(environment: dict[str, str], how: Any, progress: Callable) -> tuple[dict[str, int], list[str]]:
        level = environment["SONDE_KERNELS"]
        ran.append(("tests", level))
        progress(0.5)
        bad = ["tests/a.py::test_b: no"] * (level in broken)
        return {"passed": 3, "failed": len(bad)}, bad

    def run_exhibits(environment: dict[str, str], how: Any, progress: Callable) -> tuple[dict[str, int], list[str]]:
        ran.append(("atlas", environment["SONDE_KERNELS"]))
        bad = ["atlas LM-16: too low"] * (f"atlas {environment['SONDE_KERNELS']}" in broken)
        return {"passed": 2, "failed": len(bad)}, bad

    def plan(rows: list[Any], jobs: int) -> list[Any]:
        return [_outcomes.Outcome(row.name, row.environment, changed=["kernels"]) for row in rows]

    for name, value in {
        "ROWS": expected,
        "tests": run_tests,
        "exhibits": run_exhibits,
        "plan": plan,
        "adopt": list,
        "sweep": list,
        "end_all": list,
    }.items():
        monkeypatch.setattr(matrix, name, value)
    monkeypatch.setattr(matrix, "commit", lambda: "abc")

    def run(*words: str) -> tuple[int, list[tuple[str, str]]]:
        ran.clear()
        handler = signal.getsignal(signal.SIGTERM)
        try:
            return matrix.main([*words, "--file", str(tmp_path / "matrix.jsonl")]), list(ran)
        finally:
            signal.signal(signal.SIGTERM, handler)

    run.broken, run.file = broken, tmp_path / "matrix.jsonl"  # type: ignore[attr-defined]
    return run


def test_green_rows(rows: Callable, capsys: pytest.CaptureFixture):
    code, ran = rows()
    assert code == 0 and ran == [(what, level) for level in ("base", "0") for what in ("tests", "atlas")]
    table = capsys.readouterr().out
    assert "2 rows, 0 failed" in table and "3 passed" in table and "FAIL" not in table


@pytest.mark.parametrize("broken", ["0", "atlas 0"])
def test_a_row_that_fails_is_red_in_the_table_and_in_the_exit_code(rows: Callable, capsys: pytest.CaptureFixture, broken: str):
    rows.broken.add(broken)
    assert rows()[0] == 1
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    (good,) = (line for line in lines if line.startswith("good"))
    (other,) = (line for line in lines if line.startswith("other "))
    assert "pass" in good and "FAIL" not in good and "FAIL" in other and "1 failed" in other
    assert any(line.startswith("other: ") for line in lines) and lines[-1] == "2 rows, 1 failed: other"
    assert rows("--table")[0] == 1


def test_a_row_is_not_run_again_for_the_same_commit_part_and_data(rows: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert rows("--rows", "good") == (0, [("tests", "base"), ("atlas", "base")])
    assert rows() == (0, [("tests", "0"), ("atlas", "0")])
    assert rows() == (0, [])
    assert len(rows("--whole")[1]) == 4 and len(rows("--whole", "--data", str(tmp_path))[1]) == 4
    assert len(rows("--rows", "good", "--again")[1]) == 2
    monkeypatch.setattr(matrix, "commit", lambda: "def")
    assert len(rows()[1]) == 4
    monkeypatch.setattr(matrix, "commit", lambda: "")  # outside a repository nothing says that the code is the same
    assert len(rows()[1]) == 4 and len(rows()[1]) == 4


def test_a_failure_is_kept_and_a_line_cut_off_is_run_again(rows: Callable):
    rows.broken.add("0")
    assert rows()[0] == 1
    rows.broken.clear()
    assert rows() == (1, []) and rows("--again")[0] == 0 and rows() == (0, [])
    text = rows.file.read_text()
    lines = text.splitlines()
    rows.file.write_text("\n".join(lines[:3]) + "\n" + lines[3][:30])
    assert rows("--table")[0] == 1  # the last whole line of 'other' is the failure


def test_the_file_gives_the_newest_of_every_row(rows: Callable, capsys: pytest.CaptureFixture):
    assert rows("--table")[0] == 1  # nothing there yet is no proof
    assert rows("--whole")[0] == 0 and rows("--rows", "other")[0] == 0
    capsys.readouterr()
    code, ran = rows("--table")
    table = capsys.readouterr().out
    assert (code, ran) == (0, []) and "good, whole" in table and "other, whole" in table and "3 rows" in table


def test_the_edge_runs_tests_alone_and_keeps_nothing(rows: Callable, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    monkeypatch.setattr(matrix, "ROWS", [_arithmetic.Row("foreign", {"SONDE_KERNELS": "base"})])
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    assert rows("--edge") == (0, [("tests", "base")]) and not rows.file.exists()
    rows.broken.add("base")
    assert rows("--edge")[0] == 1
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    capsys.readouterr()
    assert rows("--edge") == (0, []) and "its variables are for x86-64" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["--rows", "none"], ["--whole", "--edge"], ["--data", "no/such/folder"], ["--slow"]])
def test_wrong_words_are_refused(rows: Callable, words: list[str]):
    with pytest.raises(SystemExit) as refusal:
        rows(*words)
    assert refusal.value.code == 2


LEAVER = """
import os, sys
from pathlib import Path
sys.path.insert(0, {root!r})
from benchmarks import _processes, matrix
pause = "import signal; signal.pause()"
leave = f"import signal, subprocess, sys; subprocess.Popen([sys.executable, '-c', '{{pause}}'], start_new_session=True)"
def plan(rows, jobs):
    _processes.run([sys.executable, "-c", leave], dict(os.environ), Path.cwd())
    print(len(_processes.descendants()), flush=True)
    if sys.argv[1] == "stop":
        _processes.run([sys.executable, "-c", leave + "; " + pause], dict(os.environ), Path.cwd())
    return []
matrix.plan = plan
try:
    code = matrix.main(["--probe"])
finally:
    print(len(_processes.descendants()), flush=True)
sys.exit(code)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc")
@pytest.mark.parametrize("how", ["end", "stop"])
def test_no_process_stays_behind(how: str):
    command = [sys.executable, "-c", LEAVER.format(root=str(ROOT)), how]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "1\n", program.stderr and program.stderr.read()  # a session of its own escapes its parent
        if how == "stop":
            program.terminate()
        out, _ = program.communicate(timeout=60)
    assert out.split()[-1] == "0" and program.returncode == (143 if how == "stop" else 0)


def test_a_table_of_several_commits_says_which(capsys: pytest.CaptureFixture):
    one, two = (
        _outcomes.Outcome("own", {}, "aaaa", "Zen", tests={"passed": 1}),
        _outcomes.Outcome("foreign", {}, "bbbb", "Zen", tests={"passed": 1}),
    )
    assert matrix.show(matrix.newest([one, two]), 200) and "aaaa" in (table := capsys.readouterr().out) and "bbbb" in table
    two.commit = "aaaa"
    assert matrix.show([one, two], 200) and "aaaa" not in capsys.readouterr().out
    assert one.same != _outcomes.Outcome("own", {}, "aaaa", "Zen", slow=True).same != _outcomes.Outcome("own", {}, "aaaa", "Rome").same


# The sensitive part


FILE = """
ROOM = 1e-6

def helper(): return 1

def test_a(): assert helper() < 2.0

@mark
def test_b(): assert helper() < 3.0

class TestC:
    def test_d(self): pass
"""


def keys_of(tmp_path: Path, text: str) -> dict[str, str]:
    sensitive.keys.cache_clear()
    path = tmp_path / "test_x.py"
    path.write_text(text)
    return sensitive.keys(path)


def test_a_key_changes_with_the_test_and_with_what_it_shares(tmp_path: Path):
    before = keys_of(tmp_path, FILE)
    assert set(before) == {"test_a", "test_b", "TestC::test_d"} and len(set(before.values())) == 3

    def changed(old: str, new: str) -> set[str]:
        after = keys_of(tmp_path, FILE.replace(old, new))
        return {name for name in before if before[name] != after[name]}

    assert (
        changed("3.0", "2.5") == {"test_b"} and changed("@mark", "@other") == {"test_b"} and changed("pass", "return") == {"TestC::test_d"}
    )
    assert changed("1e-6", "1e-9") == set(before) and changed("return 1", "return 0") == set(before)


def line(test: str, numeric: tuple[str, ...], edge: tuple[str, ...] = (), cases: int = 2, mark: str = "k") -> sensitive.Measured:
    return sensitive.Measured(test, mark, cases, 0.5, 1.0, numeric, edge)


def test_what_was_not_measured_as_it_is_counts_as_numeric(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sensitive, "key", lambda test: "k")
    table = {name: line(name, ("[1]",), ("[1]",)) for name in ("a", "changed", "grown")} | {"quiet": line("quiet", ())}
    table["changed"] = line("changed", (), ("[2]", "[gone]"), mark="old")
    tests = {"a": ["[1]", "[2]"], "quiet": ["[1]", "[2]"], "changed": ["[1]", "[2]"], "grown": ["[1]", "[2]", "[3]"], "new": [""]}
    numeric, edge, unmeasured = sensitive.parts(table, tests)
    assert numeric == {"a[1]", "changed[1]", "changed[2]", "grown[1]", "grown[2]", "grown[3]", "new"}
    # What was on the edge stays there while it exists.
    assert edge == {"a[1]", "changed[2]", "grown[1]"} and unmeasured == ["changed", "grown", "new"]


def record(test: str, seconds: float = 1.0, outcome: str = "passed", **shares: float) -> dict[str, Any]:
    return {"test": test, "shares": shares, "seconds": seconds, "outcome": outcome, "digest": 1}


def test_nearness():
    assert sensitive.nearness(record("a", close=0.009, bound=0.4)) == 0.0
    assert sensitive.nearness(record("a", close=0.02)) == 0.02 and sensitive.nearness(record("a", bound=0.6)) == 0.6
    assert sensitive.nearness(record("a", close=4.0)) == 0.25 and sensitive.nearness(record("a", outcome="failed")) == 1.0
    assert sensitive.nearness(record("a", bits=0.0)) == sensitive.nearness(record("a", unread=0.0)) == sensitive.UNKNOWN
    assert sensitive.nearness(record("a", outcome="skipped", close=1.0)) == 0.0


def test_the_nearest_cases_are_chosen_until_the_time_is_used_up(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sensitive, "key", lambda test: "k")
    monkeypatch.setattr(sensitive, "PARTS", {"numeric": {"tests": (5.1, 9.0), "atlas": (2.0, 9.0)}, "edge": {"tests": (3.5, 1.0)}})
    own = [record(f"t::many[{number}]", close=number / 10) for number in range(7)]
    own += [record("t::near", close=0.95), record("t::far", close=0.001), record("t::long", seconds=10, bound=0.99)]
    own += [record("t::same", seconds=0.05, close=0.99), record("t::worse", seconds=0.05, close=0.2)]
    own += [record("atlas X-01", bound=0.9), record("atlas X-02", bound=0.8), record(f"{sensitive.EXHIBITS}[X-01]", bound=0.9)]
    foreign = [{**one, "digest": 2} for one in own if one["test"] != "t::same"] + [record("t::same", close=0.99)]
    foreign[[one["test"] for one in foreign].index("t::worse")]["shares"] = {"close": 1.0}
    table = {one.test: one for one in sensitive.choose(own, foreign)}
    assert table["t::many"].numeric == ("[4]", "[5]", "[6]") and table["t::many"].cases == 7 and table["t::many"].near == 0.6
    assert table["t::near"].numeric == table["t::near"].edge == ("",) and table["t::far"].numeric == () and table["t::long"].numeric == ()
    assert table["atlas X-01"].numeric == ("",) and table["atlas X-02"].numeric == table["atlas X-01"].edge == ()
    # Run as a row of the atlas by the matrix, as a test beside the others on the edge.
    assert table[sensitive.EXHIBITS].numeric == () and table[sensitive.EXHIBITS].edge == ("[X-01]",) and table["t::many"].edge == ("[6]",)
    # The same numbers in both arithmetics are not on the edge; what is nearer in the foreign one is.
    assert table["t::same"].numeric == ("",) and table["t::same"].edge == () and table["t::worse"].near == 1.0 and table["t::worse"].edge


def test_a_verdict_that_was_once_turned_is_in_every_part(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sensitive, "key", lambda test: "k")
    monkeypatch.setattr(sensitive, "PINNED", {"t::far[1]", "atlas X-01"})
    own = [*(record(f"t::far[{number}]", close=0.001) for number in range(3)), record("atlas X-01", seconds=99)]
    chosen, exhibit = sensitive.choose(own, [])
    assert chosen.numeric == chosen.edge == ("[1]",) and (exhibit.numeric, exhibit.edge) == (("",), ())
    monkeypatch.undo()
    kept = {test + case for test, one in sensitive.read().items() for case in (*one.edge, *one.numeric * test.startswith("atlas "))}
    assert kept >= sensitive.PINNED


def test_the_key_of_an_exhibit_is_that_of_its_source():
    assert sensitive.key("atlas FN-01") == row_source("FN-01", exhibits()["FN-01"])
    assert sensitive.key("atlas XX-01") == ""


def test_only_measurements_of_the_source_as_it_is_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sensitive, "key", lambda test: {"t::a": "1", "t::b": "2"}.get(test, ""))
    lines = [{"test": "t::a[x]", "key": "0"}, {"test": "t::a[x]", "key": "1"}, {"test": "t::b", "key": "1"}, {"test": "t::gone", "key": ""}]
    (tmp_path / "h.jsonl").write_text("\n".join(map(json.dumps, lines)) + '\n{"test": "t::')
    assert sensitive.current(sensitive.records(tmp_path / "h.jsonl")) == [lines[1]]
    assert list(sensitive.records(tmp_path / "none.jsonl")) == []


def test_the_table_survives_the_disk(tmp_path: Path):
    table = [line("tests/a.py::test_b", ("[x-1]", '["\t]'), ("[x-1]",)), line("atlas LM-16", ("",))]
    sensitive.write(table, tmp_path / "t.tsv")
    assert sensitive.read(tmp_path / "t.tsv") == {one.test: one for one in table}
    assert sensitive.read(tmp_path / "none.tsv") == {}


def test_the_table_kept_here_still_speaks_of_most_tests():
    table = sensitive.read()
    kept = [one for one in table.values() if one.key and sensitive.key(one.test) == one.key]
    assert len(kept) > 0.6 * len(table), "most tests have changed since they were measured: python benchmarks/matrix.py --measure"
    assert all(set(one.edge) <= set(one.numeric) for one in table.values() if one.test != sensitive.EXHIBITS)
    assert any(one.edge for one in kept) and any(one.test.startswith("atlas ") and one.numeric for one in kept)


# What a test uses of its room


def test_nearness_to_a_bound():
    assert headroom.closeness(0.5, "<", 1.0) == headroom.closeness(2.0, ">", 1.0) == 0.5
    assert headroom.closeness(-3.0, "<", -1.0) == pytest.approx(1 / 3) and headroom.closeness(1e-8, "<", 1e-6) == pytest.approx(0.01)
    assert headroom.closeness(0.9999, ">", 0.99) == pytest.approx(0.01) and headroom.closeness(0.991, ">", 0.99) == pytest.approx(0.9)
    assert headroom.closeness(0.0, "<", 1.0) == 0.5 and headroom.closeness(float("nan"), "<", 1.0) == float("inf")


def test_comparisons_are_read_from_what_pytest_explains():
    def read(text: str) -> list[tuple[float, str, float]]:
        return [one[:3] for one in headroom.bounds(text)]

    assert read("tensor(2.5e-05) < 1e-04") == [(2.5e-05, "<", 1e-04)]
    assert read("(1 == 1 and np.float64(0.5) >= (0.5 * 3))") == [(0.5, ">", 1.5)]
    assert read("0.1 < tensor(0.2, dtype=torch.float64) <= -0.3") == [(0.1, "<", 0.2), (0.2, "<", -0.3)]
    with pytest.raises(ValueError):
        read("all(<generator>) < f(1)".replace("<generator>", "x"))


MEASURED = """
import numpy as np, pytest, torch
def test_close(): torch.testing.assert_close(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.5]), rtol=0, atol=1.0)
def test_all(): assert torch.allclose(torch.tensor(1.0), torch.tensor(1.1), rtol=0, atol=0.2)
def test_numpy(): np.testing.assert_allclose(np.ones(3), np.full(3, 1.25), rtol=0.4)
def test_approx(): assert [1.0, 3.0] == pytest.approx([1.0, 3.1], abs=0.4, rel=0)
def test_bits(): assert torch.equal(torch.ones(2), torch.ones(2))
def test_whole(): assert torch.equal(torch.arange(2), torch.arange(2)) and 3 < 4
def test_bound():
    loss = torch.tensor(0.75)
    assert loss < 3 and 2.5 > loss
def test_unread(): assert all(x < 0.5 for x in (0.1, 0.2))
def test_clock():
    seconds = 0.75
    assert seconds < 1.5
def test_wrong(): torch.testing.assert_close(torch.zeros(1), torch.ones(1))
"""


def test_what_a_run_measures(tmp_path: Path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_few.py").write_text(MEASURED)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    out = tmp_path / "out.jsonl"
    flags = ["-q", "-p", "no:cacheprovider", "-p", "tests.headroom", "-o", "enable_assertion_pass_hook=true", f"--rootdir={tmp_path}"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *flags, "-c", str(tmp_path / "pytest.ini"), str(tmp_path / "tests")],
        cwd=ROOT,
        env={**os.environ, "SONDE_HEADROOM": str(out), "PYTHONPYCACHEPREFIX": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    records = {one["test"].rpartition("::")[2]: one for one in map(json.loads, out.read_text().splitlines())}
    shares = {name: {kind: round(share, 3) for kind, share in one["shares"].items()} for name, one in records.items()}
    assert shares.pop("test_wrong")["close"] > 1 and records["test_wrong"]["outcome"] == "failed"
    assert shares == {
        "test_close": {"close": 0.5},
        "test_all": {"close": 0.5},
        "test_numpy": {"close": 0.5},
        "test_approx": {"close": 0.25},
        "test_bits": {"bits": 0.0},
        "test_whole": {},
        "test_bound": {"bound": 0.3},
        "test_unread": {"unread": 0.0},
        "test_clock": {},
    }
    assert all(one["seconds"] >= 0 and "key" in one for one in records.values())
    assert records["test_bits"]["digest"] != records["test_whole"]["digest"] == 0


def test_an_edge_that_has_grown_is_said():
    assert matrix.too_long(matrix.EDGE_SECONDS) == ""
    assert "75 s of each core, more than 60" in matrix.too_long(75.2)


def test_lines_of_renamed_sources_are_carried_over():
    here = "tests/test_matrix.py::"
    held, stale, gone = (
        here + "test_every_value_the_matrix_promises_has_a_row",
        here + "test_lines_of_renamed_sources_are_carried_over",
        here,
    )
    table = {name: sensitive.Measured(name, "measured", 1, 0.5, 0.1, ("",), ()) for name in (held, stale, gone)}
    lines = sensitive.carry(table, {held: "measured", stale: "changed before that", gone: "measured"})
    assert {line.test: line.key for line in lines} == {held: sensitive.key(held), stale: "measured"}
