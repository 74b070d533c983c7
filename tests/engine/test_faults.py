"""A disk that refuses, a directory that is taken, a signal, a clock that jumps: the run goes on, or stops and says why."""

from __future__ import annotations

import datetime
import errno
import fcntl
import itertools
import mmap
import os
import pty
import random
import re
import resource
import signal
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from sonde.api.run import Run
from sonde.cli.main import main
from sonde.core import files
from sonde.core.errors import ResourceFault
from sonde.engine import checkpoint, evaluate, progress, trainer, weights
from sonde.engine.strategies import ordered, single
from sonde.runs import checkpoints
from sonde.runs import clock as clock_module
from tests.engine.harness import (
    EVERY,
    FAULTS,
    STEPS,
    Attempt,
    Calls,
    Fault,
    InSave,
    attempt,
    differences,
    digest,
    disk,
    failing,
    finished,
    kill_in_save,
    leftovers,
    same,
    train,
)

# ---------------------------------------------------------------- a save on a disk that refuses


def save_small(folder: Path, step: int) -> Path:
    weights = torch.arange(600.0) + step
    parts = {"model": {"w": weights, "v": weights[:7]}, "optim": {}, "rng": {"r": weights.long()}, "best": {}}
    return checkpoint.save(folder, step, parts, {"step": step}, {"run": "small"})


def newest(folder: Path) -> int:
    snapshot = checkpoint.newest(folder, lambda snapshot: None, lambda text: pytest.fail(text))
    assert snapshot is not None and float(snapshot.parts["model"]["w"][0]) == snapshot.step
    return snapshot.step


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_at_every_call_of_a_save(fault: Fault, memory: Path) -> None:
    """ResourceFault with the bytes needed and free; the checkpoint before it loads, and nothing is left behind."""
    calls = Calls()
    save_small(memory, 1)
    with disk(calls):
        save_small(memory, 2)
    checkpoints.set_aside(checkpoints.path_of(memory, 2))
    for place, (name, _) in enumerate(calls.seen):
        with disk(failing(fault, lambda index, _, place=place: index == place)):
            if fault == "short":
                save_small(memory, 2)
            else:
                with pytest.raises(ResourceFault) as caught:
                    save_small(memory, 2)
                assert re.search(r"need [\d,]+ bytes, [\d,]+ bytes free", caught.value.where), name
                assert "checkpoint at step" in caught.value.last_good and caught.value.exit_code == 6
        committed = fault == "short" or place == len(calls.seen) - 1  # only the last sync comes after the rename
        assert newest(memory) == (2 if committed else 1), name
        assert not list(memory.glob(".tmp-*")), name
        if committed:
            checkpoints.set_aside(checkpoints.path_of(memory, 2))


