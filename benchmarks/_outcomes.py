"""Outcomes of the rows of the matrix: one JSON line each, and the table that shows them."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks._arithmetic import ROWS

ROOT = Path(__file__).resolve().parent.parent


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
    """The name of this machine's processor, with its family and model from /proc."""
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
    """The last outcome of every row, part and data, in the order of the rows; the table labels those of other commits."""
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
