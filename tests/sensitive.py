"""Numerically sensitive tests and exhibits: those whose outcome could change on another processor, chosen by measurement.

`sensitive.tsv` stores the measurements of a run under `tests/headroom.py` (`python benchmarks/matrix.py --measure` writes it).
Each line is a test function or an exhibit: how close it comes to its bounds, how long it takes, and which of its cases are
`numeric` (run by `make matrix` in every row) or `edge` (the closest ones, run by `make test` in one row).  A test counts as
numeric if it has no line, if its source has changed since it was measured (its own, or code it shares with other tests of
the file), or if its number of cases has changed.  Its edge cases remain edge cases while they exist.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path
from typing import Any

from sonde.atlas.exhibit import exhibits, row_source

ROOT = Path(__file__).resolve().parent.parent
TABLE = Path(__file__).with_suffix(".tsv")
EXHIBITS = "tests/atlas/test_exhibits.py::test_passes"
"""the test that runs the short exhibits; `make matrix` runs them as rows of the atlas instead"""

MIN_NEARNESS = {"close": 0.01, "bound": 0.5}
"""a test is numeric above these: it uses a hundredth of a tolerance, or is within a factor of two of a bound"""
UNKNOWN = 0.1
"""nearness of a comparison of bits, and of one that could not be parsed: their distance is not known"""
CASES = 4
"""maximum number of cases of one test function, the closest; more would repeat the same arithmetic"""
PARTS: dict[str, dict[str, tuple[float, float]]] = {
    "numeric": {"tests": (230.0, 10.0), "atlas": (130.0, 25.0)},
    "edge": {"tests": (36.0, 3.0)},
}
"""processor seconds allowed for all tests or exhibits of each part, and for a single one"""
PINNED = {
    *("atlas LM-16", "atlas APP-01", "atlas APP-02"),
    "tests/estimators/test_logistic.py::test_a_row_far_from_all_others[3-LogisticRegression-2-lbfgs]",
}
"""tests and exhibits that once failed on another processor: always included, however far from their bounds they are now"""


@dataclass(frozen=True)
class Measured:
    """One line of the table."""

    test: str
    """`tests/nn/test_block.py::test_name`, or `atlas LM-16`"""
    key: str
    """hash of the source it was measured with"""
    cases: int
    near: float
    """largest used fraction of a tolerance, or nearness to a bound"""
    seconds: float
    """processor time of all cases"""
    numeric: tuple[str, ...]
    """names of the chosen cases, such as `[a-1]`; empty for a test without parameters"""
    edge: tuple[str, ...]


@functools.cache
def keys(path: Path) -> dict[str, str]:
    """Test functions of a file -> hash of their source and of everything in the file that is not a test."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    ranges: dict[str, range] = {}
    for node in ast.parse(text).body:
        inside = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{node.name}::" if isinstance(node, ast.ClassDef) else ""
        for one in inside:
            if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef)) and one.name.startswith("test"):
                first = min([one.lineno, *(decorator.lineno for decorator in one.decorator_list)])
                ranges[prefix + one.name] = range(first - 1, one.end_lineno or first)
    tests = {number for lines_of_test in ranges.values() for number in lines_of_test}
    shared = "\n".join(line for number, line in enumerate(lines) if number not in tests and line.strip())
    return {name: _hash(shared + "\n" + "\n".join(lines[number] for number in numbers)) for name, numbers in ranges.items()}


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:10]


@functools.cache
def _exhibits() -> dict[str, Path]:
    return exhibits()


def key(test: str) -> str:
    """Hash of the present source of a test; empty if there is no such test."""
    if test.startswith("atlas "):
        row = test.removeprefix("atlas ")
        return row_source(row, _exhibits()[row]) if row in _exhibits() else ""
    file, _, name = test.partition("::")
    path = ROOT / file
    return keys(path).get(name, "") if path.exists() else ""


def read(path: Path = TABLE) -> dict[str, Measured]:
    """Read the table, by test; empty if there is no file, and then every test is numeric."""
    table = {}
    for line in path.read_text(encoding="utf-8").splitlines()[1:] if path.exists() else []:
        test, source_hash, cases, near, seconds, numeric, edge = line.split("\t")
        table[test] = Measured(
            test, source_hash, int(cases), float(near), float(seconds), tuple(json.loads(numeric)), tuple(json.loads(edge))
        )
    return table


def write(table: Iterable[Measured], path: Path = TABLE) -> None:
    lines = ["\t".join(field.name for field in fields(Measured))]
    for one in sorted(table, key=lambda one: one.test):
        lines.append("\t".join(json.dumps(part) if isinstance(part, tuple) else str(part) for part in astuple(one)))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def fresh(table: dict[str, Measured], test: str, cases: int) -> bool:
    """Whether the line of a test was measured with its present source and number of cases."""
    return test in table and table[test].cases == cases and table[test].key == key(test)


def carry(table: dict[str, Measured], before: dict[str, str]) -> list[Measured]:
    """Lines of the tests that still exist; those that were up to date with the hashes `before` get the present hash."""
    return [replace(line, key=key(test)) if before.get(test) == line.key else line for test, line in table.items() if key(test)]


