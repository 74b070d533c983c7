"""The supervisor against workers that die, hang, stop, fail and finish, with a toy job that saves its step in a file."""

from __future__ import annotations

import gc
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from sonde.core.errors import BadInput, DataUnusable, Interrupted, NumericalStop, PeerLost, Preempted, ResourceFault, RunBusy, SondeError
from sonde.engine import launch as launch_module
from sonde.engine.launch import launch
from sonde.engine.world import World

STEPS = 30


class Toy:
    """A job of STEPS steps on some processes; the value of a step depends on all before it, so a wrong resume shows."""

    def __init__(self, folder: Path, trouble: Callable[[Toy, World, int], None] = lambda toy, world, step: None) -> None:
        self.file, self.trouble = folder / "checkpoint", trouble
        self.pids = torch.zeros(8, dtype=torch.int64).share_memory_()
        self.attempts = torch.zeros(8, dtype=torch.int64).share_memory_()
        self.events: list[Mapping[str, Any]] = []
        self.seen: list[float] = []

    def __call__(self, world: World) -> None:
        signals: list[int] = []
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, frame: signals.append(number))
        self.pids[world.rank] = os.getpid()
        self.attempts[world.rank] += 1
        step, value = self.load()
        while step < STEPS:
            world.beat(step, "step")
            self.trouble(self, world, step)
            value = world.sum_vector([value * (1 + world.rank) / 2 + step])[0] % 1000
            step += 1
            stop = int(world.max_vector([signals[-1] if signals else 0])[0])
            if world.is_main and (step % 5 == 0 or stop):
                world.beat(step, "save")
                self.file.with_suffix(".new").write_text(f"{step} {value.hex()}")
                self.file.with_suffix(".new").rename(self.file)
            if stop:
                raise (Interrupted if stop == signal.SIGINT else Preempted)("stopped", last_good=f"checkpoint at step {step}")

    def load(self) -> tuple[int, float]:
        if not self.file.exists():
            return 0, 1.0
        step, value = self.file.read_text().split()
        return int(step), float.fromhex(value)

    def progress(self) -> int | None:
        return self.load()[0] or None

    def take(self, event: Mapping[str, Any]) -> None:
        self.events.append(event)
        self.seen.append(time.monotonic())

    def run(self, processes: int = 2, **options: Any) -> None:
        launch(self, processes, progress=self.progress, on_event=self.take, **options)


def uninterrupted(folder: Path, processes: int = 2) -> tuple[int, float]:
    folder = folder / "reference"
    folder.mkdir()
    toy = Toy(folder)
    toy.run(processes)
    assert toy.events == []
    return toy.load()


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No worker, no file descriptor, no temporary file and no signal handler outlives a launch."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    before = (set(os.listdir("/proc/self/fd")), [signal.getsignal(number) for number in launch_module.STOPS])
    yield
    gc.collect()  # shared tensors of the test itself hold descriptors
    assert list(temporary.iterdir()) == [] and children_of(os.getpid()) == []
    assert set(os.listdir("/proc/self/fd")) <= before[0] and [signal.getsignal(number) for number in launch_module.STOPS] == before[1]


def children_of(pid: int) -> list[int]:
    return [int(word) for task in os.listdir(f"/proc/{pid}/task") for word in Path(f"/proc/{pid}/task/{task}/children").read_text().split()]


def once(toy: Toy, world: World) -> bool:
    return int(toy.attempts[world.rank]) == 1


def test_workers_finish(tmp_path: Path) -> None:
    assert uninterrupted(tmp_path)[0] == STEPS


def test_killed_workers_are_replaced(tmp_path: Path) -> None:
    """Rank 0 or 1, five times in one run, at any of its steps: the result is that of a run nobody touched."""
    rng = random.Random(7)
    plan = sorted(rng.sample(range(1, STEPS), 5))
    victims = [rng.randrange(2) for _ in plan]
    killed_at = torch.zeros(5, dtype=torch.float64).share_memory_()
    back_at = torch.zeros(5, dtype=torch.float64).share_memory_()

    def trouble(toy: Toy, world: World, step: int) -> None:
        attempt = int(toy.attempts[world.rank]) - 1
        if attempt and back_at[attempt - 1] == 0:
            back_at[attempt - 1] = time.monotonic()
        if attempt < len(plan) and step == plan[attempt] and world.rank == victims[attempt]:
            killed_at[attempt] = time.monotonic()
            os.kill(os.getpid(), signal.SIGKILL)

    toy = Toy(tmp_path, trouble)
    toy.run()
    assert toy.load() == uninterrupted(tmp_path)
    assert [event["rank"] for event in toy.events] == victims and [event["step"] for event in toy.events] == plan
    assert all("was killed by SIGKILL" in event["why"] for event in toy.events)
    noticed = max(seen - float(at) for seen, at in zip(toy.seen, killed_at, strict=True))
    print(f"\nnoticed within {noticed * 1e3:.0f} ms, back in training within {float((back_at - killed_at).max()) * 1e3:.0f} ms")


