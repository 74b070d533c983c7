"""Launch: local worker processes under a supervisor that reports a dead or hung rank and restarts from the last checkpoint.

The supervisor has imported torch but never computes with it; workers are forked from it, so a fresh set is at work in a
tenth of a second.  Every attempt meets in a new file on loopback, so nothing of an earlier one can get in its way.

    worker ends 0            done
    ... with our own error   the job ends with that error, raised again here
    ... in any other way     the others are killed and all start again; attempts that bring no new checkpoint are counted
"""

from __future__ import annotations

import ctypes
import faulthandler
import itertools
import json
import mmap
import os
import select
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NoReturn

from ..core import errors
from ..core.errors import BadInput, Interrupted, PeerLost, Preempted, SondeError
from ..core.options import Range, checked
from .world import Pulse, Sign, World, is_network_error, peer_lost

LEAVE_SECONDS = 5.0
"""how long the others may take to end by themselves after one has ended with an error"""
FORK_SECONDS = 5.0
"""how long a fork may take to show that it can compute"""
DUMP_SIGNAL = signal.SIGUSR2
STOPS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)

_BY_CODE = {kind.exit_code: kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, SondeError)}


@checked
def launch(
    worker: Callable[[World], None],
    processes: Annotated[int, Range(1)],
    *,
    progress: Callable[[], int | None] = lambda: None,
    threads: int = 1,
    hang_timeout: float = 60.0,
    start_timeout: float = 120.0,
    restarts: int = 3,
    on_event: Callable[[Mapping[str, Any]], None] | None = None,
) -> None:
    """Run `worker(world)` in several processes until all have returned; raises the error that ended the job otherwise.

    Args:
        worker: resumes by itself from the last checkpoint
        progress: step of the newest checkpoint; an attempt that raises it costs no restart
        hang_timeout: seconds between two signs of life in a step; making a batch, evaluating and saving may take five times as long
        on_event: called at every restart with event, attempt, rank, step, why, stacks
    """
    if threads > 1:
        _check_fork(threads)
    limits = {"start": start_timeout, "step": hang_timeout, **dict.fromkeys(("batch", "evaluate", "save"), 5 * hang_timeout)}
    folder = Path(tempfile.mkdtemp(prefix="sonde-"))
    plan = _Plan(worker, processes, threads, limits)
    best, wasted = progress(), 0
    try:
        with _Signals() as signals:
            for number in itertools.count(1):
                loss = _Attempt(plan, folder / f"attempt-{number}", signals).run(progress)
                if loss is None:
                    return
                reached = progress()
                wasted = 0 if (reached or 0) > (best or 0) else wasted + 1
                best = reached
                if wasted > restarts:
                    raise loss.final(restarts, reached)
                (on_event or print_event)(loss.event(number, reached))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True)
class _Plan:
    """The arguments of every attempt."""

    worker: Callable[[World], None]
    size: int
    threads: int
    limits: dict[str, float]
    """seconds without a sign of life, by phase"""


@dataclass
class _Worker:
    """A forked process as its parent sees it."""

    rank: int
    pid: int
    pidfd: int | None
    report: mmap.mmap
    """shared memory in which it leaves its last error: no disk to be full, no pipe to block"""
    code: int | None = None
    """None while alive; as subprocess has it, negative for a signal"""
    error: SondeError | None = None

    def send(self, number: int) -> None:
        if self.code is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it with all it has started; safe as long as it has not been waited for."""
        if self.code is None:
            os.kill(self.pid, signal.SIGKILL)
            with suppress(ProcessLookupError):  # it had no time to become a group of its own
                os.killpg(self.pid, signal.SIGKILL)

    def reap(self, wait: bool = False) -> bool:
        """True if it has just ended; then `code` and `error` are set and nothing it started lives on."""
        flags = os.WEXITED | os.WNOWAIT | (0 if wait else os.WNOHANG)
        if self.code is not None or os.waitid(os.P_PID, self.pid, flags) is None:
            return False
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)  # its pid, and so its group, cannot be anyone else's yet
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self.error = _rebuild(self.report[:].rstrip(b"\0"))
        if self.error is None and code > 1 and code in _BY_CODE:
            self.error = _BY_CODE[code](f"rank {self.rank} ended with code {code}")
        self.code = code
        if self.pidfd is not None:
            os.close(self.pidfd)
        return True

    @property
    def state(self) -> str:
        """The kernel's letter for what the process does: T is stopped, D is stuck in the disk."""
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            return "?"


