"""Killed at any instant, resumed, and ended bit for bit like the run that nobody touched."""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from sonde.engine import checkpoint
from sonde.runs import checkpoints
from tests.engine import harness
from tests.engine.harness import (
    EVERY,
    STEPS,
    Attempt,
    Calls,
    InSave,
    attempt,
    differences,
    digest,
    disk,
    finished,
    kill_in_save,
    same,
    train,
)


def calls_of_a_save(folder: Path) -> list[int]:
    """Calls of the third save, with the removal of the oldest checkpoint, up to the next save: all of them, but of the
    writes one after another only the first; `benchmarks/kill.py` takes every one."""
    calls, place = Calls(), InSave()
    with disk(calls):
        train(folder)
    names = [name for name, _ in calls.seen if place.note(name)[0] == 2]
    return [index for index, name in enumerate(names) if name != "write" or names[index - 1] != "write"]


def test_the_reference_is_reproducible(memory: Path, reference: dict[str, str]) -> None:
    same(train(memory / "here").path, reference)
    same(finished(memory / "forked"), reference)


def test_nothing_compared_is_left_out(reference: dict[str, str]) -> None:
    """Every part of a run that the comparison reads depends on the seed, so none of it is compared with nothing."""
    other = harness.reference(seed=1)
    assert differences(reference, other) == ["parameters", "moments", "best weights", "random states", "state", "metrics", "result"]


@pytest.mark.parametrize("number", range(12))
def test_killed_at_random_instants(number: int, memory: Path, reference: dict[str, str]) -> None:
    rng = random.Random(number)
    start = time.perf_counter()
    finished(memory / "whole")
    length = time.perf_counter() - start
    kills, most, path = 0, rng.randint(1, 5), memory / "run"
    while True:
        running = attempt(path)
        if kills < most and not running.ends_within(rng.uniform(0.02, length)):
            running.send(signal.SIGKILL)
        outcome = running.wait()
        if not outcome.killed:
            outcome.done()
            break
        kills += 1
    same(path, reference)


@pytest.mark.parametrize("third", range(3))
def test_killed_at_every_call_of_a_save(third: int, memory: Path, reference: dict[str, str]) -> None:
    """Kills aimed at every system call of a save, its retention and the rows after it, several in one run."""
    rng = random.Random(3)
    calls = calls_of_a_save(memory / "calls")
    assert len(calls) > 30
    left = calls[third::3]
    runs = 0
    while left:
        runs += 1
        path = memory / f"run-{runs}"
        while left:
            save = rng.choice((0, 1)) if path.exists() else 2
            outcome = attempt(path, kill_in_save(save, left[-1])).wait()
            if not outcome.killed:
                outcome.done()
                break
            left.pop()
        same(finished(path), reference)


def test_killed_right_after_the_best_checkpoint(memory: Path) -> None:
    """The best weights are then those of the checkpoint itself, and must outlive it."""
    expected = harness.reference(evaluate_every=EVERY)
    assert attempt(memory / "run", kill_in_save(1, 0), evaluate_every=EVERY).wait().killed
    assert checkpoints.steps(memory / "run" / "checkpoints") == [EVERY]
    same(finished(memory / "run", evaluate_every=EVERY), expected)
    assert f'"model_step": {EVERY}' in expected["result"]


@pytest.mark.parametrize("offset", [10, 40])
def test_killed_in_the_first_save_of_all(offset: int, memory: Path, reference: dict[str, str]) -> None:
    assert attempt(memory / "run", kill_in_save(0, offset)).wait().killed
    assert checkpoints.steps(memory / "run" / "checkpoints") == []
    same(finished(memory / "run"), reference)


def test_killed_before_the_first_step(memory: Path, reference: dict[str, str]) -> None:
    """At every call between the start of the process and its first rows, one after another in the same directory."""
    calls = Calls()
    with disk(calls):
        train(memory / "calls")
    first = [index for index, (name, _) in enumerate(calls.seen) if name == "open_append"][1] + 3
    for index in range(first):

        def rule(number, name, arguments, go, index=index):
            return os.kill(os.getpid(), signal.SIGKILL) if number == index else go()

        outcome = attempt(memory / "run", rule).wait()
        assert outcome.killed or outcome.code == 0
    same(finished(memory / "run"), reference)


def test_killed_after_the_last_step(memory: Path, reference: dict[str, str]) -> None:
    """At every call after the last save: rows, events and result are written once in the end."""
    calls = Calls()
    with disk(calls):
        train(memory / "calls")
    last = max(index for index, (name, _) in enumerate(calls.seen) if name == "free_bytes")
    place = InSave()
    numbers = [place.note(name) for name, _ in calls.seen]
    path = memory / "run"
    assert attempt(path, kill_in_save(*numbers[-1])).wait().killed
    for number in range(len(calls.seen) - last):

        def rule(index, name, arguments, go, number=number):
            return os.kill(os.getpid(), signal.SIGKILL) if index == number else go()

        if not attempt(path, rule).wait().killed:
            break
    same(finished(path), reference)


# ---------------------------------------------------------------- two processes


def workers_of(running: Attempt) -> list[int]:
    """Both workers, as soon as the supervisor has started them."""
    deadline = time.monotonic() + 60
    while len(workers := running.workers()) < 2:
        assert time.monotonic() < deadline and not running.ends_within(0.002)
    return workers


def gone(pids: list[int]) -> None:
    """Workers die with their supervisor, within moments."""
    deadline = time.monotonic() + 30
    while any(map(alive, pids)):
        assert time.monotonic() < deadline, "a worker outlived its supervisor"
        time.sleep(0.002)


def alive(pid: int) -> bool:
    """Whether any thread of a process lives: its files, and so the lock of a run, are closed by the last of them to die."""
    try:
        states = [path.read_text().rpartition(")")[2].split()[0] for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    except OSError:  # one died while we were reading
        return True
    return any(state not in "ZX" for state in states)


def reaches(path: Path, step: int, running: Attempt) -> None:
    """Wait until a run has a checkpoint of that step or a later one."""
    deadline = time.monotonic() + 60
    while max(checkpoints.steps(path / "checkpoints"), default=-1) < step:
        assert time.monotonic() < deadline and not running.ends_within(0.002)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return digest(finished(tmp_path_factory.mktemp("pair") / "run", processes=2))


def test_two_processes_are_reproducible_and_draw_different_numbers(memory: Path, pair: dict[str, str]) -> None:
    same(finished(memory / "run", processes=2), pair)
    last = checkpoint.read(checkpoints.path_of(memory / "run" / "checkpoints", STEPS)).parts["rng"]
    assert (last["rank-0.python"] != last["rank-1.python"]).any()


@pytest.mark.parametrize("victim", ["supervisor", "rank 0", "rank 1", "all at once"])
def test_two_processes_killed(victim: str, memory: Path, reference: dict[str, str], pair: dict[str, str]) -> None:
    path = memory / "run"
    for step in (EVERY, 3 * EVERY):
        if (path / "result.json").exists():
            break  # on a busy machine the few steps that were left can be over before the kill
        running = attempt(path, processes=2)
        workers = workers_of(running)
        reaches(path, step, running)
        choice = {"supervisor": [running.pid], "rank 0": workers[:1], "rank 1": workers[1:]}
        targets = choice.get(victim, [running.pid, *workers])
        for pid in targets:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if running.pid in targets:
            outcome = running.wait()
            assert outcome.killed or outcome.code == 0
            gone(workers)
        else:
            running.wait().done()  # the supervisor starts both again by itself
            break
    same(finished(path, processes=2), pair)