def test_budget_counts_attempts_without_progress(tmp_path: Path) -> None:
    """A worker that always dies at the same step uses up the restarts, and the error names rank, signal and last words."""

    def trouble(toy: Toy, world: World, step: int) -> None:
        if step == 12 and world.rank == 1:
            print("my last words")
            os.kill(os.getpid(), signal.SIGSEGV)

    toy = Toy(tmp_path, trouble)
    with pytest.raises(PeerLost) as caught:
        toy.run(restarts=2)
    error = caught.value
    assert len(toy.events) == 3  # the first attempt brought the checkpoint of step 10, the next ones nothing
    assert "rank 1 was killed by SIGSEGV" in error.what and "2 restarts" in error.what
    assert "my last words" in error.where and "trouble" in error.where and "step 12" in error.where
    assert error.last_good == "checkpoint at step 10" and error.fix and len(error.render().split("\n")) == 4


@pytest.mark.parametrize("rank", [0, 1])
def test_a_stopped_worker_is_named_in_time(tmp_path: Path, rank: int) -> None:
    stopped_at = torch.zeros(1, dtype=torch.float64).share_memory_()

    def trouble(toy: Toy, world: World, step: int) -> None:
        if once(toy, world) and step == 7 and world.rank == rank:
            stopped_at[0] = time.monotonic()
            os.kill(os.getpid(), signal.SIGSTOP)

    toy = Toy(tmp_path, trouble)
    toy.run(hang_timeout=2.0)
    (event,) = toy.events
    assert event["rank"] == rank and "stopped by a signal" in event["why"] and "phase 'step' at step 7" in event["why"]
    assert "ordered_sum" in event["stacks"][1 - rank] or "gather_floats" in event["stacks"][1 - rank]
    assert toy.load() == uninterrupted(tmp_path)
    print(f"\nnamed {toy.seen[0] - float(stopped_at[0]):.2f} s after it was stopped, limit 2 s")


def test_a_busy_loop_is_named_with_its_function(tmp_path: Path) -> None:
    def endless_search() -> None:
        while True:
            pass

    def trouble(toy: Toy, world: World, step: int) -> None:
        if once(toy, world) and step == 3 and world.rank == 1:
            endless_search()

    toy = Toy(tmp_path, trouble)
    toy.run(hang_timeout=1.5)
    (event,) = toy.events
    assert event["rank"] == 1 and "endless_search" in event["why"] and "trouble" in event["why"]


def test_waiting_for_a_long_save_is_no_hang(tmp_path: Path) -> None:
    """Rank 0 is busy longer than a step may take, but not longer than a save may; rank 1 waits for it and is not blamed."""

    def trouble(toy: Toy, world: World, step: int) -> None:
        if step == 4 and world.is_main:
            world.beat(step, "save")
            time.sleep(2.2)

    toy = Toy(tmp_path, trouble)
    toy.run(hang_timeout=1.5)
    assert toy.events == []


def test_ranks_that_wait_for_each_other(tmp_path: Path) -> None:
    """Different calls on different ranks never meet."""

    def trouble(toy: Toy, world: World, step: int) -> None:
        if once(toy, world) and step == 2 and world.rank == 0:
            with world._collective():
                torch.distributed.recv(torch.zeros(1), 1)

    toy = Toy(tmp_path, trouble)
    with pytest.raises(PeerLost) as caught:
        toy.run(hang_timeout=1.5, restarts=0)
    assert "all ranks wait for each other" in caught.value.what and caught.value.exit_code == 7


KINDS = [BadInput, DataUnusable, NumericalStop, ResourceFault, RunBusy, Preempted, Interrupted]


@pytest.mark.parametrize("kind", KINDS)
def test_own_errors_end_the_job_and_come_back_whole(tmp_path: Path, kind: type[SondeError]) -> None:
    def trouble(toy: Toy, world: World, step: int) -> None:
        if step == 1:
            world.beat(1, "step")
            if world.rank == 1:
                raise kind("what é\n", where="where", last_good="good", fix="fix")

    toy = Toy(tmp_path, trouble)
    with pytest.raises(SondeError) as caught:
        toy.run()
    assert type(caught.value) is kind and toy.events == []
    assert [caught.value.what, caught.value.where, caught.value.last_good, caught.value.fix] == ["what é\\n", "where", "good", "fix"]


