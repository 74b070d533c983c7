"""Which verdicts could another processor turn?  The numerically sensitive part of the suite and of the atlas, chosen by measurement.

`sensitive.tsv` keeps what one run under `tests/headroom.py` measured (`python benchmarks/matrix.py --measure` writes it), one line
for a test function or an exhibit: how near it comes to its bounds, how long it takes, and which of its cases are `numeric`
(run by `make matrix` under every arithmetic) or `edge` (the nearest, run by `make test` under one).  No line goes stale unseen:
a test that has none, whose source has changed since (its own, or what it shares in its file), or that has gained or lost cases
counts as numeric; what was its edge and still exists remains so.
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
"""runs the short exhibits as tests; a matrix runs them as rows of the atlas instead"""

LEAST = {"close": 0.01, "bound": 0.5}
"""what must be used of a tolerance, or how near a bound be, to count: a hundredth of it, a factor of two"""
BLIND = 0.1
"""the nearness that a comparison of bits, or one that could not be read, is given: they show no distance"""
CASES = 4
"""cases of one test function, the nearest; more of them repeat the same arithmetic"""
PARTS: dict[str, dict[str, tuple[float, float]]] = {
    "numeric": {"tests": (300.0, 10.0), "atlas": (160.0, 25.0)},
    "edge": {"tests": (40.0, 3.0)},
}
"""seconds of one core that tests and exhibits of each part may take, as measured, and the longest of them"""
PINNED = {
    *("atlas LM-16", "atlas APP-01", "atlas APP-02"),
    "tests/estimators/test_logistic.py::test_a_row_far_from_all_others[3-LogisticRegression-2-lbfgs]",
}
"""verdicts that another processor once turned: in every part for their kind, however far from their bounds they are now"""


@dataclass(frozen=True)
class Measured:
    """One line of the table."""

    test: str
    """`tests/nn/test_block.py::test_name`, or `atlas LM-16`"""
    key: str
    """of the source it was measured with"""
    cases: int
    near: float
    """the largest share of a tolerance used, or nearness to a bound"""
    seconds: float
    """of all cases"""
    numeric: tuple[str, ...]
    """names of the cases chosen: `[a-1]`, or an empty name where there is only one"""
    edge: tuple[str, ...]


@functools.cache
def keys(path: Path) -> dict[str, str]:
    """Test functions of a file -> a hash of their source and of all that is not a test in the same file."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    places: dict[str, range] = {}
    for node in ast.parse(text).body:
        inside = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{node.name}::" if isinstance(node, ast.ClassDef) else ""
        for one in inside:
            if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef)) and one.name.startswith("test"):
                first = min([one.lineno, *(decorator.lineno for decorator in one.decorator_list)])
                places[prefix + one.name] = range(first - 1, one.end_lineno or first)
    tests = {number for place in places.values() for number in place}
    shared = "\n".join(line for number, line in enumerate(lines) if number not in tests and line.strip())
    return {name: _hash(shared + "\n" + "\n".join(lines[number] for number in place)) for name, place in places.items()}


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:10]


@functools.cache
def _exhibits() -> dict[str, Path]:
    return exhibits()


def key(test: str) -> str:
    """The hash of a test's source as it is now; empty if there is no such test."""
    if test.startswith("atlas "):
        row = test.removeprefix("atlas ")
        return row_source(row, _exhibits()[row]) if row in _exhibits() else ""
    file, _, name = test.partition("::")
    path = ROOT / file
    return keys(path).get(name, "") if path.exists() else ""


def read(path: Path = TABLE) -> dict[str, Measured]:
    """The table, by test; without a file nothing was measured, and everything is numeric."""
    table = {}
    for line in path.read_text(encoding="utf-8").splitlines()[1:] if path.exists() else []:
        test, mark, cases, near, seconds, numeric, edge = line.split("\t")
        table[test] = Measured(test, mark, int(cases), float(near), float(seconds), tuple(json.loads(numeric)), tuple(json.loads(edge)))
    return table


def write(table: Iterable[Measured], path: Path = TABLE) -> None:
    lines = ["\t".join(field.name for field in fields(Measured))]
    for one in sorted(table, key=lambda one: one.test):
        lines.append("\t".join(json.dumps(part) if isinstance(part, tuple) else str(part) for part in astuple(one)))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def fresh(table: dict[str, Measured], test: str, cases: int) -> bool:
    """Whether the line of a test still speaks of the test as it is."""
    return test in table and table[test].cases == cases and table[test].key == key(test)


def carry(table: dict[str, Measured], before: dict[str, str]) -> list[Measured]:
    """The lines of tests that still exist; those that were up to date with the keys `before` are so with the present ones."""
    return [replace(line, key=key(test)) if before.get(test) == line.key else line for test, line in table.items() if key(test)]


def parts(table: dict[str, Measured], tests: dict[str, list[str]]) -> tuple[set[str], set[str], list[str]]:
    """Of tests with their cases: the cases (test and case) that are numeric, those on the edge, and the tests not measured as they are."""
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
    """Files that may hold tests of a part, so that the others need not be imported."""
    known = defaultdict(list)
    for one in table.values():
        known[one.test.partition("::")[0]].append(one)
    names = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        name = path.relative_to(ROOT).as_posix()
        measured = {one.test: one for one in known[name]}
        changed = any(test not in measured or measured[test].key != mark for test, mark in _tests(path, name).items())
        if any(getattr(one, part) for one in known[name]) or (part == "numeric" and changed):
            names.append(name)
    return names


def _tests(path: Path, name: str) -> dict[str, str]:
    return {f"{name}::{test}": mark for test, mark in keys(path).items()}


def records(path: Path) -> Iterator[dict[str, Any]]:
    """Lines of a file of measurements; one that was cut off by a crash is left out."""
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            yield json.loads(line)
        except ValueError:
            continue


def current(records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The last measurement of every case, where it was made with the source as it is now."""
    latest = {record["test"]: record for record in records}
    return [record for record in latest.values() if record["key"] and record["key"] == key(split(record["test"])[0])]


def choose(records: Iterable[dict[str, Any]], foreign: Iterable[dict[str, Any]]) -> list[Measured]:
    """The table: the nearest cases, as many as fit into the time of each part.

    Args:
        records: what tests/headroom.py and the exhibits gave in the machine's own arithmetic
        foreign: the same of numeric cases in the foreign row; only what gave other numbers there can be on the edge
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
                spent[kind] += seconds + 0.01  # setting up, and the report
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
    """How near a case comes to another verdict in any of the arithmetics it was measured in."""
    return max((nearness(one[name]) for one in measurements if name in one), default=0.0)


def moved(name: str, own: dict[str, dict[str, Any]], other: dict[str, dict[str, Any]]) -> bool:
    """Whether a case was measured in both arithmetics and compared other numbers in each."""
    test, case = split(name)
    name = f"atlas {case[1:-1]}" if test == EXHIBITS else name
    return name in own and name in other and own[name]["digest"] != other[name]["digest"]


def nearness(record: dict[str, Any]) -> float:
    """How near a case comes to another verdict: 0 far enough, 1 at the edge."""
    if record["outcome"] == "skipped":
        return 0.0
    if record["outcome"] != "passed":
        return 1.0
    shares = record["shares"]
    # A test that passed with more than all the room wanted to see it exceeded.
    nearest = {kind: share if share <= 1 else 1 / share for kind, share in shares.items()}
    near = [nearest[kind] for kind, least in LEAST.items() if nearest.get(kind, 0.0) > least]
    return max([*near, *(BLIND for kind in ("bits", "unread") if kind in shares)], default=0.0)
