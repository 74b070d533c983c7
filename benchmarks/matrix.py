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
import ctypes
import functools
import hashlib
import json
import os
import platform
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests import sensitive  # noqa: E402

TEST_LIMIT, EXHIBIT_LIMIT = 900, 1800.0
"""seconds for one test and one exhibit; several times what the slowest arithmetic needs"""
EDGE_SECONDS = 60.0
"""what the foreign row may add to `make test`, in processor time of each core"""
FEATURES = {"avx2": "AVX2", "avx512": "AVX-512"}
OUTSIDE = {
    *("MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "SONDE_DATA"),
    *("DNNL_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS", "NPY_ENABLE_CPU_FEATURES", "ONEDNN_DEFAULT_FPMATH_MODE"),
}
"""variables that no row sets and that would change one"""


@dataclass(frozen=True)
class Row:
    """One arithmetic: what to set, and what the processor must have for it."""

    name: str
    environment: dict[str, str]
    level: str = "base"
    x86: bool = True

    @property
    def own_kernels(self) -> str:
        """The level of our kernels it names, if it does."""
        return self.environment.get("SONDE_KERNELS", "")


def _rows(variable: str, **levels: str) -> list[Row]:
    """A row for each value of one variable, with the level of processor it stands for."""
    short = variable.split("_")[0].lower()
    return [Row(f"{short}-{value.lower()}", {variable: value}, level) for value, level in levels.items()]


NUMPY = {"NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4 AVX512_ICL AVX512_SPR"}
"""NumPy's own loops (exp, sin, sums) without what they choose by the processor"""
LIBM = {"GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA,-FMA4"}
"""the C library's functions without fused multiply-add, as on a processor that has none"""
FOREIGN = {
    "ATEN_CPU_CAPABILITY": "default",
    "OPENBLAS_CORETYPE": "Nehalem",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "MKL_CBWR": "COMPATIBLE",
    "SONDE_KERNELS": "base",
    **NUMPY,
    **LIBM,
}
"""every library at the lowest level that any x86-64 processor runs"""

ROWS = [
    Row("own", {}, x86=False),
    *_rows("ATEN_CPU_CAPABILITY", default="base", avx2="avx2", avx512="avx512"),
    *_rows("OPENBLAS_CORETYPE", Haswell="avx2", Zen="avx2", SkylakeX="avx512"),
    *_rows("ONEDNN_MAX_CPU_ISA", SSE41="base", AVX2="avx2", AVX512_CORE="avx512"),
    *_rows("MKL_CBWR", COMPATIBLE="base", AVX2="avx2"),
    *(Row(f"kernels-{level}", {"SONDE_KERNELS": level}, level, x86=False) for level in ("base", "avx2", "avx512")),
    Row("kernels-0", {"SONDE_KERNELS": "0"}, x86=False),
    Row("numpy-base", NUMPY),
    Row("libm-base", LIBM),
    Row("threads-2", {"OMP_NUM_THREADS": "2", "SONDE_TEST_THREADS": "2", "OMP_WAIT_POLICY": "passive"}, x86=False),
    Row("foreign", FOREIGN),
]


@dataclass
class Outcome:
    """What running one row gave; one line of the file."""

    row: str
    environment: dict[str, str]
    commit: str = ""
    machine: str = ""
    """the processor it ran on"""
    part: str = "sensitive"
    data: bool = False
    slow: bool = False
    skipped: str = ""
    """why it was not run: the machine lacks the level, or it is another row bit for bit"""
    changed: list[str] = field(default_factory=list)
    """parts of the arithmetic whose bits differ from the machine's own"""
    facts: dict[str, str] = field(default_factory=dict)
    """what the libraries say they use, where it differs from the machine's own"""
    tests: dict[str, int] = field(default_factory=dict)
    atlas: dict[str, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        return not self.failures

    @property
    def same(self) -> tuple[str, str, str, str, bool, bool]:
        """What makes two outcomes answers to the same question."""
        return self.row, self.commit, self.machine, self.part, self.data, self.slow


# -- the environment of a row


def clean(environment: dict[str, str]) -> dict[str, str]:
    """This process's environment without anything that decides the arithmetic, and with what the row sets."""
    variables = {name for row in ROWS for name in row.environment} | OUTSIDE
    kept = {name: value for name, value in os.environ.items() if name not in variables}
    return {**kept, "OMP_NUM_THREADS": "1", **environment}


@contextmanager
def inside(environment: dict[str, str]) -> Iterator[None]:
    """This process's own environment replaced for a while, for children that inherit it."""
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(environment)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def probe(environment: dict[str, str]) -> dict[str, Any]:
    """Digests and facts of a process in this environment; `error` where it gave none."""
    code, words = run([sys.executable, str(ROOT / "benchmarks" / "_probe.py")], clean(environment))
    try:
        return json.loads(words.splitlines()[-1])
    except (ValueError, IndexError):
        died = f" (it died of {signal.Signals(-code).name})" if code < 0 else ""
        return {"digests": {}, "facts": {}, "error": (words.strip().splitlines() or ["it printed nothing"])[-1][-300:] + died}


def lacks(row: Row, own: dict[str, Any], machine: str = "") -> str:
    """Why this machine cannot run a row; empty if it can."""
    if row.x86 and (machine or platform.machine()).lower() not in ("x86_64", "amd64"):
        return "its variables are for x86-64"
    if row.level not in own["facts"].get("levels", "base").split():
        return f"this processor has no {FEATURES[row.level]}"
    if row.own_kernels not in ("", "0") and row.own_kernels not in own["facts"].get("built", "").split():
        return f"the {row.own_kernels} kernels were not built here"
    return ""


def plan(rows: Sequence[Row], jobs: int, look: Callable[[dict[str, str]], dict[str, Any]] = probe, machine: str = "") -> list[Outcome]:
    """What each row changes here, and which need not run; a row is compared with the machine's own and with those before it."""
    own = look({})
    if "error" in own:
        raise SystemExit(f"the probe fails with nothing set: {own['error']}")
    reasons = {row.name: lacks(row, own, machine) for row in rows}
    possible = [row for row in rows if not reasons[row.name]]
    with ThreadPoolExecutor(jobs) as pool:
        seen = dict(zip([row.name for row in possible], pool.map(look, [row.environment for row in possible])))
    outcomes, before = [], {}
    for row in rows:
        outcome = Outcome(row.name, row.environment, skipped=reasons[row.name])
        outcomes.append(outcome)
        if row.name not in seen:
            continue
        answer = seen[row.name]
        if "error" in answer:
            outcome.failures.append(f"the probe: {answer['error']}")
            continue
        outcome.changed = [name for name, digest in own["digests"].items() if answer["digests"][name] != digest]
        outcome.facts = {name: value for name, value in answer["facts"].items() if own["facts"].get(name) != value}
        bits = tuple(answer["digests"].items())
        # With more threads large sums are cut elsewhere, and the probe is small: that row always runs.
        if row.name != "own" and answer["facts"].get("threads") == own["facts"].get("threads"):
            if not outcome.changed:
                outcome.skipped = "same bits as own"
            elif bits in before:
                outcome.skipped = f"same bits as {before[bits]}"
        before.setdefault(bits, row.name)
    return outcomes


# -- running


_children: list[subprocess.Popen] = []


def run(command: list[str], environment: dict[str, str], line: Callable[[str], None] = len) -> tuple[int, str]:
    """Run a program in a process group of its own and end what it leaves there: exit code and output, which `line` sees as it comes.

    The output goes to a file: a process that outlives the program would keep a pipe open for ever.
    """
    with tempfile.NamedTemporaryFile("w+", encoding="utf-8", errors="replace", prefix="sonde-matrix-") as out:
        child = subprocess.Popen(command, env=environment, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
        _children.append(child)
        try:
            with open(out.name, encoding="utf-8", errors="replace") as seen:
                ended = False
                while not ended:
                    try:
                        ended = child.wait(0.3) is not None
                    except subprocess.TimeoutExpired:
                        pass
                    for text in seen:
                        line(text)
        finally:
            end(child)
            _children.remove(child)
        out.seek(0)
        return child.returncode, out.read()


def end(child: subprocess.Popen) -> None:
    """Kill a child with its group."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def adopt() -> None:
    """Become the parent of every descendant that loses its own (Linux), so that `sweep` finds it."""
    if sys.platform == "linux":
        subreaper = 36  # PR_SET_CHILD_SUBREAPER
        ctypes.CDLL(None, use_errno=True).prctl(subreaper, 1, 0, 0, 0)


def sweep() -> None:
    """End every process that is still below this one, whatever session it made for itself."""
    with suppress(OSError):
        while left := descendants():
            for process in left:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass


def descendants() -> list[int]:
    """Living processes below this one, where /proc tells."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # The name in brackets may hold anything; state and parent follow it.
            state, parent = entry.read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                parents[int(entry.parent.name)] = int(parent)
    below, children = {os.getpid()}, True
    while children:
        children = {process for process, parent in parents.items() if parent in below} - below
        below |= children
    return sorted(below - {os.getpid()})


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
    places = sensitive.files(sensitive.read(), marks) if marks else ["tests"]
    if how.part == "sensitive":
        places += ["--deselect", sensitive.EXHIBITS]

    def percent(text: str) -> None:
        if number := re.search(r"\[ *(\d+)%\]\s*$", text):
            progress(int(number.group(1)) / 100)

    with tempfile.TemporaryDirectory(prefix="sonde-matrix-") as folder:
        report = Path(folder, "report.xml")
        flags = ["-q", "-n", str(how.jobs), "-p", "no:cacheprovider", "-o", f"timeout={TEST_LIMIT}", "-o", "junit_family=xunit1"]
        command = [sys.executable, "-m", "pytest", *flags, f"--junitxml={report}", "-m", expression, *places]
        code, words = run(command, environment, percent)
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


# -- the file and the table


def commit() -> str:
    """The commit checked out, and a hash of what differs from it; empty outside a repository."""

    def git(*words: str) -> bytes:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, check=True).stdout

    try:
        head = git("rev-parse", "--short=10", "HEAD").decode().strip()
        changes = git("diff", "HEAD", "--", "sonde", "tests")
        for name in sorted(git("ls-files", "-z", "--others", "--exclude-standard", "--", "sonde", "tests").split(b"\0")):
            changes += name + (ROOT / os.fsdecode(name)).read_bytes() if name else b""
    except (OSError, subprocess.CalledProcessError):
        return ""
    return head + (f"+{hashlib.sha256(changes).hexdigest()[:6]}" if changes else "")


def processor() -> str:
    """The name of this machine's processor, with its family and model where /proc tells."""
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
        facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if "model name" in facts:
            return f"{facts['model name']} ({facts.get('cpu family', '?')}/{facts.get('model', '?')})"
    return platform.processor() or platform.machine()


def read(path: Path) -> list[Outcome]:
    """The lines of a file of results; a line that was cut off by a crash is left out."""
    outcomes = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        with suppress(ValueError, TypeError):
            outcomes.append(Outcome(**json.loads(line)))
    return outcomes


def append(path: Path, outcome: Outcome) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(outcome)) + "\n")