def test_a_foreign_error_is_told_once_with_its_place(tmp_path: Path) -> None:
    def trouble(toy: Toy, world: World, step: int) -> None:
        if step == 1:
            raise ZeroDivisionError("no " + "x" * 100000)

    toy = Toy(tmp_path, trouble)
    with pytest.raises(SondeError) as caught:
        toy.run()
    assert caught.value.what.startswith("ZeroDivisionError: no x") and caught.value.exit_code == 1
    assert "rank " in caught.value.where and "test_launch.py" in caught.value.where
    assert "Traceback" in caught.value.__notes__[0] and toy.events == []


@pytest.mark.parametrize("code, kind", [(3, DataUnusable), (75, Preempted)])
def test_exit_with_an_own_code(tmp_path: Path, code: int, kind: type[SondeError]) -> None:
    def trouble(toy: Toy, world: World, step: int) -> None:
        if step == 1 and world.rank == 1:
            sys.exit(code)

    with pytest.raises(kind, match="rank 1"):
        Toy(tmp_path, trouble).run()


def test_exit_with_a_foreign_code_is_a_loss(tmp_path: Path) -> None:
    def trouble(toy: Toy, world: World, step: int) -> None:
        if once(toy, world) and step == 1 and world.rank == 1:
            os._exit(42)

    toy = Toy(tmp_path, trouble)
    toy.run()
    assert [event["rank"] for event in toy.events] == [1] and "ended with code 42" in toy.events[0]["why"]


def test_the_cause_is_told_and_not_its_echo(tmp_path: Path) -> None:
    """Rank 1 fails; rank 0 then loses its peer.  The user must read about rank 1."""

    def trouble(toy: Toy, world: World, step: int) -> None:
        if step == 5 and world.rank == 1:
            raise NumericalStop("the loss is not finite", where="step 5, rank 1", last_good="checkpoint at step 5", fix="less")

    with pytest.raises(NumericalStop, match="not finite"):
        Toy(tmp_path, trouble).run()


def supervised(toy: Toy, **options: Any) -> int:
    """Run a toy under a supervisor in a process of its own; returns the pid.  Its exit code is that of the error."""
    pid = os.fork()
    if pid == 0:
        code = 0
        try:
            toy.run(**options)
        except SondeError as error:
            code = error.exit_code
        finally:
            os._exit(code)
    return pid


def wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.005)


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def endless(toy: Toy, world: World, step: int) -> None:
    """Twenty milliseconds a step, so that there is time to interfere."""
    time.sleep(0.02)


