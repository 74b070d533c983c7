"""Which rows of the matrix this machine can run, and which of them change any bits here."""

from __future__ import annotations

import json
import platform
import signal
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks._arithmetic import Row, clean
from benchmarks._outcomes import Outcome
from benchmarks._processes import run

ROOT = Path(__file__).resolve().parent.parent
FEATURES = {"avx2": "AVX2", "avx512": "AVX-512"}


def probe(environment: dict[str, str]) -> dict[str, Any]:
    """Digests and facts of a process in this environment; `error` where it gave none."""
    code, words = run([sys.executable, str(ROOT / "benchmarks" / "_probe.py")], clean(environment), ROOT)
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
    outcomes: list[Outcome] = []
    before: dict[tuple[tuple[str, str], ...], str] = {}
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
        # A row equal to the machine's own is skipped only where that one is planned too.
        if row.name != "own" and answer["facts"].get("threads") == own["facts"].get("threads") and bits in before:
            outcome.skipped = f"same bits as {before[bits]}"
        before.setdefault(bits, row.name)
    return outcomes
