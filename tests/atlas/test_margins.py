"""Margins: the rules by hand, the tool on made-up exhibits, and the kept table against the thresholds in the code."""

from __future__ import annotations

import ast
import importlib
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from sonde.atlas import _margins, runner
from sonde.atlas._margins import FIXED, MIN_MARGIN, SEEDS, Margin
from sonde.atlas.exhibit import FOLDER, Exhibit, Finding, Result, exhibits, row_source, run
from sonde.cli.main import main
from sonde.core.errors import BadInput, DataUnusable


def margin(rule, bound=0.0, trainings=1, passed=20, mean=0.0, sd=1.0, seeds=20):
    return Margin("PAR-01", "built-in", "x", rule, bound, trainings, seeds, passed, mean, sd)


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        (margin("above", bound=0.9, mean=0.95, sd=0.01), 5.0),
        (margin("below", bound=0.9, mean=0.95, sd=0.01), -5.0),
        (margin("below", bound=0.9, mean=0.86, sd=0.02), 2.0),
        (margin("mean above", bound=0.9, mean=0.95, sd=0.05, trainings=9), 3.0),
        (margin("mean below", bound=0.9, mean=0.8, sd=0.1, trainings=4), 2.0),
        (margin("within", bound=0.5, mean=-0.2, sd=0.1), 3.0),
        (margin("within", bound=0.5, mean=0.2, sd=0.1), 3.0),
        (margin("ordered", mean=0.3, sd=0.1), 3.0),
        (margin("above", bound=1.0, mean=2.0, sd=0.0), math.inf),
        (margin("above", bound=3.0, mean=2.0, sd=0.0), -math.inf),
    ],
)
def test_margins_by_hand(line, wanted):
    assert line.margin == pytest.approx(wanted)


def test_what_is_enough():
    assert margin("above", mean=3.0).is_sufficient
    assert not margin("above", mean=2.99).is_sufficient
    assert not margin("within", bound=3.0, mean=0.01).is_sufficient
    # A mean may miss with single seeds, everything else with none.
    assert not margin("above", mean=30.0, passed=19).is_sufficient
    assert not margin("within", bound=30.0, passed=19).is_sufficient
    assert margin("mean above", mean=1.0, trainings=9, passed=15).is_sufficient
    assert margin("ordered", mean=0.1).is_sufficient
    assert not margin("ordered", mean=10.0, passed=19).is_sufficient
    assert not margin("equal", mean=math.nan, passed=19).is_sufficient


def test_means_and_orderings(tmp_path):
    exhibit = Exhibit(tmp_path)
    exhibit.above("mean above", [0.8, 1.0, 1.2], 0.9, mean=True)
    exhibit.above("mean is not", [0.8, 0.8, 1.0], 0.9, mean=True)
    exhibit.below("mean below", [0.8, 0.8, 1.0], 0.9, mean=True)
    exhibit.below("mean is not below", [0.8, 1.0, 1.2], 0.9, mean=True)
    exhibit.exceeds("every seed", [1.0, 2.0], [0.5, 1.5])
    exhibit.exceeds("not every seed", [1.0, 2.0], [0.5, 2.5])
    exhibit.exceeds("above a number", [1.0, 2.0], 0.5)
    exhibit.exceeds("a tie", [1.0, 2.0], 1.0)
    exhibit.exceeds("nothing", [1.0, math.nan], 0.0)
    assert [finding.passed for finding in exhibit.findings] == [True, False, True, False, True, False, True, False, False]
    assert exhibit.findings[4].values == (0.5, 0.5) and exhibit.findings[5].values == (0.5, -0.5)
    with pytest.raises(BadInput, match="compares 2 numbers with 3"):
        exhibit.exceeds("uneven", [1.0, 2.0], [1.0, 2.0, 3.0])


def test_seeds_follow_from_one_number(tmp_path):
    assert [list(Exhibit(tmp_path, seed).seeds(3)) for seed in (0, 1)] == [[0, 1, 2], [3, 4, 5]]
    sampled = Exhibit(tmp_path, 7, sampled=True)
    assert list(sampled.seeds(5)) == [7]
    sampled.above("one is enough for a sample", [0.5], 0.1, mean=True)
    assert sampled.findings[0].trainings == 5
    draws = {float(Exhibit(tmp_path, seed).generator("x").initial_seed()) for seed in range(4)}
    assert len(draws) == 4


DRAWN = """
import torch
def par_01(exhibit):
    values = [10 + float(torch.randn(1, generator=torch.Generator().manual_seed(seed))) for seed in exhibit.seeds(4)]
    exhibit.above("each", values, {bound})
    exhibit.above("mean", values, {bound}, mean=True)
    exhibit.expect("layer", torch.nn.Linear(1, 1).weight.item(), 0.0, within=1e6)
    exhibit.expect("fixed", 3, 3)
    return "drawn"
"""