@dataclass
class _WorkerLoss:
    """Why an attempt ended that may be repeated."""

    rank: int
    why: str
    sign: Sign
    tail: str
    """last lines of the rank's output"""
    stacks: dict[int, str] = field(default_factory=dict)

    def event(self, attempt: int, saved: int | None) -> dict[str, Any]:
        return {
            "event": "restart",
            "attempt": attempt,
            "rank": self.rank,
            "step": self.sign.step,
            "why": f"{self.why}; starting again from {_last_good(saved)}",
            "stacks": self.stacks,
        }

    def final(self, restarts: int, saved: int | None) -> PeerLost:
        place = f"rank {self.rank}, step {self.sign.step}, phase '{self.sign.phase}'"
        memory = "SIGKILL often means that memory ran out: use fewer processes or a smaller batch; " if "SIGKILL" in self.why else ""
        return PeerLost(
            f"{self.why}; {restarts} restarts brought no new checkpoint" if restarts else self.why,
            where=f"{place}; its last lines: {self.tail}" if self.tail else place,
            last_good=_last_good(saved),
            fix=f"{memory}fix what ended that rank; the same command continues from the last checkpoint",
        )


class _Signals:
    """Signals to the supervisor: stop, stop immediately, or suspend (Ctrl-Z)."""

    def __init__(self) -> None:
        self.stop = 0
        self.at_once = False
        self.sleep = False
        self.previous: dict[int, Any] = {}

    def __enter__(self) -> _Signals:
        self.woken, self.wake = os.pipe()
        if threading.current_thread() is threading.main_thread():
            for number in (*STOPS, signal.SIGTSTP):
                self.previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)
        os.close(self.woken)
        os.close(self.wake)

    def _handle(self, number: int, frame: object) -> None:
        if number == signal.SIGTSTP:
            self.sleep = True
        elif self.stop == number == signal.SIGINT:
            self.at_once = True
        else:
            self.stop = number
        os.write(self.wake, b"!")  # ends the wait that the handler interrupted

    def stop_error(self, saved: int | None) -> SondeError:
        """The error of a job that ended on request without a worker saying so itself."""
        kind = Interrupted if self.stop == signal.SIGINT else Preempted
        name = signal.Signals(self.stop).name
        return kind(f"stopped by {name}", where="supervisor", last_good=_last_good(saved), fix="the same command continues from there")