def newest(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """The last outcome of every row, part and data, in the order of the rows; what was shown at another commit says so."""
    kept = {(outcome.row, outcome.part, outcome.data, outcome.slow, outcome.machine): outcome for outcome in outcomes}
    order = {row.name: number for number, row in enumerate(ROWS)}
    return sorted(kept.values(), key=lambda outcome: (order.get(outcome.row, 99), outcome.part, outcome.data))


def show(outcomes: Sequence[Outcome], width: int | None = None) -> bool:
    """Print the table and what failed; True where every row that ran passed."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False, markup=False, width=width or max(shutil.get_terminal_size((180, 24)).columns, 120))
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in ("row", "environment", "what differs from own", "tests", "atlas", "s", "verdict"):
        table.add_column(name, justify="right" if name == "s" else "left")
    several = len({(outcome.commit, outcome.machine) for outcome in outcomes}) > 1
    for outcome in outcomes:
        words = [outcome.part] * (outcome.part != "sensitive") + ["data"] * outcome.data + ["slow"] * outcome.slow
        label = ", ".join([outcome.row, *words, *([outcome.commit, outcome.machine] if several else [])])
        setting = " ".join(f"{name}={value}" for name, value in outcome.environment.items())
        if outcome.skipped:
            verdict, style = ("same", "dim") if outcome.skipped.startswith("same") else ("skipped", "yellow")
            table.add_row(label, setting, outcome.skipped, "", "", "", Text(verdict, style))
            continue
        facts = ", ".join(f"{name} {value}" for name, value in outcome.facts.items())
        differs = "; ".join(filter(None, (", ".join(outcome.changed), facts))) or "-"
        atlas = "one thread always" if "SONDE_TEST_THREADS" in outcome.environment else counted(outcome.atlas)
        verdict = Text("FAIL", "bold red") if not outcome.passed else Text("pass", "green") if outcome.tests else Text("not run", "dim")
        table.add_row(label, setting, differs, counted(outcome.tests), atlas, f"{outcome.seconds:.0f}", verdict)
    console.print(table)
    for outcome in outcomes:
        for failure in outcome.failures:
            console.print(Text(f"{outcome.row}: {failure}", "red"))
    wrong = [outcome.row for outcome in outcomes if not outcome.passed]
    console.print(f"{len(outcomes)} rows, {len(wrong)} failed" + (f": {', '.join(wrong)}" if wrong else ""))
    return not wrong


def counted(counts: dict[str, int]) -> Any:
    from rich.text import Text

    words = [f"{counts.get('passed', 0)} passed"] if counts else ["-"]
    words += [f"{counts[name]} {name}" for name in ("failed", "skipped") if counts.get(name)]
    return Text(", ".join(words), "bold red" if counts.get("failed") else "")


class Progress:
    """One line that says which row runs, how far it is, and how long the rest may take."""

    def __init__(self, rows: int, guess: float) -> None:
        self.rows, self.guess, self.started = rows, guess, time.monotonic()
        self.done, self.taken, self.said = 0, 0.0, ""

    def begin(self, name: str) -> None:
        self.name, self.row_started = name, time.monotonic()
        self(0.0, "starting")

    def __call__(self, share: float, what: str) -> None:
        each = self.taken / self.done if self.done else self.guess
        spent = time.monotonic() - self.row_started
        left = max(each - spent, 0.0) + each * (self.rows - self.done - 1)
        tenth = f"{self.name} {what} {int(share * 10)}"
        text = f"row {self.done + 1} of {self.rows}, {self.name}: {what} {share:4.0%}, {spent:.0f} s; about {left / 60:.0f} min left"
        if sys.stderr.isatty():
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
        elif tenth != self.said:
            print(text, file=sys.stderr, flush=True)
        self.said = tenth

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
    parser.add_argument("--data", type=Path, metavar="DIR", help="real data sets; without it none are used, whatever SONDE_DATA says")
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
            return measure(options.file.parent, How("whole", data=options.data, jobs=options.jobs))
        return matrix(options)
    finally:
        for child in list(_children):
            end(child)
        sweep()


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
    waiting = [outcome for outcome in outcomes if outcome.same not in done and not outcome.skipped and not outcome.failures]
    parts = {part: sum(budget for budget, _ in budgets.values()) for part, budgets in sensitive.PARTS.items()}
    guess = {"edge": parts["edge"], "sensitive": parts["numeric"], "whole": 3600.0}[how.part] / how.jobs
    progress = Progress(len(waiting), guess)
    for outcome in outcomes:
        if any(outcome is one for one in waiting):
            complete(outcome, how, progress)
        if outcome.same not in done and not options.edge:
            append(options.file, outcome)
    if options.edge and (words := too_long(processor_seconds() / how.jobs)):
        print(words, file=sys.stderr)
    return 0 if show(outcomes) else 1


def processor_seconds() -> float:
    """Processor time of all processes that were started and have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def too_long(seconds: float) -> str:
    """A notice that the edge has grown beyond what it may add to `make test`; no verdict hangs on the time."""
    if seconds <= EDGE_SECONDS:
        return ""
    return f"the edge took {seconds:.0f} s of each core, more than {EDGE_SECONDS:g}: choose it again with benchmarks/matrix.py --measure"


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


def measure(folder: Path, how: How) -> int:
    """Run what was not measured as it is, in the own arithmetic and its numeric part in the foreign one, and write tests/sensitive.tsv."""
    own, foreign = folder / "headroom.jsonl", folder / "headroom-foreign.jsonl"
    folder.mkdir(parents=True, exist_ok=True)
    rows = {row.name: row for row in ROWS}
    for name, path, marks in (("own", own, "not slow"), ("foreign", foreign, "numeric and not slow")):
        if lacks(rows[name], {"facts": {"built": "base"}}):
            continue
        environment = clean(rows[name].environment) | ({"SONDE_DATA": str(how.data)} if how.data else {})
        print(f"{name}: tests that were not measured as they are", file=sys.stderr, flush=True)
        code = measure_tests(path, marks, environment, how.jobs)
        if code not in (0, 1, 5):  # passed, failed, nothing left to measure
            print(f"pytest ended with exit code {code}; the same command continues", file=sys.stderr)
            return 1
        measure_exhibits(path, name == "foreign", environment, how.jobs)
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
        return run(command, environment | more, lambda text: print(text, end="", file=sys.stderr, flush=True))[0]


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


if __name__ == "__main__":
    sys.exit(main())
