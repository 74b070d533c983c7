"""Two revisions taking turns: is the present one as fast as an older one?

    python benchmarks/revisions.py 62112e2                       every workload below
    python benchmarks/revisions.py 62112e2 speed mixers          some
    python benchmarks/revisions.py 62112e2 --goal 0.97 --rounds 7

speed    the training steps of speed.py: CNN with and without augmentation, tiny MLP
mixers   forward and backward of every recurrence of mixers.py at 512 and 2048 steps, one and two threads
vision   the training steps of vision_train.py
decode   tokens per second of decode.py, float32 and int8
gpt      the training step of gpt.py, small

Each revision runs in a process of its own, from a checkout of its own with its own kernels, on the workloads of its own
benchmark files; only the candidates that are ours are timed.  The two processes take turns, one measurement at a time, and the best
of several rounds counts.  Exit code 1 where the present revision is below the goal.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

OURS = ("sonde", "float32", "int8")
"""how the names of our candidates begin"""
WORKLOADS = {
    "speed": [("speed", "overhead"), ("speed", "fashion"), ("speed", "tiny")],
    "mixers": [("mixers", f"{length} {threads}") for length in (512, 2048) for threads in (1, 2)],
    "vision": [("vision_train", "fashion_case"), ("vision_train", "resnet20_case")],
    "decode": [("decode", "gpt2")],
    "gpt": [("gpt", "small")],
}
Measure = Callable[[], float]


class Captured(Exception):
    """Carries the candidates out of a benchmark in place of being measured there."""

    def __init__(self, candidates: dict[str, Measure]) -> None:
        self.candidates = candidates


# -- in the process of one revision


def candidates(file: str, part: str) -> dict[str, Measure]:
    """Our candidates of one part of a benchmark file, each a function that gives a rate."""
    import torch

    module: Any = importlib.import_module(file)
    if file == "mixers":
        length, threads = map(int, part.split())
        torch.manual_seed(0)
        return {title: _rate(group["ours"].make(length), threads) for title, group in module.GROUPS.items()}

    def capture(named: dict[str, Measure], *_: Any, **__: Any) -> None:
        raise Captured(named)

    module.turns = capture
    torch.set_num_threads(getattr(module, "THREADS", 2))
    try:
        if file == "speed":
            getattr(module, part)()
        elif file == "vision_train":
            module.compare(getattr(module, part)())
        elif file == "decode":
            module.compare(next(iter(module.MODELS)), 64, 3)
        else:
            module.compare(part)
    except Captured as captured:
        return {name: measure for name, measure in captured.candidates.items() if name.startswith(OURS)}
    raise SystemExit(f"{file}.{part} asked for no measurement")


def _rate(call: Callable[[], None], threads: int) -> Measure:
    """Calls per second: the best of a few calls."""
    import torch

    def measure() -> float:
        torch.set_num_threads(threads)
        best = float("inf")
        for _ in range(4):
            started = time.perf_counter()
            call()
            best = min(best, time.perf_counter() - started)
        return 1 / best

    return measure


def serve() -> None:
    """Answer requests, one line of JSON each: 'open' a part and give its candidates, 'measure' one of them."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever the benchmark prints is not an answer
    opened: dict[str, Measure] = {}
    for line in sys.stdin:
        request = json.loads(line)
        if "open" in request:
            opened = candidates(*request["open"])
            answer: Any = list(opened)
        else:
            answer = opened[request["measure"]]()
        print(json.dumps(answer), file=answers, flush=True)


# -- in the process that compares


class Revision:
    """A process that measures one revision."""

    def __init__(self, tree: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(tree / "benchmarks"), str(tree)))}
        command = [sys.executable, "-c", f"import runpy; runpy.run_path({str(Path(__file__))!r}, run_name='worker')"]
        self.words = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            command, cwd=tree, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.words, text=True
        )

    def ask(self, **request: Any) -> Any:
        assert self.process.stdin and self.process.stdout
        print(json.dumps(request), file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            self.words.seek(0)
            raise SystemExit(f"a worker ended when it was asked for {request}:\n{self.words.read()[-2000:]}")
        return json.loads(line)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def revisions(*trees: Path) -> Iterator[list[Revision]]:
    workers = [Revision(tree) for tree in trees]
    try:
        yield workers
    finally:
        for worker in workers:
            worker.close()


def compare(old: Path, new: Path, file: str, part: str, rounds: int, goal: float) -> bool:
    """Print the ratio of each candidate; True where all reach the goal."""
    met = True
    with revisions(old, new) as workers:
        before, after = ([name for name in worker.ask(open=[file, part])] for worker in workers)
        for name in [name for name in before if name in after]:
            rates: list[list[float]] = [[], []]
            for turn in range(rounds):
                for side in (0, 1) if turn % 2 else (1, 0):
                    rates[side].append(workers[side].ask(measure=name))
            ratio = max(rates[1]) / max(rates[0])
            met &= ratio >= goal
            words = f"{file} {part}: {name}"
            print(
                f"{words:58} {max(rates[0]):12,.1f} {max(rates[1]):12,.1f} /s  {ratio:.3f}x  {'met' if ratio >= goal else 'MISSED'}",
                flush=True,
            )
    return met


def main() -> int:
    from _revision import ROOT, worktree  # the workers find the benchmarks of their own revision first

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", help="the revision to compare with")
    parser.add_argument("workloads", nargs="*", default=[], metavar="workload", help=", ".join(WORKLOADS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--goal", type=float, default=0.97)
    options = parser.parse_args()
    if unknown := [name for name in options.workloads if name not in WORKLOADS]:
        parser.error(f"there is no workload '{unknown[0]}'; choose from {', '.join(WORKLOADS)}")
    old = worktree(options.old, ROOT / "runs" / "identical")
    print(f"{'':58} {options.old:>12} {'now':>12}     now is")
    parts = [part for name in options.workloads or WORKLOADS for part in WORKLOADS[name]]
    met = [compare(old, ROOT, file, part, options.rounds, options.goal) for file, part in parts]
    print(f"load average {os.getloadavg()[0]:.2f}")
    return 0 if all(met) else 1


if __name__ == "worker":
    serve()
elif __name__ == "__main__":
    sys.exit(main())
