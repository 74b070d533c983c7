"""Two revisions side by side: does every recipe, mixer, lens and exhibit still compute the same bits?

    python benchmarks/identical.py 62112e2                      that revision against the files as they are now
    python benchmarks/identical.py 62112e2 --kinds mixers lenses
    python benchmarks/identical.py 62112e2 --names char_lm gla
    python benchmarks/identical.py 62112e2 --kinds exhibits --carry

A refactor must leave every number as it was.  Stored digests would not do, because bits differ between processors; so both
revisions run here, each in a process of its own with its own compiled kernels, and `_digests.py` hashes what they compute: final
weights, optimizer state, random states and metric rows of every recipe after four steps, on one process and on two; outputs,
states and gradients of every mixer in every form; the numbers of every lens and exhibit.  Names may differ, numbers may not.

Where two digests differ, the old revision runs once more: what it does not reproduce itself (a time, say) is named and not
compared.  Exit code 1 where anything differs.  With --carry, an exhibit whose source changed and whose bits did not keeps the
margins that were measured over seeds (sonde/atlas/margins.tsv).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from _revision import ROOT, worktree

KINDS = ("mixers", "lenses", "recipes", "recipes-2", "exhibits")
RENAMED: dict[str, str] = {"neighbours": "neighbors"}
"""plug-ins that have another name now"""
TOGETHER = 8
"""plug-ins that one process runs: starting it takes longer than most of them"""


def digests(tree: Path, kind: str, names: list[str]) -> dict[str, dict[str, str]]:
    """What a revision computes, by name; without names, ask which there are."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONPATH": str(tree)}
    command = [sys.executable, str(ROOT / "benchmarks" / "_digests.py"), kind, *names]
    answer = subprocess.run(command, env=environment, cwd=tree, capture_output=True, text=True)
    if answer.returncode:
        raise SystemExit(f"{kind} {' '.join(names)} of {tree} ended with exit code {answer.returncode}:\n{answer.stderr[-2000:]}")
    lines = [json.loads(line) for line in answer.stdout.splitlines() if line.startswith(("{", "["))]
    return dict.fromkeys(lines[0], {}) if not names else {line["name"]: line["digests"] for line in lines}


def compare(old: Path, new: Path, kind: str, names: list[str]) -> tuple[int, list[str], list[str]]:
    """Of a few plug-ins: digests that agree, those that differ, and those that the old revision does not reproduce itself."""
    before = digests(old, kind, names)
    after = digests(new, kind, [RENAMED.get(name, name) for name in names])
    same, different, unstable = 0, [], []
    for name, ours in before.items():
        theirs = after[RENAMED.get(name, name)]
        differing = [key for key in {**ours, **theirs} if ours.get(key) != theirs.get(key)]
        again = digests(old, kind, [name])[name] if differing else ours
        for key in {**ours, **theirs}:
            if key not in differing:
                same += 1
            elif again.get(key) != ours.get(key):
                unstable.append(f"{kind} {name}: {key}")
            else:
                different.append(f"{kind} {name}: {key}: {ours.get(key, 'not there')} became {theirs.get(key, 'not there')}")
    return same, different, unstable


def carry(old: Path, compared: set[str], changed: set[str]) -> str:
    """Give rows of the atlas that compute the same bits as an older revision the margins that were measured there."""
    sys.path.insert(0, str(ROOT))
    from sonde.atlas import _margins
    from sonde.atlas.exhibit import exhibits, row_source

    program = (
        "import json; from sonde.atlas.exhibit import exhibits, row_source;"
        " print(json.dumps({row: row_source(row, path) for row, path in exhibits().items()}))"
    )
    environment = {**os.environ, "PYTHONPATH": str(old)}
    answer = subprocess.run([sys.executable, "-c", program], env=environment, cwd=old, capture_output=True, text=True, check=True)
    before = json.loads(answer.stdout)
    sources = {row: row_source(row, path) for row, path in exhibits().items()}
    now = {row: source for row, source in sources.items() if row in compared - changed}
    table = _margins.read()
    data = "real" if os.environ.get("SONDE_DATA") else "built-in"  # what was compared
    held = [line for line in table if line.data == data and line.row in now and line.source == before.get(line.row) != now[line.row]]
    _margins.write([replace(line, source=now[line.row]) for line in held])
    stale = {line.row for line in _margins.read() if line.source != sources[line.row]}
    return f"margins of {len({line.row for line in held})} rows carried over; to be measured: {' '.join(sorted(stale)) or 'none'}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", help="the revision to compare with")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--names", nargs="+", help="only these recipes, mixers, lenses or exhibits")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--carry", action="store_true", help="exhibits that did not change keep their margins: sonde/atlas/margins.tsv")
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "identical", help="where checkouts of old revisions are kept")
    options = parser.parse_args()
    old = worktree(options.old, options.folder)
    same, different, unstable, started = 0, [], [], time.monotonic()
    for kind in options.kinds:
        names = [name for name in digests(old, kind, []) if not options.names or name in options.names]
        parts = [names[i : i + TOGETHER] for i in range(0, len(names), TOGETHER)]
        with ThreadPoolExecutor(1 if kind == "recipes-2" else options.jobs) as pool:
            results = pool.map(lambda part, kind=kind: compare(old, ROOT, kind, part), parts)
            for number, (equal, words, changing) in enumerate(results, 1):
                same, different, unstable = same + equal, different + words, unstable + changing
                print(f"{kind}: part {number} of {len(parts)}, {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
                for line in words:
                    print(line, flush=True)
    for line in unstable:
        print(f"not reproduced by the old revision itself, so not compared: {line}")
    if options.carry and "exhibits" in options.kinds:
        doubtful = different + [line for line in unstable if line.endswith(": findings")]
        compared = set(options.names or digests(old, "exhibits", []))
        print(carry(old, compared, {line.split()[1].rstrip(":") for line in doubtful if line.startswith("exhibits ")}))
    print(f"{same} digests are the same, {len(different)} differ, {len(unstable)} were not compared")
    return 1 if different or not same else 0


if __name__ == "__main__":
    raise SystemExit(main())