@pytest.fixture
def drawn(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "chapters"
    folder.mkdir()
    (folder / "par.py").write_text(DRAWN.format(bound=4.0), encoding="utf-8")
    return folder


def test_samples_of_a_made_up_exhibit(drawn, tmp_path, capsys):
    table = tmp_path / "margins.tsv"
    assert runner.distribution(["PAR-01"], 20, jobs=2, table=table, folder=drawn) == 0
    lines = {line.name: line for line in _margins.read(table)}
    import torch

    wanted = torch.tensor([10 + float(torch.randn(1, generator=torch.Generator().manual_seed(seed))) for seed in range(20)]).double()
    assert set(lines) == {"each", "mean", "layer"}
    assert lines["layer"].sd > 0  # fresh layers draw other weights with another seed
    assert lines["each"].mean == pytest.approx(float(wanted.mean()), rel=1e-5)
    assert lines["each"].sd == pytest.approx(float(wanted.std()), rel=1e-5)
    assert lines["mean"].margin == pytest.approx(2 * lines["each"].margin) and lines["mean"].trainings == 4
    assert (lines["each"].seeds, lines["each"].passed) == (20, 20)
    out = capsys.readouterr().out
    assert "3 of 3 margins are large enough" in out
    assert (tmp_path / "cache" / "sonde" / "atlas" / "PAR-01-seeds.png").stat().st_size > 1000


def test_a_threshold_that_is_too_near_fails(drawn, capsys):
    (drawn / "par.py").write_text(DRAWN.format(bound=8.5), encoding="utf-8")
    assert runner.distribution(["PAR-01"], 20, folder=drawn) == 1
    assert "2 of 3 margins are large enough" in capsys.readouterr().out


def test_a_row_that_does_not_run_is_named_and_costs_no_other(drawn, capsys):
    body = DRAWN.format(bound=4.0) + "\ndef par_02(exhibit):\n    return 1 / (exhibit.seed - 1)\n"
    (drawn / "par.py").write_text(body, encoding="utf-8")
    assert runner.distribution(["PAR-01", "PAR-02"], 3, folder=drawn) == 1
    out = capsys.readouterr().out
    assert "PAR-02 did not run with seed" in out and "1 rows did not run" in out and "each" in out


def test_the_table_is_renewed_row_by_row(tmp_path):
    path = tmp_path / "margins.tsv"
    old = [margin("above", mean=4.0), Margin("MLP-01", "built-in", "y", "below", 1.0, 1, 20, 20, 0.5, 0.01)]
    _margins.write(old, path)
    assert _margins.read(path) == sorted(old, key=lambda line: line.row)
    new = [margin("above", mean=5.0), Margin("PAR-01", "real", "x", "above", 0.0, 1, 20, 20, 9.0, 1.0)]
    _margins.write(new, path)
    assert {(line.row, line.data, line.mean) for line in _margins.read(path)} == {
        ("MLP-01", "built-in", 0.5),
        ("PAR-01", "built-in", 5.0),
        ("PAR-01", "real", 9.0),
    }
    path.write_text("no\ttable\n", encoding="utf-8")
    with pytest.raises(DataUnusable, match="not a table of margins"):
        _margins.read(path)


def sample(seed, *findings):
    return Result("PAR-01", "x", 0.0, "", findings, seed=seed)


def test_a_bound_that_no_seed_comes_near_has_a_line():
    best = Finding("share", "1", "> 0.95", True, "above", (1.0,), 0.95)
    same = Finding("difference", "0", "0", True, "within", (0.0,), 1e-6)
    exact = Finding("count", "3", "3", True, "within", (0.0,), 0.0)
    lines = _margins.measure([sample(seed, best, same, exact) for seed in range(20)], "built-in")
    assert [(line.name, line.sd, line.margin, line.is_sufficient) for line in lines] == [
        ("share", 0.0, math.inf, True),
        ("difference", 0.0, math.inf, True),
    ]


def test_a_count_that_a_seed_missed_has_a_line():
    exact = Finding("count", "3", "3", True, "within", (0.0,), 0.0)
    missed = exact._replace(passed=False, values=(1.0,))
    (line,) = _margins.measure([sample(seed, missed if seed == 7 else exact) for seed in range(20)], "built-in")
    assert (line.name, line.passed, line.is_sufficient) == ("count", 19, False)


def test_what_is_not_measured_with_every_seed_is_refused():
    finding = Finding("share", "1", "> 0.95", True, "above", (1.0,), 0.95)
    with pytest.raises(DataUnusable, match="with 1 of 2 seeds"):
        _margins.measure([sample(0, finding), sample(1)], "built-in")
    with pytest.raises(DataUnusable, match="not finite: share"):
        _margins.measure([sample(0, finding), sample(1, finding._replace(values=()))], "built-in")


def test_a_text_that_changes_with_the_seed_is_seen():
    results = [Result("PAR-01", "x", 0.0, "", (Finding("word", "a", "a", seed != 3),), seed=seed) for seed in range(20)]
    (line,) = _margins.measure(results, "built-in")
    assert (line.rule, line.passed) == ("equal", 19) and not line.is_sufficient
    (fixed,) = _margins.measure(results[:3], "built-in")
    assert fixed.rule == FIXED and fixed.is_sufficient


@pytest.mark.parametrize("words", [["LM-16", "--check", "--seeds", "3"], ["--table", "x.tsv"], ["LM-16", "--seeds", "1"], ["--jobs", "2"]])
def test_wrong_words(words, capsys):
    assert main(["atlas", *words]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


# The kept table ------------------------------------------------------------------------------------------------------

KEPT = _margins.read()


def test_every_row_was_measured():
    assert {line.row for line in KEPT if line.data == "built-in"} == set(exhibits())
    # These take real images where they lie in the data folder, and state other bounds for them.
    assert {line.row for line in KEPT if line.data == "real"} == {"APP-01", "APP-02"}


def test_rows_were_measured_over_enough_seeds():
    assert SEEDS == 20
    assert [line for line in KEPT if line.seeds < SEEDS] == []


def test_every_kept_margin_is_large_enough():
    assert [f"{line.row} {line.name}: {line.margin:.2f}" for line in KEPT if not line.is_sufficient] == []
    assert MIN_MARGIN == 3.0


def faults(kept: list[Margin]) -> list[str]:
    """Lines of a table that no check in the source explains, and checks in the source that no line answers to; nothing is run.

    A name or a bound that is worked out when the exhibit runs fits anything here; running the exhibit compares it (`stale`).
    """
    written = {path.stem: list(checks(path)) for path in FOLDER.glob("*.py")}
    shared = [check for stem, of_file in written.items() if stem.startswith("_") for check in of_file]
    words, answered = [], set()
    for line in kept:
        if line.rule in (FIXED, "equal"):
            continue
        fitting = [
            check for check in written[exhibits()[line.row].stem] + shared if check.rule == line.rule and check.name.fullmatch(line.name)
        ]
        answered |= set(fitting)
        bounds = [check.bound for check in fitting]
        if None not in bounds and not any(f"{bound:.6g}" == f"{line.bound:.6g}" for bound in bounds if bound is not None):
            words.append(f"{line.row} {line.name}: {line.rule} {line.bound:g} in the table, {bounds} in the code; run make margins")
    for stem, of_file in written.items():
        missing = [check for check in of_file if not (check.rule == "within" and check.bound == 0) and check not in answered]
        words += [f"{stem}.py: {check.rule} '{check.name.pattern}' was never measured; run make margins" for check in missing]
    return words


def test_kept_thresholds_are_those_of_the_code():
    assert faults(KEPT) == []


def test_margins_were_measured_with_the_present_source():
    source = {row: row_source(row, path) for row, path in exhibits().items()}
    stale = sorted({line.row for line in KEPT if line.source != source[line.row]})
    assert stale == [], f"run make margins ROWS='{' '.join(stale)}', or benchmarks/identical.py --carry where only names changed"


@pytest.mark.parametrize(
    ("values", "drift"),
    [
        ([0.95, 0.97], 0.0),
        ([0.93, 0.93, 0.93], 0.0),
        ([0.92, 0.92], 0.04 / (0.01 * math.sqrt(1 / 2 + 1 / 20))),
        ([0.85], 0.11 / (0.01 * math.sqrt(1 + 1 / 20))),
    ],
)
def test_a_run_that_moved_away_from_its_margin_is_measured(values, drift):
    line = margin("above", bound=0.9, mean=0.96, sd=0.01)
    assert line.drift(values) == pytest.approx(drift)


def test_less_training_is_seen_before_the_bound_is():
    line = margin("above", bound=0.9, mean=0.96, sd=0.01, trainings=3)
    finding = Finding("x", "0.92", "> 0.9", True, "above", (0.918, 0.921, 0.922), 0.9, 3)
    result = Result("PAR-01", "x", 0.0, "", (finding,))
    assert _margins.stale(result, [line]) == ["x: 6.4 standard errors from 0.96, which was measured over seeds"]
    near = finding._replace(values=(0.94, 0.95, 0.93))
    assert _margins.stale(replace(result, findings=(near,)), [line]) == []
    # What differs from zero by rounding may have any spread: only a margin that is gone counts.
    rounding = margin("within", bound=1e-10, mean=1e-16, sd=1e-17)
    assert rounding.drift([9e-16]) == 0.0
    assert margin("within", bound=1e-10, mean=0.0, sd=0.0).drift([2e-10]) == math.inf
    assert margin("ordered", mean=0.3, sd=0.1).drift([-5.0]) == 0.0


def comparisons(path: Path) -> Iterator[str]:
    """Thresholds hidden in a yes or no: `expect(name, a < 0.1, True)` has no number that could be measured over seeds."""
    for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(call, ast.Call) and getattr(call.func, "attr", "") == "expect" and getattr(call.args[-1], "value", None) is True:
            for one in ast.walk(call.args[1]):
                if isinstance(one, ast.Compare) and any(isinstance(op, (ast.Lt, ast.Gt)) for op in one.ops):
                    yield f"{path.name}:{call.lineno}"


def test_no_threshold_hides_in_a_yes_or_no(tmp_path):
    hits = {place for path in FOLDER.glob("*.py") for place in comparisons(path)}
    # LM-12 counts letters, of which there must be several.
    assert {place.partition(":")[0] for place in hits} <= {"language_models.py"} and len(hits) == 1
    (tmp_path / "x.py").write_text('exhibit.expect("small", float(gap) < 1e-4, True)\n')
    assert list(comparisons(tmp_path / "x.py")) == ["x.py:1"]


class Check(NamedTuple):
    """A check as the source writes it."""

    name: re.Pattern[str]
    rule: str
    bound: float | None
    """None where it is worked out when the exhibit runs"""


def checks(path: Path) -> Iterator[Check]:
    """Every check of a number in a file."""
    position = {"above": 2, "below": 2, "expect": 3, "exceeds": 9}
    rules = {"expect": "within", "exceeds": "ordered"}
    known = vars(importlib.import_module(f"sonde.atlas.{path.stem}"))
    for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in position):
            continue
        if not (isinstance(call.func.value, ast.Name) and call.func.value.id == "exhibit"):
            continue
        kind, keywords = call.func.attr, {word.arg: word.value for word in call.keywords}
        at = position[kind]
        node = call.args[at] if len(call.args) > at else keywords.get("bound", keywords.get("within", ast.Constant(0.0)))
        try:
            expression = ast.fix_missing_locations(ast.Expression(node))
            bound = float(eval(compile(expression, path.name, "eval"), {"__builtins__": {}}, known))
        except Exception:
            bound = None
        mean = "mean " if getattr(keywords.get("mean"), "value", False) else ""
        yield Check(re.compile(pattern(call.args[0])), mean + rules.get(kind, kind), bound)


def pattern(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return re.escape(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(re.escape(part.value) if isinstance(part, ast.Constant) else ".*" for part in node.values)
    return ".*"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda line: replace(line, bound=line.bound + 1), "in the table"),
        (lambda line: replace(line, name=f"{line.name}, renamed"), "in the table"),
        (lambda line: replace(line, rule={"above": "mean above"}.get(line.rule, line.rule)), "in the table"),
        (lambda line: replace(line, rule=FIXED), "never measured"),
        (lambda line: replace(line, rule=FIXED if line.rule == "ordered" else line.rule), "never measured"),
    ],
    ids=["bound", "name", "mean", "missing", "ordering"],
)
def test_a_changed_table_is_seen(change, words):
    assert any(words in fault for fault in faults([change(line) for line in KEPT]))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda line: replace(line, bound=line.bound * 2), "measured over seeds with"),
        (lambda line: replace(line, rule="mean below"), "measured over seeds with"),
        (lambda line: replace(line, name="other"), "never measured over seeds"),
        (lambda line: replace(line, name="other"), "no longer checked"),
    ],
)
def test_a_result_is_held_against_the_table(change, words):
    result = run("FN-01")
    assert _margins.stale(result, KEPT) == []
    assert any(words in text for text in _margins.stale(result, [change(line) for line in KEPT]))
    assert _margins.stale(result, []) == ["it was never measured over seeds"]


def test_the_seeds_of_a_mean_are_compared():
    result = Result("PAR-01", "x", 0.0, "", (Finding("x", "1", "> 0", True, "mean above", (1.0, 1.0), 0.0, 2),))
    assert _margins.stale(result, [margin("mean above", trainings=2)]) == []
    assert _margins.stale(replace(result, source="other"), [margin("mean above", trainings=2)]) == [
        "its source has changed since it was measured over seeds"
    ]
    assert _margins.stale(result, [margin("mean above", trainings=5)]) == ["x: 2 seeds, measured as one of 5"]
    each = Result("PAR-01", "x", 0.0, "", (Finding("x", "1", "> 0", True, "above", (1.0, 1.0), 0.0, 2),))
    assert _margins.stale(each, [margin("above", trainings=3)]) == ["x: 2 seeds, measured as one of 3"]