@pytest.mark.parametrize("fault", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_fails_for_good_from_any_call_on(fault: int, memory: Path) -> None:
    """Then even tidying fails; what is left is swept at the next start."""
    save_small(memory, 1)
    calls = Calls()
    with disk(calls):
        save_small(memory, 2)
    checkpoints.set_aside(checkpoints.path_of(memory, 2))
    for place in range(len(calls.seen) - 1):
        with disk(failing(fault, lambda index, _, place=place: index >= place)), pytest.raises(ResourceFault):
            save_small(memory, 2)
        assert newest(memory) == 1
        assert not list(memory.glob(".tmp-*"))


def test_no_room_is_seen_before_anything_is_written(memory: Path) -> None:
    calls = Calls()

    def full(index: int, name: str, arguments: tuple, go: Callable[[], Any]) -> Any:
        calls(index, name, arguments, lambda: None)
        return 1234 if name == "free_bytes" else go()

    with disk(full), pytest.raises(ResourceFault, match="1,234 bytes free"):
        save_small(memory, 1)
    assert {name for name, _ in calls.seen} == {"free_bytes", "unlink"}  # the second is tidying, of nothing


# ---------------------------------------------------------------- a run on a disk that refuses


def warnings_of(path: Path) -> list[str]:
    return [event["text"] for event in Run(path).events if event["event"] == "warning"]


def places(folder: Path) -> list[tuple[int, str]]:
    """(number within the third save, name) of its calls and those after it; of writes in a row only the first."""
    calls, place = Calls(), InSave()
    with disk(calls):
        train(folder)
    names = [name for name, _ in calls.seen if place.note(name)[0] == 2]
    return [(index, name) for index, name in enumerate(names) if name != "write" or names[index - 1] != "write"]


@pytest.mark.parametrize("part", range(2))
def test_a_run_goes_on_over_a_fault_anywhere_in_a_save(part: int, memory: Path, reference: dict[str, str]) -> None:
    """It warns at most once, tries again at the next checkpoint, and ends bit for bit as ever."""
    for number, (offset, name) in list(enumerate(places(memory / "places")))[part::2]:
        path, fault, save = memory / f"run-{number}", FAULTS[number % len(FAULTS)], InSave()
        with disk(failing(fault, lambda _, name, save=save, offset=offset: save.note(name) == (2, offset))):
            train(path)
        assert set(differences(digest(path), reference)) <= {"kept checkpoints"} and leftovers(path) == []
        messages = warnings_of(path)
        assert len(messages) <= 1 and (fault != "short" or not messages), (name, messages)
        assert all("need" in text and "free" in text and "last good: checkpoint at step" in text for text in messages if "rows" not in text)


class FailingLog:
    """Refuses some of the writes and syncs of one file."""

    def __init__(self, file: str, fault: Fault, which: Callable[[int], bool]) -> None:
        self.file, self.which, self.count, self.fds = file, which, 0, set[int]()
        self.fail = failing(fault, lambda index, name: True)

    def __call__(self, index: int, name: str, arguments: tuple, go: Callable[[], Any]) -> Any:
        if name == "open_append" and arguments[0].name == self.file:
            self.fds.add(fd := go())
            return fd
        # A disk that refuses rows refuses to repair them, too.
        if arguments[0] in self.fds if name in ("write", "fsync") else name == "truncate" and arguments[0].name == self.file:
            self.count += 1
            if self.which(self.count - 1):
                return self.fail(index, name, arguments, go)
        return go()


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("first, many", [(0, 1), (3, 1), (2, 5), (7, 8)])
def test_rows_wait_for_a_disk_that_refuses_them(fault: Fault, first: int, many: int, memory: Path, reference: dict[str, str]) -> None:
    with disk(FailingLog("metrics.jsonl", fault, lambda count: first <= count < first + many)):
        train(memory / "run")
    messages = warnings_of(memory / "run")
    assert differences(digest(memory / "run"), reference) == []
    assert len(messages) == len(set(messages)) and bool(messages) == (fault != "short")


def test_rows_that_are_never_taken_end_the_run_and_are_there_after_the_next_start(memory: Path, reference: dict[str, str]) -> None:
    with disk(FailingLog("metrics.jsonl", errno.ENOSPC, lambda count: count > 8)), pytest.raises(ResourceFault) as caught:
        train(memory / "run")
    assert caught.value.exit_code == 6 and "metrics.jsonl" in caught.value.what
    same(finished(memory / "run"), reference)


@pytest.mark.parametrize("fault", FAULTS)
def test_events_that_are_refused_disturb_nothing(fault: Fault, memory: Path, reference: dict[str, str]) -> None:
    with disk(FailingLog("events.jsonl", fault, lambda count: 1 <= count < 4)):
        train(memory / "run")
    same(memory / "run", reference)
    assert [event["event"] for event in Run(memory / "run").events].count("checkpoint") == 5


def full_disk(index: int, name: str, arguments: tuple, go: Callable[[], Any]) -> Any:
    """Always too little room, and never twice the same."""
    return 5000 - index if name == "free_bytes" else go()


def test_a_full_disk_is_told_once_and_ends_only_the_last_save(memory: Path, reference: dict[str, str]) -> None:
    with disk(full_disk), pytest.raises(ResourceFault) as caught:
        train(memory / "run")
    error = caught.value
    assert error.exit_code == 6 and "need" in error.where and "free" in error.where and error.last_good and error.fix
    messages = warnings_of(memory / "run")
    assert len(messages) == 1 and re.search(r"need [\d,]+ bytes, [\d,]+ bytes free", messages[0])
    assert Run(memory / "run").events[-1]["event"] == "warning" and "finish" not in {e["event"] for e in Run(memory / "run").events}
    same(finished(memory / "run"), reference)


def test_it_is_told_again_after_a_save_that_worked(memory: Path, reference: dict[str, str]) -> None:
    saves = itertools.count()

    def sometimes(index: int, name: str, arguments: tuple, go: Callable[[], Any]) -> Any:
        return 7 if name == "free_bytes" and next(saves) in (0, 1, 2, 3, 5, 6) else go()  # a refused save asks twice

    with disk(sometimes):
        train(memory / "run")
    assert len(warnings_of(memory / "run")) == 2
    assert differences(digest(memory / "run"), reference) == ["kept checkpoints"]


def test_a_real_limit_of_the_kernel(memory: Path, reference: dict[str, str]) -> None:
    """Files of at most 4 kB: the kernel itself writes short, then refuses."""

    def limited() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    outcome = attempt(memory / "run", before=limited).wait()
    assert outcome.code == 6 and outcome.kind == "ResourceFault" and "File too large" in outcome.parts["what"]
    assert leftovers(memory / "run") == [] and checkpoints.steps(memory / "run" / "checkpoints") == []
    same(finished(memory / "run"), reference)


@pytest.mark.parametrize("fault", [errno.ENOSPC, errno.EIO, errno.EACCES])
def test_a_fault_at_every_call_of_a_start_and_of_a_finish(fault: int, memory: Path, reference: dict[str, str]) -> None:
    """Outside of saves a fault may end the run, but only with ResourceFault, and the next start ends as ever."""
    calls, save = Calls(), InSave()
    assert attempt(memory / "half", kill_in_save(3, 0)).wait().killed
    with disk(calls):
        train(memory / "half")
    outside = [index for index, (name, _) in enumerate(calls.seen) if save.note(name)[0] == -1]
    last = max(index for index, (name, _) in enumerate(calls.seen) if name == "rename") - 6
    for number, place in enumerate([*outside, *range(last, len(calls.seen))]):
        path = memory / f"run-{number}"
        if number == 0 or leftovers(path.parent / f"run-{number - 1}"):
            assert attempt(path, kill_in_save(3, 0)).wait().killed
        else:
            path = memory / f"run-{number - 1}"
            path.rename(memory / f"run-{number}")
            path = memory / f"run-{number}"
            (path / "result.json").unlink(missing_ok=True)
        with disk(failing(fault, lambda index, _, place=place: index == place)):
            try:
                train(path)
            except ResourceFault as error:
                assert error.exit_code == 6 and error.where
        train(path)
        assert differences(digest(path), reference) == [], calls.seen[place]
        assert leftovers(path) == [], calls.seen[place]


# ---------------------------------------------------------------- directories that cannot be used


def bad_places(folder: Path) -> dict[str, Path]:
    (folder / "file").write_text("here")
    (folder / "dangling").symlink_to(folder / "nowhere" / "at all")
    (folder / "loop").symlink_to(folder / "loop")
    (folder / "held").mkdir()
    (folder / "held" / "checkpoints").write_text("a file where a folder must be")
    (folder / "linked").mkdir()
    (folder / "linked" / "run.lock").symlink_to(folder / "elsewhere")
    return {
        "a file": folder / "file",
        "below a file": folder / "file" / "run",
        "a link to nowhere": folder / "dangling",
        "a link to itself": folder / "loop",
        "a name too long": folder / ("x" * 300),
        "a system that cannot be written": Path("/proc/sonde/run"),
        "no room for checkpoints": folder / "held",
        "a lock that is a link": folder / "linked",
    }


BAD_PLACES = ("a file", "below a file", "a link to nowhere", "a link to itself", "a name too long", "a system that cannot be written")


@pytest.mark.parametrize("what", [*BAD_PLACES, "no room for checkpoints", "a lock that is a link"])
@pytest.mark.parametrize("through", ["Python", "the command line"])
def test_a_directory_that_cannot_be_used(what: str, through: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 6 with the path named, before the first step, and nothing made elsewhere."""
    path = bad_places(tmp_path)[what]
    if through == "Python":
        with pytest.raises(ResourceFault) as caught:
            train(path)
        assert str(path) in caught.value.where and caught.value.fix and "Traceback" not in str(caught.value)
    else:
        recipe = tmp_path / "mine.py"
        recipe.write_text("from tests.engine.harness import trial as recipe\n")
        assert main(["train", str(recipe), "--run", str(path), "--quiet", "--threads", "1"]) == (2 if what == "a name too long" else 6)
        assert str(path)[:30] in capsys.readouterr().err
    assert not list(tmp_path.rglob("metrics.jsonl")) and not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS, errno.ENOSPC, errno.EPERM])
@pytest.mark.parametrize("call", ["mkdir", "create", "open_append"])
def test_a_directory_without_the_right_to_write(code: int, call: str, tmp_path: Path) -> None:
    """Told by the kernel at the first try, whichever call that is; these tests may run as root, who has every right."""
    with disk(failing(code, lambda index, name: name == call)), pytest.raises(ResourceFault, match=re.escape(os.strerror(code))):
        train(tmp_path / "run")


def test_missing_folders_above_are_made(tmp_path: Path) -> None:
    train(tmp_path / "a" / "b" / "run", steps=2)
    assert (tmp_path / "a" / "b" / "run" / "result.json").is_file()


# ---------------------------------------------------------------- two runs in one directory


def waiting_at_the_first_step(gate: int) -> Callable[[], None]:
    """Changes a process so that its run waits until the other end of the gate is closed."""

    def change() -> None:
        real = trainer.Trainer.run

        def run(self: trainer.Trainer) -> None:
            os.read(gate, 1)
            real(self)

        trainer.Trainer.run = run  # type: ignore[method-assign]

    return change


def test_of_many_starts_exactly_one_runs(memory: Path, reference: dict[str, str]) -> None:
    gate, hold = os.pipe()

    def change() -> None:
        os.close(hold)
        waiting_at_the_first_step(gate)()

    starts = [attempt(memory / "run", before=change) for _ in range(10)]
    losers = []
    deadline = time.monotonic() + 120
    while len(losers) < 9:
        assert time.monotonic() < deadline
        losers += [running for running in starts if running not in losers and running.ends_within(0.01)]
    os.close(hold)
    os.close(gate)
    winner = next(running for running in starts if running not in losers)
    for running in losers:
        outcome = running.wait()
        assert outcome.code == 8 and outcome.kind == "RunBusy", outcome
        assert re.search(rf"pid {winner.pid} on \S+, since \d\d\d\d-", outcome.parts["where"])
    winner.wait().done()
    same(memory / "run", reference)


def test_a_killed_owner_leaves_the_directory_free_at_once(memory: Path, reference: dict[str, str]) -> None:
    """Even while a child of the owner lives on with all its open files."""
    gate, hold = os.pipe()
    reader, tell = os.pipe()

    def change() -> None:
        real = trainer.Trainer.run

        def run(self: trainer.Trainer) -> None:
            child = os.fork()
            if child == 0:
                os.close(hold)
                os.read(gate, 1)
                os._exit(0)
            os.write(tell, b"!")
            real(self)

        trainer.Trainer.run = run  # type: ignore[method-assign]

    owner = attempt(memory / "run", before=change)
    os.read(reader, 1)
    owner.send(signal.SIGKILL)
    assert owner.wait().killed
    same(finished(memory / "run"), reference)
    for fd in (gate, hold, reader, tell):
        os.close(fd)


# ---------------------------------------------------------------- signals

CODES = {signal.SIGTERM: 75, signal.SIGHUP: 75, signal.SIGINT: 130}


class Steps:
    """Counts the updates of a process in shared memory, and can send it signals from inside."""

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, 8)

    @property
    def done(self) -> int:
        return int.from_bytes(self.memory[:8], "little")

    def counting(self, at: tuple[str, int] | None = None, numbers: tuple[int, ...] = ()) -> Callable[[], None]:
        """A change for a process: count, and send itself signals in the n-th call of an update, a gradient or an evaluation."""

        def change() -> None:
            gradients = ((strategy, "gradient") for strategy in (single.Single, ordered.Ordered))
            for owner, name in ((weights.Weights, "update"), *gradients, (evaluate, "_gather")):
                setattr(owner, name, self._watched(getattr(owner, name), name, at, numbers))

        return change

    def _watched(self, real: Callable[..., Any], name: str, at: tuple[str, int] | None, numbers: tuple[int, ...]) -> Callable[..., Any]:
        calls = itertools.count(1)

        def call(*arguments: Any) -> Any:
            if (name, next(calls)) == at:
                for number in numbers:
                    os.kill(os.getpid(), number)
            result = real(*arguments)
            if name == "update":
                self.memory[:8] = (self.done + 1).to_bytes(8, "little")
            return result

        return call


def stopped_well(path: Path, code: int, outcome: Any, steps: Steps, reference: dict[str, str]) -> None:
    """The code of the signal, every finished step saved, and the same end after a resume."""
    assert outcome.code == code, outcome
    assert max(checkpoints.steps(path / "checkpoints")) == steps.done
    assert f"checkpoint at step {steps.done}" in outcome.parts["last_good"]
    assert leftovers(path) == []
    finished(path)
    assert set(differences(digest(path), reference)) <= {"kept checkpoints"}


@pytest.mark.parametrize("number", CODES)
@pytest.mark.parametrize("at", [("gradient", 1), ("update", 7), ("gradient", 16), ("_gather", 2), ("update", STEPS - 1)])
def test_a_signal_loses_no_step(number: int, at: tuple[str, int], memory: Path, reference: dict[str, str]) -> None:
    steps = Steps()
    outcome = attempt(memory / "run", before=steps.counting(at, (number,))).wait()
    stopped_well(memory / "run", CODES[number], outcome, steps, reference)


@pytest.mark.parametrize("offset", [0, 5, 20, 40])
def test_a_signal_in_a_save_lets_it_finish(offset: int, memory: Path, reference: dict[str, str]) -> None:
    place, steps = InSave(), Steps()

    def rule(index: int, name: str, arguments: tuple, go: Callable[[], Any]) -> Any:
        if place.note(name) == (1, offset):
            os.kill(os.getpid(), signal.SIGTERM)
        return go()

    outcome = attempt(memory / "run", rule, steps.counting()).wait()
    stopped_well(memory / "run", 75, outcome, steps, reference)


@pytest.mark.parametrize("seed", range(6))
def test_signals_at_random_times(seed: int, memory: Path, reference: dict[str, str]) -> None:
    """Every finished step is saved, and the code tells the signal."""
    rng, steps = random.Random(seed), Steps()
    number = rng.choice(list(CODES))
    running = attempt(memory / "run", before=steps.counting())
    expected = rng.randint(1, STEPS - 4)
    while steps.done < expected:
        assert not running.ends_within(0.0005)
    running.send(number)
    stopped_well(memory / "run", CODES[number], running.wait(), steps, reference)


@pytest.mark.parametrize("number", CODES)
def test_a_signal_in_the_last_step_lets_the_run_finish(number: int, memory: Path, reference: dict[str, str]) -> None:
    attempt(memory / "run", before=Steps().counting(("update", STEPS), (number,))).wait().done()
    same(memory / "run", reference)


@pytest.mark.parametrize("number", CODES)
@pytest.mark.parametrize("when", ["at the start", "at the end"])
def test_a_signal_outside_the_loop_loses_nothing(number: int, when: str, memory: Path, reference: dict[str, str]) -> None:
    """There is no step to finish there: the process ends with the signal's code, and the run goes on later."""

    def rule(index: int, name: str, arguments: tuple, go: Callable[[], Any]) -> Any:
        if index == 8 if when == "at the start" else name == "create" and "result.json" in arguments[0].name:
            os.kill(os.getpid(), number)
        return go()

    outcome = attempt(memory / "run", rule).wait()
    assert outcome.code == CODES[number], outcome
    same(finished(memory / "run"), reference)


def test_a_second_interrupt_stops_at_once(memory: Path, reference: dict[str, str]) -> None:
    outcome = attempt(memory / "run", before=Steps().counting(("gradient", 8), (signal.SIGINT, signal.SIGINT))).wait()
    assert outcome.code == 130 and checkpoints.steps(memory / "run" / "checkpoints") == [EVERY]
    same(finished(memory / "run"), reference)


def test_a_signal_without_room_for_the_checkpoint(memory: Path, reference: dict[str, str]) -> None:
    outcome = attempt(memory / "run", full_disk, Steps().counting(("update", 7), (signal.SIGTERM,))).wait()
    assert outcome.code == 6 and outcome.kind == "ResourceFault"
    same(finished(memory / "run"), reference)


@pytest.mark.parametrize("number", CODES)
def test_two_processes_stop_at_the_same_step(number: int, memory: Path, reference: dict[str, str]) -> None:
    path = memory / "run"
    long = {"processes": 2, "steps": 12 * STEPS}  # a busy machine may look for the first checkpoint late
    running = attempt(path, **long)
    while not checkpoints.steps(path / "checkpoints"):
        assert not running.ends_within(0.001)
    running.send(number)
    outcome = running.wait()
    assert outcome.code == CODES[number], outcome
    saved = max(checkpoints.steps(path / "checkpoints"))
    assert f"checkpoint at step {saved}" in outcome.parts["last_good"] and leftovers(path) == []
    finished(path, **long)
    whole = digest(finished(memory / "whole", **long))
    assert set(differences(digest(path), whole)) <= {"kept checkpoints"}


def talkative(kind: type, put: Callable[[Any, str, Any], None] = setattr) -> None:
    """A progress that draws at every step."""
    real = kind.tick  # type: ignore[attr-defined]

    def tick(self: Any, step: int) -> None:
        self.due = 0.0
        real(self, step)

    put(kind, "tick", tick)


def test_a_terminal_that_is_closed_loses_no_step(memory: Path, reference: dict[str, str]) -> None:
    """The kernel sends SIGHUP, and from then on every line for that terminal fails."""
    steps = Steps()
    master, slave = pty.openpty()

    def act() -> None:
        os.environ["TERM"] = "xterm"
        os.setsid()
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
        os.dup2(slave, 2)
        os.close(slave)
        os.close(master)
        sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
        steps.counting()()
        talkative(progress.Progress)
        train(memory / "run", quiet=False, steps=2000, checkpoint_every=1000)

    running = Attempt(act)
    os.close(slave)
    while steps.done < 40:
        assert not running.ends_within(0.0005)
    os.close(master)
    outcome = running.wait()
    assert outcome.code == 75, outcome
    assert max(checkpoints.steps(memory / "run" / "checkpoints")) == steps.done


def test_a_reader_that_has_left_does_not_stop_a_run(memory: Path, reference: dict[str, str]) -> None:
    """`sonde train ... 2>&1 | head` ends the reading, not the training."""
    assert attempt(memory / "run", kill_in_save(1, 0)).wait().killed
    read, write = os.pipe()
    os.close(read)

    def act() -> None:
        os.dup2(write, 2)
        sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
        train(memory / "run", quiet=False)

    Attempt(act).wait().done()
    os.close(write)
    same(memory / "run", reference)


# ---------------------------------------------------------------- the clock, torn rows


class JumpingClock:
    """Years forward, years back, at every look."""

    def __init__(self) -> None:
        self.rng, self.looks = random.Random(0), 0

    def now(self) -> datetime.datetime:
        self.looks += 1
        return datetime.datetime(2020, 1, 1) + datetime.timedelta(days=self.rng.choice((-3650, -1, 0, 1, 3650)), seconds=self.looks)


def test_a_clock_that_jumps_changes_nothing(
    memory: Path, reference: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = JumpingClock()
    assert attempt(memory / "run", kill_in_save(3, 0)).wait().killed
    for number, path in enumerate(sorted((memory / "run").rglob("*"))):  # file times are not to be believed either
        os.utime(path, (1e9 - number * 1e6, 1e9 - number * 1e6))
    monkeypatch.setattr(clock_module, "datetime", type("datetime", (), {"datetime": clock}))
    talkative(progress.Progress, monkeypatch.setattr)
    train(memory / "run", quiet=False)
    assert clock.looks > 3
    same(memory / "run", reference)
    stderr = capsys.readouterr().err
    assert "step 20/23" in stderr and not re.search(r"-\d[\d.]* (s|min|h)\b", stderr)


def test_spans_are_never_negative_and_paces_never_divide_by_nothing() -> None:
    pace = progress.Pace()
    for at, step in ((5.0, 1), (5.0, 2), (4.0, 3)):
        pace.mark(step, at)
        assert pace.rate >= 0 and (pace.left(10) is None or pace.left(10) >= 0)


@pytest.mark.parametrize("torn", [b'{"step": 17, "lo', b"\x00" * 40, b"\xff\xfe{", b'{"step": 99}\n', b"[" * 100_000])
def test_a_torn_row_is_passed_over_and_cut_off(torn: bytes, memory: Path, reference: dict[str, str]) -> None:
    assert attempt(memory / "run", kill_in_save(2, 0)).wait().killed
    for name in ("metrics.jsonl", "events.jsonl"):
        whole = list(Run(memory / "run").directory.rows(name))
        with open(memory / "run" / name, "ab") as file:
            file.write(torn)
        after = list(Run(memory / "run").directory.rows(name))
        assert after[: len(whole)] == whole and (after == whole) == (b"99" not in torn)
    finished(memory / "run")
    same(memory / "run", reference)


def test_rows_cut_short_below_the_checkpoint_are_told(memory: Path, reference: dict[str, str]) -> None:
    assert attempt(memory / "run", kill_in_save(2, 0)).wait().killed
    files.disk.truncate(memory / "run" / "metrics.jsonl", 30)
    outcome = attempt(memory / "run").wait()
    assert outcome.code == 3 and "metrics.jsonl has 30 bytes" in outcome.parts["what"]
