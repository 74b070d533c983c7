"""Choose the numerically sensitive part of the tests: how near each test comes to its bounds, kept in tests/sensitive.tsv."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks._arithmetic import ROWS, clean, inside
from benchmarks._plan import ROOT, lacks
from benchmarks._processes import run
from tests import sensitive

TEST_LIMIT, EXHIBIT_LIMIT = 900, 1800.0
"""seconds for one test and one exhibit; several times what the slowest arithmetic needs"""


def carry(revision: str) -> int:
    """Give every line of tests/sensitive.tsv that was up to date at a revision the key of the present source."""
    program = "import json; from tests import sensitive; print(json.dumps({test: sensitive.key(test) for test in sensitive.read()}))"
    with tempfile.TemporaryDirectory(prefix="sonde-matrix-") as folder:
        archive = subprocess.run(["git", "archive", revision, "tests", "sonde"], cwd=ROOT, capture_output=True, check=True).stdout
        subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
        before = json.loads(subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, check=True).stdout)
    table = sensitive.read()
    lines = sensitive.carry(table, before)
    sensitive.write(lines)
    held = sum(line.key == sensitive.key(line.test) for line in lines)
    print(f"{held} lines hold, {len(lines) - held} were not up to date at {revision}, {len(table) - len(lines)} are of tests that are gone")
    return 0


def measure(folder: Path, data: Path | None, jobs: int) -> int:
    """Run what was not measured as it is, in the own arithmetic and its numeric part in the foreign one, and write tests/sensitive.tsv."""
    own, foreign = folder / "headroom.jsonl", folder / "headroom-foreign.jsonl"
    folder.mkdir(parents=True, exist_ok=True)
    rows = {row.name: row for row in ROWS}
    for name, path, marks in (("own", own, "not slow"), ("foreign", foreign, "numeric and not slow")):
        if lacks(rows[name], {"facts": {"built": "base"}}):
            continue
        environment = clean(rows[name].environment) | ({"SONDE_DATA": str(data)} if data else {})
        print(f"{name}: tests that were not measured as they are", file=sys.stderr, flush=True)
        code = measure_tests(path, marks, environment, jobs)
        if code not in (0, 1, 5):  # passed, failed, nothing left to measure
            print(f"pytest ended with exit code {code}; the same command continues", file=sys.stderr)
            return 1
        measure_exhibits(path, name == "foreign", environment, jobs)
        table = sensitive.choose(*(sensitive.current(sensitive.records(one)) for one in (own, foreign)))
        sensitive.write(table)
        print(*(f"{part}: {sum(len(getattr(one, part)) for one in table)} cases" for part in sensitive.PARTS), sep=", ")
    return 0


def measure_tests(path: Path, marks: str, environment: dict[str, str], jobs: int) -> int:
    with tempfile.TemporaryDirectory(prefix="sonde-matrix-") as folder:
        # A new place for compiled tests: those compiled without the hook would be silent.
        more = {"SONDE_HEADROOM": str(path), "PYTHONPYCACHEPREFIX": folder}
        flags = ["-q", "-n", str(jobs), "-p", "no:cacheprovider", "-p", "tests.headroom", "-o", "enable_assertion_pass_hook=true"]
        command = [sys.executable, "-m", "pytest", *flags, "-o", f"timeout={TEST_LIMIT}", "-m", marks, "tests"]
        return run(command, environment | more, ROOT, lambda text: print(text, end="", file=sys.stderr, flush=True))[0]


def measure_exhibits(path: Path, numeric: bool, environment: dict[str, str], jobs: int) -> None:
    from sonde.atlas.exhibit import exhibits
    from sonde.atlas.worker import each
    from tests import headroom

    done = {one["test"] for one in sensitive.current(sensitive.records(path))}
    table = sensitive.read()
    waiting = [row for row in exhibits() if f"atlas {row}" not in done and (not numeric or table[f"atlas {row}"].numeric)]
    with inside(environment):
        for number, result in enumerate(each(waiting, jobs, EXHIBIT_LIMIT), 1):
            record = headroom.Record()
            for finding in result.findings:
                headroom.add_finding(record, finding)
            with open(path, "a", encoding="utf-8") as file:
                file.write(record.line(f"atlas {result.id}", "passed" if result.passed else "failed", result.seconds))
            print(f"{number} of {len(waiting)}: atlas {result.id}, {result.seconds:.1f} s", file=sys.stderr, flush=True)
