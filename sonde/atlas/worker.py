"""Worker processes that run exhibits.  If an exhibit crashes or hangs, only its own row fails.

`each(ids)` yields results as they finish, `samples(ids, n)` those of seeds 0 to n - 1.  A worker runs many rows one after
another, because importing torch takes longer than most exhibits.  It reads ids and seeds from standard input and writes
one line of JSON for each.  Each worker has its own process group, so that processes started by an exhibit end with it.
"""

from __future__ import annotations

import faulthandler
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from ..core import registry
from ..core.files import parse_json
from .exhibit import FOLDER, Result, exhibits, row_source, run

GRACE = 30.0
"""seconds added to the limit of a row, for starting Python and for a worker that does not stop by itself"""


def each(ids: Sequence[str], jobs: int = 2, limit: float = 600.0, folder: Path = FOLDER) -> Iterator[Result]:
    """Results of the rows in the order they finish, `jobs` at a time; a row fails after `limit` seconds."""
    return _work([(row, None) for row in ids], jobs, limit, folder)


def samples(ids: Sequence[str], n: int, jobs: int = 2, limit: float = 600.0, folder: Path = FOLDER) -> Iterator[Result]:
    """Results of every row for seeds 0 to n - 1, one training each, in the order they finish."""
    return _work([(row, seed) for row in ids for seed in range(n)], jobs, limit, folder)


def _work(tasks: Sequence[tuple[str, int | None]], jobs: int, limit: float, folder: Path) -> Iterator[Result]:
    queue, paths = deque(tasks), exhibits(folder)
    idle: list[_ExhibitWorker] = []
    busy: list[_ExhibitWorker] = []
    with tempfile.TemporaryDirectory(prefix="sonde-atlas-", ignore_cleanup_errors=True) as scratch:
        try:
            while queue or busy:
                while queue and len(busy) < jobs:
                    worker = idle.pop() if idle else _ExhibitWorker(folder, limit, Path(scratch))
                    busy.append(worker)
                    row, seed = queue.popleft()
                    worker.begin(row, seed, paths[row])
                first = min(worker.deadline for worker in busy)
                select.select([worker.answers for worker in busy], [], [], max(0.0, first - time.monotonic()))
                for worker in list(busy):
                    result = worker.result()
                    if result is not None:
                        busy.remove(worker)
                        if not worker.ended:
                            idle.append(worker)
                        yield result
        finally:
            for worker in idle + busy:
                worker.end()


class _ExhibitWorker:
    """Handle of one worker process."""

    def __init__(self, folder: Path, limit: float, scratch: Path) -> None:
        self.limit, self.ended = limit, False
        handle, name = tempfile.mkstemp(dir=scratch, suffix=".log")
        self.log = Path(name)
        # One thread each: the rows share the cores, and sums must not depend on the number of threads.
        variables = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TMPDIR": str(scratch)}
        path = os.pathsep.join(filter(None, [str(registry.PACKAGE.parent), os.environ.get("PYTHONPATH")]))
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, str(folder), str(limit)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=handle,
            env={**os.environ, **variables, "PYTHONPATH": path},
            start_new_session=True,
        )
        os.close(handle)
        assert self.process.stdout is not None
        self.answers = self.process.stdout.fileno()

    def begin(self, row: str, seed: int | None, path: Path) -> None:
        self.row, self.seed, self.path, self.text = row, seed, path, b""
        self.log_start = self.log.stat().st_size
        self.started = time.monotonic()
        self.deadline = self.started + self.limit + GRACE
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it died while idle; `result` reads the end of its output and reports it
            os.write(self.process.stdin.fileno(), f"{row} {'' if seed is None else seed}\n".encode())

    def result(self) -> Result | None:
        """Result of the row begun last, or None while it is running."""
        if select.select([self.answers], [], [], 0.0)[0]:
            part = os.read(self.answers, 1 << 20)
            self.text += part
            if self.text.endswith(b"\n"):
                return Result.from_json(parse_json(self.text))
            if not part:
                return self._fail()
        return self._fail() if time.monotonic() > self.deadline else None

    def _fail(self) -> Result:
        """End a worker that died or did not answer; returns a failed result that says why."""
        late = time.monotonic() > self.deadline
        self.end()
        words = self.log.read_bytes()[self.log_start :].decode("utf-8", "replace")
        code = self.process.returncode
        if late or "Timeout (" in words:
            what = f"it did not finish within {self.limit:g} s"
        elif code < 0:
            what = f"its process died of {signal.Signals(-code).name}"
        else:
            what = f"its process ended with exit code {code}"
        line = re.search(rf'File ".*{self.path.name}", line (\d+)', words)
        where = f" ({self.path.name} line {line.group(1)})" if line else ""
        seconds = round(time.monotonic() - self.started, 3)
        return Result(self.row, "", seconds, row_source(self.row, self.path), error=what + where, seed=self.seed or 0)

    def end(self) -> None:
        """Kill the process and all it started; one that has already ended keeps its exit code."""
        if self.ended:
            return
        self.ended = True
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


def main(folder: Path, limit: float) -> None:
    """Run the rows named on standard input until it closes; this is the program of a worker."""
    faulthandler.enable()
    requests, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)  # output of an exhibit must not mix with the results
    for line in requests:
        row, *seed = line.split()
        faulthandler.dump_traceback_later(limit, exit=True)
        result = run(row, folder, int(seed[0]), sampled=True) if seed else run(row, folder)
        faulthandler.cancel_dump_traceback_later()
        print(result.to_json(), file=answers, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