class _Attempt:
    """One set of workers, from fork to the last of them."""

    def __init__(self, plan: _Plan, folder: Path, signals: _Signals) -> None:
        self.plan, self.limits, self.folder, self.signals = plan, plan.limits, folder, signals
        self.folder.mkdir()
        self.pulse = Pulse(plan.size)
        self.awake = time.monotonic()
        self.first: _Worker | None = None
        """the rank that failed first"""
        self.forwarded = False
        self.workers: list[_Worker] = []
        self.lifeline = os.pipe()  # its write end lives in the supervisor alone: end of file means that it has exited
        sys.stdout.flush()
        sys.stderr.flush()
        for rank in range(plan.size):
            self.pulse.write(rank, 0, "start")
            self.workers.append(self._fork(rank))

    def _fork(self, rank: int) -> _Worker:
        report = mmap.mmap(-1, 1 << 16)
        pid = os.fork()
        if pid == 0:
            self._work(rank, report)
        pidfd = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else None
        return _Worker(rank, pid, pidfd, report)

    @property
    def alive(self) -> list[_Worker]:
        return [worker for worker in self.workers if worker.code is None]

    def run(self, progress: Callable[[], int | None]) -> _WorkerLoss | None:
        """Wait until all workers have exited.  None: done.  A loss: worth another attempt.  Everything else is raised."""
        try:
            loss = self._watch()
        finally:
            self._end()
        if self.signals.stop and (loss or self.signals.at_once or any(worker.code for worker in self.workers)):
            error = min(self.workers, key=_weight).error if loss is None else None
            raise self.signals.stop_error(progress()) if error is None or isinstance(error, PeerLost) else error
        if loss is not None:
            return loss
        if self.first is None:
            return None
        cause = min(self.workers, key=lambda worker: (_weight(worker), worker is not self.first))
        if cause.error is None or isinstance(cause.error, PeerLost):
            return self._loss(cause, cause.error.what if cause.error else f"rank {cause.rank} ended with code {cause.code}")
        raise cause.error

    def _watch(self) -> _WorkerLoss | None:
        leave_by: float | None = None
        while self.alive:
            self._wait()
            ended = [worker for worker in self.workers if worker.reap()]
            killed = [worker for worker in ended if worker.code is not None and worker.code < 0]
            if killed:
                name = signal.Signals(-(killed[0].code or 0)).name
                return self._loss(killed[0], f"rank {killed[0].rank} was killed by {name}")
            if self.first is None and any(worker.code for worker in ended):
                self.first = next(worker for worker in ended if worker.code)
                leave_by = time.monotonic() + LEAVE_SECONDS
            # A rank may still be writing the checkpoint for which the others have already left.
            saving = any(self.pulse.read(worker.rank).phase == "save" for worker in self.alive)
            if leave_by is not None and time.monotonic() > leave_by and not saving:
                return None
            hung = self._hung_rank()
            if hung is not None:
                return hung
            if self._obey():
                return None
        return None

    def _wait(self) -> None:
        """Until a worker ends, a signal comes, or a rank could be late."""
        now = time.monotonic()
        signs = [self.pulse.read(worker.rank) for worker in self.alive]
        due = min(max(sign.time, self.awake) + self.limits["step"] for sign in signs) - now
        pidfds = [worker.pidfd for worker in self.alive if worker.pidfd is not None]
        pause = min(max(due, 0.1), 1.0) if pidfds else 0.05
        ready, _, _ = select.select([self.signals.woken, *pidfds], [], [], pause)
        if self.signals.woken in ready:
            os.read(self.signals.woken, 64)
        if time.monotonic() - now > pause + 1.0:  # this process itself was stopped or starved; so were the workers, maybe
            self.awake = time.monotonic()

    def _hung_rank(self) -> _WorkerLoss | None:
        """A rank that is late by its own fault: stopped, or busy elsewhere while the others wait; else all wait for all."""
        now = time.monotonic()
        alive = {worker.rank: worker for worker in self.alive}
        signs = {rank: self.pulse.read(rank) for rank in alive}
        ages = {rank: now - max(sign.time, self.awake) for rank, sign in signs.items()}
        late = [rank for rank in alive if ages[rank] > self.limits[signs[rank].phase]]
        stopped = [rank for rank in alive if ages[rank] > self.limits["step"] and alive[rank].state in "Tt"]
        guilty = stopped or [rank for rank in late if not signs[rank].waiting] or (late if len(late) == len(alive) else [])
        if not guilty:
            return None
        rank = max(guilty, key=lambda rank: ages[rank])
        stacks = self._stacks([worker for number, worker in alive.items() if number not in stopped])
        if rank in stopped:
            doing = "it is stopped by a signal"
        elif signs[rank].waiting:
            doing = "all ranks wait for each other"
        else:
            doing = f"it is in {_innermost(stacks.get(rank, ''))}"
        place = f"in phase '{signs[rank].phase}' at step {signs[rank].step}"
        return self._loss(alive[rank], f"rank {rank} gave no sign of life for {ages[rank]:.1f} s {place}: {doing}", stacks)

    def _stacks(self, workers: list[_Worker]) -> dict[int, str]:
        """Python stacks of all threads of the workers; one that is stuck in the kernel cannot answer."""
        for worker in workers:
            worker.send(DUMP_SIGNAL)
        deadline = time.monotonic() + 0.5
        while time.monotonic() < deadline and not all(self._read(f"stack-{worker.rank}") for worker in workers):
            time.sleep(0.02)
        time.sleep(0.02)  # a dump that has begun is soon whole
        return {worker.rank: self._read(f"stack-{worker.rank}") for worker in workers}

    def _obey(self) -> bool:
        """Handle signals; True where the workers must end now."""
        if self.signals.sleep:
            self.signals.sleep = False
            for worker in self.alive:
                worker.send(signal.SIGSTOP)
            os.kill(os.getpid(), signal.SIGSTOP)
            for worker in self.alive:
                worker.send(signal.SIGCONT)
            self.awake = time.monotonic()
        if self.signals.at_once:
            return True
        if self.signals.stop and not self.forwarded:
            if any(self.pulse.read(worker.rank).phase == "start" for worker in self.alive):
                return True  # no step was made since the last checkpoint, so there is nothing to save
            self.forwarded = True
            for worker in self.alive:
                worker.send(self.signals.stop)
        return False

    def _loss(self, worker: _Worker, why: str, stacks: dict[int, str] | None = None) -> _WorkerLoss:
        lines = self._read(f"log-{worker.rank}").splitlines()[-5:]
        crash = self._read(f"stack-{worker.rank}")
        if crash and not stacks:
            lines.append(f"crashed in {_innermost(crash)}")
        return _WorkerLoss(worker.rank, why, self.pulse.read(worker.rank), " | ".join(line.strip()[:200] for line in lines), stacks or {})

    def _read(self, name: str) -> str:
        """A file of this attempt, or nothing where a rank did not get as far as to make it."""
        try:
            return (self.folder / name).read_text(errors="replace")
        except OSError:
            return ""

    def _end(self) -> None:
        for worker in self.workers:
            worker.kill()
        for worker in self.workers:
            worker.reap(wait=True)
        for fd in self.lifeline:
            os.close(fd)

    def _work(self, rank: int, report: mmap.mmap) -> NoReturn:
        """The main function of a worker process."""
        code = 1
        try:
            for number in (*STOPS, signal.SIGTSTP):
                signal.signal(number, signal.SIG_DFL)
            os.setsid()  # Ctrl-C goes to the supervisor alone, which passes it on once
            self._tie_to_supervisor()
            self._redirect(rank)
            import torch

            torch.set_num_threads(self.plan.threads)
            world = World.from_launcher(rank, self.plan.size, self.folder / "store", self.pulse)
            self.plan.worker(world)
            world.close()
            code = 0
        except BaseException as error:
            code = _report(error, rank, report)
        finally:
            with suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def _tie_to_supervisor(self) -> None:
        """No worker outlives its supervisor: the kernel kills it, or else a thread does."""
        read, write = self.lifeline
        os.close(write)
        if sys.platform == "linux":
            set_death_signal = 1  # PR_SET_PDEATHSIG
            ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)

        def watch() -> None:
            os.read(read, 1)
            os.killpg(0, signal.SIGKILL)

        threading.Thread(target=watch, daemon=True).start()

    def _redirect(self, rank: int) -> None:
        """Rank 0 keeps the terminal, the others write to a file; stacks go to a file on a signal or a crash."""
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        if rank:
            log = os.open(self.folder / f"log-{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            os.dup2(log, 1)
            os.dup2(log, 2)
            sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
            sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
        self.stack_file = (self.folder / f"stack-{rank}").open("w")
        faulthandler.enable(self.stack_file)
        faulthandler.register(DUMP_SIGNAL, self.stack_file, all_threads=True)


def _report(error: BaseException, rank: int, report: mmap.mmap) -> int:
    """Send an error to the supervisor: class and four parts as JSON, and the traceback as a note.  Returns the exit code."""
    note = "\n".join(line[:300] for line in "".join(traceback.format_exception(error)).splitlines())[-6000:]
    if isinstance(error, SystemExit) and not isinstance(error.code, str):
        return (error.code or 0) & 0xFF
    if isinstance(error, KeyboardInterrupt):
        error = Interrupted("stopped by SIGINT", where=f"rank {rank}", fix="the same command continues from the last checkpoint")
    elif is_network_error(error):
        error = peer_lost(error, rank, "a collective")
    elif not isinstance(error, SondeError):
        frames = traceback.extract_tb(error.__traceback__)
        place = f"rank {rank}, {frames[-1].filename} line {frames[-1].lineno}" if frames else f"rank {rank}"
        error = SondeError(
            f"{type(error).__name__}: {error}", where=place, last_good="the last checkpoint", fix="--debug shows the traceback"
        )
    kind = next(kind.__name__ for kind in type(error).__mro__ if vars(errors).get(kind.__name__) is kind)
    parts = {name: getattr(error, name)[:1000] for name in ("what", "where", "last_good", "fix")}
    message = json.dumps({"kind": kind, "parts": parts, "note": note}, ensure_ascii=False).encode(errors="replace")
    report[: len(message)] = message  # at most 6 bytes a character, so it fits
    return error.exit_code


def _rebuild(message: bytes) -> SondeError | None:
    """The error in a worker's report; None where it had no time to write one."""
    if not message:
        return None
    report = json.loads(message)
    error = getattr(errors, report["kind"])(**report["parts"])
    error.add_note(report["note"])
    return error


def _weight(worker: _Worker) -> int:
    """Rank of the exit of a worker as an explanation of the failure of the job; the lowest is the cause, the rest follow from it."""
    if worker.error is None:
        return 5 if worker.code == 0 else 1 if (worker.code or 0) > 0 else 4
    return 3 if isinstance(worker.error, PeerLost) else 2 if isinstance(worker.error, (Preempted, Interrupted)) else 0


def _last_good(saved: int | None) -> str:
    return "no checkpoint yet" if saved is None else f"checkpoint at step {saved}"


def _innermost(dump: str) -> str:
    """'function, file line n' of the thread that was at work, from a stack dump."""
    lines = dump[dump.find("Current thread") :].splitlines() if "Current thread" in dump else dump.splitlines()
    frames = [line.strip() for line in lines if line.strip().startswith("File ")]
    return " called from ".join(frames[:2]) or "an unknown line"


def print_event(event: Mapping[str, Any]) -> None:
    """Print an event; the default of `on_event`."""
    print(f"warning: {event['why']}", file=sys.stderr)
    for rank, stack in event["stacks"].items():
        print(f"stack of rank {rank}:\n{stack}", file=sys.stderr)


def _check_fork(threads: int) -> None:
    """Refuse to start workers that would deadlock.

    OpenMP does not survive a fork of a process that has already used its threads: the first large operation of a
    multi-threaded worker never returns.  A short-lived fork finds out.
    """
    import torch

    pid = os.fork()
    if pid == 0:
        with suppress(BaseException):
            torch.set_num_threads(threads)
            torch.zeros(1 << 20).add_(1)
        os._exit(0)
    deadline = time.monotonic() + FORK_SECONDS
    while os.waitpid(pid, os.WNOHANG)[0] == 0:
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise BadInput(
                "this process has already computed with several threads, so it cannot start workers that do",
                fix="start from the command line, or use threads=1",
            )
        time.sleep(0.002)