def parts(table: dict[str, Measured], tests: dict[str, list[str]]) -> tuple[set[str], set[str], list[str]]:
    """Numeric cases, edge cases, and tests without an up-to-date measurement.

    Args:
        table: the measurements, by test
        tests: names of tests -> names of their cases
    """
    numeric: set[str] = set()
    edge: set[str] = set()
    unmeasured = []
    for test, cases in tests.items():
        if fresh(table, test, len(cases)):
            numeric |= {test + case for case in table[test].numeric}
            edge |= {test + case for case in table[test].edge}
        else:
            unmeasured.append(test)
            numeric |= {test + case for case in cases}
            edge |= {test + case for case in cases if test in table and case in table[test].edge}
    return numeric, edge, unmeasured


def split(name: str) -> tuple[str, str]:
    """`tests/x.py::test_a[b-1]` -> the test and its case `[b-1]`."""
    test, bracket, case = name.partition("[")
    return test, bracket + case


def files(table: dict[str, Measured], part: str) -> list[str]:
    """Test files that may have tests of a part; the others need not be imported."""
    known = defaultdict(list)
    for one in table.values():
        known[one.test.partition("::")[0]].append(one)
    names = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        name = path.relative_to(ROOT).as_posix()
        measured = {one.test: one for one in known[name]}
        changed = any(test not in measured or measured[test].key != present for test, present in _tests(path, name).items())
        if any(getattr(one, part) for one in known[name]) or (part == "numeric" and changed):
            names.append(name)
    return names


def _tests(path: Path, name: str) -> dict[str, str]:
    return {f"{name}::{test}": source_hash for test, source_hash in keys(path).items()}


def records(path: Path) -> Iterator[dict[str, Any]]:
    """Lines of a file of measurements; a line cut off by a crash is skipped."""
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            yield json.loads(line)
        except ValueError:
            continue


def current(records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Last measurement of every case, if it was made with the present source."""
    latest = {record["test"]: record for record in records}
    return [record for record in latest.values() if record["key"] and record["key"] == key(split(record["test"])[0])]


def choose(records: Iterable[dict[str, Any]], foreign: Iterable[dict[str, Any]]) -> list[Measured]:
    """Make the table: the closest cases, as many as fit into the time of each part.

    Args:
        records: measurements of tests and exhibits with the machine's own arithmetic
        foreign: the same for numeric cases in the foreign row; only cases with other numbers there can be edge cases
    """
    own, other = ({record["test"]: record for record in lines} for lines in (records, foreign))
    by_test: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
    for name, record in own.items():
        test, case = split(name)
        by_test[test][case] = record
    candidates = []
    for test, cases in by_test.items():
        near = sorted((-nearest(test + case, own, other), case) for case in cases)
        candidates += [
            (score, cases[case]["seconds"], test, case) for score, case in near[: None if test == EXHIBITS else CASES] if score < 0
        ]
    chosen: dict[str, set[str]] = {}
    for part, budgets in PARTS.items():
        spent, chosen[part] = dict.fromkeys(budgets, 0.0), {name for name in PINNED & set(own) if _kind(name) in budgets}
        for _, seconds, test, case in sorted(candidates):
            kind = _kind(test)
            budget, longest = budgets.get(kind, (0.0, 0.0))
            fits = seconds <= longest and spent.get(kind, 0.0) + seconds <= budget
            if fits and (moved(test + case, own, other) if part == "edge" else test != EXHIBITS):
                chosen[part].add(test + case)
                spent[kind] += seconds + 0.01  # setup and report
    return [
        Measured(
            test,
            key(test),
            len(cases),
            round(max(nearest(test + case, own, other) for case in cases), 4),
            round(sum(record["seconds"] for record in cases.values()), 2),
            *(tuple(sorted(case for case in cases if test + case in chosen[part])) for part in PARTS),
        )
        for test, cases in by_test.items()
    ]


def _kind(test: str) -> str:
    return "atlas" if test.startswith("atlas ") else "tests"


def nearest(name: str, *measurements: dict[str, dict[str, Any]]) -> float:
    """How close a case comes to failing, in the worst of its measurements."""
    return max((nearness(one[name]) for one in measurements if name in one), default=0.0)


def moved(name: str, own: dict[str, dict[str, Any]], other: dict[str, dict[str, Any]]) -> bool:
    """Whether a case was measured in both rows and compared different numbers in them."""
    test, case = split(name)
    name = f"atlas {case[1:-1]}" if test == EXHIBITS else name
    return name in own and name in other and own[name]["digest"] != other[name]["digest"]


def nearness(record: dict[str, Any]) -> float:
    """How close a case comes to failing: 0 far away, 1 at the bound."""
    if record["outcome"] == "skipped":
        return 0.0
    if record["outcome"] != "passed":
        return 1.0
    fractions = record["shares"]
    # A test that passed although it exceeded the tolerance checks that two values differ.
    closest = {kind: fraction if fraction <= 1 else 1 / fraction for kind, fraction in fractions.items()}
    near = [closest[kind] for kind, minimum in MIN_NEARNESS.items() if closest.get(kind, 0.0) > minimum]
    return max([*near, *(UNKNOWN for kind in ("bits", "unread") if kind in fractions)], default=0.0)
