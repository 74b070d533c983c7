"""The same verdict on every processor: tests and atlas under every arithmetic this machine can pretend to have.

    python benchmarks/matrix.py                              every row on the numerically sensitive part, then the table
    python benchmarks/matrix.py --rows own foreign --whole   two rows on the whole suite and the whole atlas; --data DIR: with real data
    python benchmarks/matrix.py --table                      the table of what is in the file; runs nothing
    python benchmarks/matrix.py --edge                       the foreign row on the tests nearest to their bounds (`make test` runs it)
    python benchmarks/matrix.py --measure                    choose the sensitive part again: tests/sensitive.tsv
    python benchmarks/matrix.py --carry REVISION             since that revision tests were only renamed: what was measured there holds

A row is a set of environment variables by which torch, MKL, oneDNN, OpenBLAS, NumPy, the C library or our kernels take the code of
another processor.  A small probe (_probe.py) computes with every library in that environment first.  Where nothing differs from
the machine's own arithmetic, or from a row before it, the row is not run again and the table says so; a level the machine
lacks is named as skipped.

Results are appended to runs/matrix.jsonl (--file).  A row that is there for the same commit, part and data is not run again
(--again runs it), so a matrix can be put together from several runs.  Exit code 1 where a row failed.
"""

from __future__ import annotations

import argparse
import functools
import re
import resource
import signal
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks._arithmetic import ROWS, clean, inside  # noqa: E402
from benchmarks._outcomes import Outcome, append, commit, newest, processor, read, show  # noqa: E402
from benchmarks._plan import lacks, plan  # noqa: E402
from benchmarks._processes import adopt, end_all, run, sweep  # noqa: E402
from benchmarks._sensitivity import EXHIBIT_LIMIT, TEST_LIMIT, carry, measure  # noqa: E402
from tests import sensitive  # noqa: E402

EDGE_SECONDS = 60.0
"""what the foreign row may add to `make test`, in processor time of each core"""


@dataclass(frozen=True)
class How:
    """What every row of a run has in common."""

    part: str = "sensitive"
    slow: bool = False
    data: Path | None = None
    jobs: int = 2


def tests(environment: dict[str, str], how: How, progress: Callable[[float], None]) -> tuple[dict[str, int], list[str]]:
    """Run the tests of a part; counts, and the names of those that failed."""
    marks = {"sensitive": "numeric", "edge": "edge"}.get(how.part, "")
    expression = " and ".join(filter(None, (marks, "" if how.slow else "not slow")))
    paths = sensitive.files(sensitive.read(), marks) if marks else ["tests"]
    if how.part == "sensitive":
        paths += ["--deselect", sensitive.EXHIBITS]

    def percent(text: str) -> None:
        if number := re.search(r"\[ *(\d+)%\]\s*$", text):
            progress(int(number.group(1)) / 100)

    with tempfile.TemporaryDirectory(prefix="sonde-matrix-") as folder:
        report = Path(folder, "report.xml")
        flags = ["-q", "-n", str(how.jobs), "-p", "no:cacheprovider", "-o", f"timeout={TEST_LIMIT}", "-o", "junit_family=xunit1"]
        command = [sys.executable, "-m", "pytest", *flags, f"--junitxml={report}", "-m", expression, *paths]
        code, words = run(command, environment, ROOT, percent)
        if code not in (0, 1) or not report.exists():
            last = [text for text in words.splitlines() if text.strip()][-3:]
            return {}, [f"pytest ended with exit code {code}: {' / '.join(last)[-400:]}"]
        return read_report(report)


def read_report(path: Path) -> tuple[dict[str, int], list[str]]:
    """Counts and failures of a JUnit report."""
    counts, failures = {"passed": 0, "failed": 0, "skipped": 0}, []
    for case in ElementTree.parse(path).iter("testcase"):
        trouble = [part for part in case if part.tag in ("failure", "error")]
        if trouble:
            counts["failed"] += 1
            words = (trouble[0].get("message") or "").strip().splitlines()
            failures.append(f"{case.get('file')}::{case.get('name')}: {words[0][:160] if words else trouble[0].tag}")
        else:
            counts["skipped" if case.find("skipped") is not None else "passed"] += 1
    return counts, failures