def exit_code(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize("number, code", [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_a_stop_is_passed_on_and_saved(tmp_path: Path, number: int, code: int) -> None:
    toy = Toy(tmp_path, endless)
    pid = supervised(toy)
    wait_until(lambda: toy.progress() is not None)
    os.kill(pid, number)
    assert exit_code(pid) == code
    stopped = toy.load()[0]
    assert 5 <= stopped < STEPS
    toy.run()
    assert toy.load() == uninterrupted(tmp_path)


def test_a_stop_before_the_first_step_ends_at_once(tmp_path: Path) -> None:
    ready = torch.zeros(1).share_memory_()

    def worker(world: World) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # deaf, as while it reads a large file
        ready[0] = 1
        while True:
            time.sleep(1)

    toy = Toy(tmp_path)
    pid = os.fork()
    if pid == 0:
        try:
            launch(worker, 2, progress=toy.progress)
        except SondeError as error:
            os._exit(error.exit_code)
        os._exit(0)
    wait_until(lambda: bool(ready[0]))
    os.kill(pid, signal.SIGTERM)
    try:
        wait_until(lambda: not running(pid))
    finally:
        os.kill(pid, signal.SIGKILL)
        code = exit_code(pid)
    assert code == 75


def test_second_interrupt_ends_at_once(tmp_path: Path) -> None:
    """A worker that does not listen (it sleeps in one step) is ended by the second Ctrl-C."""
    deaf = torch.zeros(1).share_memory_()

    def trouble(toy: Toy, world: World, step: int) -> None:
        if step == 6 and world.rank == 0:
            deaf[0] = 1
            while True:
                time.sleep(1)

    toy = Toy(tmp_path, trouble)
    pid = supervised(toy)
    wait_until(lambda: bool(deaf[0]))
    os.kill(pid, signal.SIGINT)
    time.sleep(0.2)  # two signals at the same instant would count as one
    workers = [int(p) for p in toy.pids[:2]]
    assert all(map(running, workers))
    os.kill(pid, signal.SIGINT)
    assert exit_code(pid) == 130 and toy.load()[0] == 5
    assert not any(map(running, workers))


def test_no_worker_outlives_its_supervisor(tmp_path: Path) -> None:
    """Also one that is stopped, and one that is busy."""
    toy = Toy(tmp_path, endless)
    pid = supervised(toy, processes=3)
    wait_until(lambda: toy.progress() is not None)
    workers = [int(p) for p in toy.pids[:3]]
    assert all(map(running, workers))
    os.kill(workers[1], signal.SIGSTOP)
    os.kill(pid, signal.SIGKILL)
    assert exit_code(pid) == -signal.SIGKILL
    try:
        wait_until(lambda: not any(map(running, workers)), 5.0)
    finally:
        for worker in filter(running, workers):
            os.kill(worker, signal.SIGKILL)
    for folder in (tmp_path / "temporary").iterdir():
        shutil.rmtree(folder)  # only a supervisor that lives can tidy up


def test_what_a_worker_started_ends_with_it(tmp_path: Path) -> None:
    helper = torch.zeros(1, dtype=torch.int64).share_memory_()

    def trouble(toy: Toy, world: World, step: int) -> None:
        if once(toy, world) and step == 2 and world.rank == 1:
            pid = os.fork()
            if pid == 0:
                time.sleep(100)
            helper[0] = pid
            os.kill(os.getpid(), signal.SIGKILL)

    Toy(tmp_path, trouble).run()
    wait_until(lambda: not running(int(helper[0])), 5.0)


def test_a_suspended_job_is_not_taken_for_hung(tmp_path: Path) -> None:
    """Ctrl-Z for longer than the hang timeout, then fg: the job goes on as if nothing had been."""
    deep = torch.zeros(1).share_memory_()

    def trouble(toy: Toy, world: World, step: int) -> None:
        if step == 6 and world.rank == 1:  # a step with work left when it wakes: no new sign of life at once
            deep[0] = 1
            end = time.process_time() + 0.2
            while time.process_time() < end:
                pass

    toy = Toy(tmp_path, trouble)
    pid = supervised(toy, hang_timeout=2.5, restarts=0)  # ten times the work that is left: a busy machine is slow
    wait_until(lambda: bool(deep[0]))
    os.kill(pid, signal.SIGTSTP)
    os.waitpid(pid, os.WUNTRACED)
    workers = [int(p) for p in toy.pids[:2]]
    wait_until(lambda: all(Path(f"/proc/{p}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T" for p in workers))
    time.sleep(3.0)
    assert toy.load()[0] == 5
    os.kill(pid, signal.SIGCONT)
    assert exit_code(pid) == 0 and toy.attempts[:2].tolist() == [1, 1]


def listening(pids: list[int]) -> list[str]:
    """Addresses on which the processes accept connections, from the kernel's tables."""
    sockets = set()
    for pid in pids:
        for fd in os.listdir(f"/proc/{pid}/fd"):
            try:
                sockets.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
            except OSError:
                continue
    addresses = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in sockets:
                addresses.append(words[1].split(":")[0])
    return addresses


def test_only_loopback_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where the user's environment points gloo at the network, as it does for a job on several machines."""
    outward = [name for _, name in socket.if_nameindex() if name != "lo"]
    if outward:
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", outward[0])
    toy = Toy(tmp_path, endless)
    pid = supervised(toy)
    wait_until(lambda: toy.progress() is not None)
    addresses = listening([int(p) for p in toy.pids[:2]])
    assert exit_code(pid) == 0
    loopback = {"0100007F", "00000000000000000000000001000000"}
    assert addresses and set(addresses) <= loopback, addresses


def test_a_worker_has_its_threads_and_no_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_module, "_check_fork", lambda threads: None)  # an earlier test may have used OpenMP here
    results = torch.zeros(2, 2).share_memory_()

    def worker(world: World) -> None:
        results[world.rank, 0] = torch.get_num_threads()
        results[world.rank, 1] = len(os.read(0, 1))

    launch(worker, 2, threads=2)
    assert results.tolist() == [[2, 0], [2, 0]]


REFUSED = """
import sys
import torch
from sonde.core.errors import BadInput
from sonde.engine import launch as module

module.FORK_SECONDS = 0.5
torch.set_num_threads(2)
torch.zeros(1 << 20).add_(1)
try:
    module.launch(lambda world: None, 2, threads=2)
except BadInput as error:
    sys.exit(error.exit_code)
"""


def test_a_fork_that_would_stand_still_is_refused() -> None:
    """A process whose OpenMP threads have been used cannot start multi-threaded workers: say so, do not hang.

    In a process of its own: a fork of this one, which may have used OpenMP, could not even compute.
    """
    assert subprocess.run([sys.executable, "-c", REFUSED], timeout=120).returncode == 2


def test_no_process_is_no_job() -> None:
    with pytest.raises(BadInput):
        launch(lambda world: None, 0)