def exhibits(environment: dict[str, str], how: How, progress: Callable[[float], None]) -> tuple[dict[str, int], list[str]]:
    """Run the exhibits of a part; counts, and what failed."""
    from sonde.atlas.exhibit import exhibits
    from sonde.atlas.worker import each

    table, ids = sensitive.read(), list(exhibits())
    if how.part != "whole":
        numeric, _, _ = sensitive.parts(table, {f"atlas {row}": [""] for row in ids})
        ids = [row for row in ids if f"atlas {row}" in numeric]
    seconds = {row: table[f"atlas {row}"].seconds if f"atlas {row}" in table else 5.0 for row in ids}
    counts, failures = {"passed": 0, "failed": 0}, []
    with inside(environment):
        # Longest first: a long row started last would leave the other process idle.
        for result in each(sorted(ids, key=lambda row: -seconds[row]), how.jobs, EXHIBIT_LIMIT):
            counts["passed" if result.passed else "failed"] += 1
            if not result.passed:
                failures.append(f"atlas {result.id}: {result.why[:300]}")
            progress((counts["passed"] + counts["failed"]) / len(ids))
    return counts, failures


class Progress:
    """A progress line: the current row, its progress, and the estimated time left."""

    def __init__(self, rows: int, guess: float) -> None:
        self.rows, self.guess, self.started = rows, guess, time.monotonic()
        self.done, self.taken, self.last_line = 0, 0.0, ""

    def begin(self, name: str) -> None:
        self.name, self.row_started = name, time.monotonic()
        self(0.0, "starting")

    def __call__(self, fraction: float, what: str) -> None:
        each = self.taken / self.done if self.done else self.guess
        spent = time.monotonic() - self.row_started
        remaining = max(each - spent, 0.0) + each * (self.rows - self.done - 1)
        tenth = f"{self.name} {what} {int(fraction * 10)}"
        text = (
            f"row {self.done + 1} of {self.rows}, {self.name}: {what} {fraction:4.0%}, {spent:.0f} s; about {remaining / 60:.0f} min left"
        )
        if sys.stderr.isatty():
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
        elif tenth != self.last_line:
            print(text, file=sys.stderr, flush=True)
        self.last_line = tenth

    def finish(self, outcome: Outcome) -> None:
        self.done, self.taken = self.done + 1, self.taken + outcome.seconds
        start = "\r\x1b[K" if sys.stderr.isatty() else ""
        words = f"{self.name}: {'passed' if outcome.passed else f'{len(outcome.failures)} FAILED'}, {outcome.seconds:.0f} s"
        print(start + words, file=sys.stderr, flush=True)


def complete(outcome: Outcome, how: How, progress: Progress) -> None:
    """Run the tests and the exhibits of a row."""
    started = time.monotonic()
    progress.begin(outcome.row)
    environment = clean(outcome.environment) | ({"SONDE_DATA": str(how.data)} if how.data else {})
    outcome.tests, failures = tests(environment, how, functools.partial(progress, what="tests"))
    outcome.failures += failures
    # The workers of the atlas take one thread whatever is set: two threads are the same bits there.
    if how.part != "edge" and "SONDE_TEST_THREADS" not in outcome.environment:
        outcome.atlas, failures = exhibits(environment, how, functools.partial(progress, what="atlas"))
        outcome.failures += failures
    sweep()
    outcome.seconds = round(time.monotonic() - started, 1)
    progress.finish(outcome)


def processor_seconds() -> float:
    """Processor time of all processes that were started and have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def too_long(seconds: float) -> str:
    """A notice that the edge has grown beyond what it may add to `make test`; no verdict depends on the time."""
    if seconds <= EDGE_SECONDS:
        return ""
    return f"the edge took {seconds:.0f} s of each core, more than {EDGE_SECONDS:g}: choose it again with benchmarks/matrix.py --measure"


def main(words: Sequence[str] | None = None) -> int:
    names = [row.name for row in ROWS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", choices=names, metavar="ROW", default=names, help=f"of {', '.join(names)}; default all")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--whole", action="store_true", help="the whole suite and atlas, not the sensitive part")
    what.add_argument("--edge", action="store_true", help="the foreign row, on the tests nearest to their bounds only; keeps no result")
    what.add_argument("--table", action="store_true", help="print the newest result of every row in the file and run nothing")
    what.add_argument("--probe", action="store_true", help="print what each row changes here and run nothing")
    what.add_argument("--measure", action="store_true", help="run what has changed since it was measured, and write tests/sensitive.tsv")
    what.add_argument("--carry", metavar="REVISION", help="keep what was measured for tests whose source changed in words only since then")
    parser.add_argument("--slow", action="store_true", help="with --whole: the slow tests too")
    parser.add_argument("--data", type=Path, metavar="DIR", help="real data sets; without it none are used, also where SONDE_DATA is set")
    parser.add_argument("--file", type=Path, default=ROOT / "runs" / "matrix.jsonl", help="where results are kept")
    parser.add_argument("--jobs", type=int, default=2, help="processes that run tests or exhibits at the same time")
    parser.add_argument("--again", action="store_true", help="run rows whose result for this commit is in the file")
    options = parser.parse_args(words)
    if options.data and not options.data.is_dir():
        parser.error(f"--data: there is no folder {options.data}")
    if options.slow and not options.whole:
        parser.error("--slow goes with --whole")
    adopt()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        if options.table:
            outcomes = newest(read(options.file))
            return 0 if show(outcomes) and outcomes else 1
        if options.carry:
            return carry(options.carry)
        if options.measure:
            return measure(options.file.parent, options.data, options.jobs)
        return matrix(options)
    finally:
        end_all()


def matrix(options: argparse.Namespace) -> int:
    """Plan the rows, run what must run, print the table."""
    how = How("edge" if options.edge else "whole" if options.whole else "sensitive", options.slow, options.data, options.jobs)
    rows = [row for row in ROWS if row.name in (["foreign"] if options.edge else options.rows)]
    if options.edge:
        # Runs with every `make test`: it need not be shown each time that the row differs.
        outcomes = [Outcome(row.name, row.environment, skipped=lacks(row, {"facts": {"built": "base"}})) for row in rows]
    else:
        print("probing the arithmetic of each row", file=sys.stderr, flush=True)
        outcomes = plan(rows, options.jobs)
    mark = commit()
    for outcome in outcomes:
        outcome.commit, outcome.machine, outcome.part = mark, processor(), how.part
        outcome.data, outcome.slow = how.data is not None, how.slow
    if options.probe:
        return 0 if show(outcomes) else 1
    done = {outcome.same: outcome for outcome in read(options.file) if mark and not (options.again or options.edge)}
    outcomes = [done.get(outcome.same, outcome) for outcome in outcomes]
    pending = [outcome for outcome in outcomes if outcome.same not in done and not outcome.skipped and not outcome.failures]
    parts = {part: sum(budget for budget, _ in budgets.values()) for part, budgets in sensitive.PARTS.items()}
    guess = {"edge": parts["edge"], "sensitive": parts["numeric"], "whole": 3600.0}[how.part] / how.jobs
    progress = Progress(len(pending), guess)
    for outcome in outcomes:
        if any(outcome is one for one in pending):
            complete(outcome, how, progress)
        if outcome.same not in done and not options.edge:
            append(options.file, outcome)
    if options.edge and (words := too_long(processor_seconds() / how.jobs)):
        print(words, file=sys.stderr)
    return 0 if show(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
