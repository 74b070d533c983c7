"""What a run survives, in figures: killed, without power, damaged, stopped, poisoned.

    python benchmarks/kill.py kills          200 random SIGKILLs, up to 6 in a run (--processes 2: supervisor, one worker or all)
    python benchmarks/kill.py experience     the same for a stream with a state, networks in turn, followers, EMA; 1, 2, 4 processes
    python benchmarks/kill.py background     the same with checkpoints written in the background
    python benchmarks/kill.py carry          the same for a state carried over text
    python benchmarks/kill.py loader         the same for a DataLoader with two workers
    python benchmarks/kill.py buffer         the same with a buffer of 200 MB, and the bytes that a checkpoint of it writes
    python benchmarks/kill.py workers        20 runs of two workers, one of which is killed at a random instant; masked objective
    python benchmarks/kill.py saves          a SIGKILL at every call of a save, three times each
    python benchmarks/kill.py power          20,000 states that a power loss may leave
    python benchmarks/kill.py damage         10,000 damaged checkpoints
    python benchmarks/kill.py signals        200 SIGTERM, SIGHUP and SIGINT at random times
    python benchmarks/kill.py numbers        100 NaNs and infinities, 50 explosions, 50 healthy runs
    python benchmarks/kill.py all

Every run is compared bit for bit with an undisturbed one: parameters, optimizer state, random states, best weights,
metric rows.  --times N changes how often.  The machinery is that of tests/engine; this only does more of it.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import mmap
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

torch.set_num_threads(1)

from sonde import open_run  # noqa: E402
from sonde.core.errors import NumericalStop  # noqa: E402
from sonde.engine import checkpoint  # noqa: E402
from sonde.runs import checkpoints  # noqa: E402
from tests.engine import harness, test_checkpoint, test_faults, test_numerics  # noqa: E402
from tests.engine.harness import Attempt, Calls, InSave, Story, attempt, differences, digest, disk, finished, kill_in_save, leftovers  # noqa: E402

MIXED = ("experience", "background", "carry", "loader", "buffer")


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """In memory where there is such a place, so that a slow disk does not set the pace."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None, prefix="sonde-kill-") as path:
        yield Path(path)


def verdict(what: str, good: int, all_: int, more: str = "") -> bool:
    print(f"{what:54} {good:,} of {all_:,}{'   ' + more if more else ''}{'' if good == all_ else '   FAILED'}", flush=True)
    return good == all_


def equal(path: Path, reference: dict[str, str], but: set[str] = frozenset()) -> bool:  # type: ignore[assignment]
    """Bit for bit the same, nothing left behind."""
    wrong = set(differences(digest(path), reference)) - but
    if wrong or leftovers(path):
        print(f"  {path.name}: {sorted(wrong)} differ, left behind: {leftovers(path)}")
    return not wrong and not leftovers(path)


def silence() -> None:
    """What a killed or stopped process has to say is not of interest here."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


class InsideSave:
    """Detects from outside whether a process is in the middle of a save."""

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, 1)

    def change(self) -> None:
        silence()
        real = checkpoint.save

        def save(*arguments: object) -> Path:
            self.memory[0] = 1
            try:
                return real(*arguments)  # type: ignore[arg-type]
            finally:
                self.memory[0] = 0

        checkpoint.save = save  # type: ignore[assignment]


def kills(times: int, processes: int, steps: int = 60) -> bool:
    """Random kills, up to six in a run, until there were enough of them; runs that ended before the first do not count."""
    rng, done, inside, runs, good = random.Random(0), 0, 0, 0, 0
    start = time.perf_counter()
    with folder() as home:
        expected = harness.reference(steps=steps)  # also where it is not needed: it warms this process for its forks
        if processes > 1:
            expected = digest(finished(home / "whole", processes=processes, steps=steps))
        began = time.perf_counter()
        finished(home / "timed", processes=processes, steps=steps)
        length = time.perf_counter() - began
        while done < times:
            path, left, survived = home / "run", rng.randint(1, 6), 0
            while True:
                saving = InsideSave()
                running = attempt(path, before=saving.change, processes=processes, steps=steps)
                late = left and not running.ends_within(rng.uniform(0.01, 0.7 * length))
                workers = running.workers() if late and processes > 1 else []
                targets = rng.choice([[running.pid], *([worker] for worker in workers), [running.pid, *workers]])
                for pid in targets if late else ():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                outcome = running.wait()
                for pid in workers:
                    while running.pid in targets and Path(f"/proc/{pid}").exists():
                        time.sleep(0.001)
                if late and (outcome.killed or running.pid not in targets):
                    done, left, survived, inside = done + 1, left - 1, survived + 1, inside + saving.memory[0]
                if not outcome.killed:
                    outcome.done()
                    break
            if survived:
                good, runs = good + equal(path, expected), runs + 1
            shutil.rmtree(path)
    details = f"{inside} kills inside a save, {(time.perf_counter() - start) / done:.2f} s a kill"
    return verdict(f"runs equal after {done} kills, {processes} process{'es' * (processes > 1)}", good, runs, details)


def kinds(text: Path) -> dict[str, tuple[dict[str, Any], tuple[int, ...]]]:
    """Kind of run -> how it is trained, and the numbers of processes that it may have, drawn anew at every resume."""
    from sonde.recipes.char_lm import recipe as char_lm
    from tests.engine.experience import experience
    from tests.engine.test_carry import SMALL, TEXT
    from tests.engine.test_loaders import loader_recipe

    text.write_text(TEXT)
    mined: dict[str, Any] = {"recipe": experience, "shards": 4, "steps": 60}
    carried: dict[str, Any] = {"recipe": char_lm, **SMALL, "data": text, "document_end": "7.\n", "shards": 4}
    return {
        "experience": (mined, (1, 2, 4)),
        "background": ({**mined, "async_save": True}, (1, 2, 4)),
        "carry": ({**carried, "steps": 60}, (1, 2, 4)),
        "loader": ({"recipe": loader_recipe, "shards": 4, "steps": 60}, (1, 2)),
        "buffer": ({**mined, "capacity": 2_200_000, "async_save": True}, (1, 2)),
    }


def mixed(kind: str, times: int) -> bool:
    """Random kills of runs with a state of their own; every attempt may have another number of processes."""
    rng, done, runs, good = random.Random(1), 0, 0, 0
    with folder() as home:
        how, numbers = kinds(home / "text.txt")[kind]
        began = time.perf_counter()
        whole = finished(home / "whole", **how)
        length, expected = time.perf_counter() - began, digest(whole)
        while done < times:
            path, left, survived = home / "run", rng.randint(1, 6), 0
            while True:
                processes = rng.choice(numbers)
                running = attempt(path, before=silence, **how, processes=processes)
                late = left and not running.ends_within(rng.uniform(0.05, (1.0 if processes == 1 else 2.0) * length))
                workers = running.workers() if late and processes > 1 else []
                targets = rng.choice([[running.pid], *([worker] for worker in workers), [running.pid, *workers]])
                for pid in targets if late else ():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                outcome = running.wait()
                for pid in workers:
                    while running.pid in targets and Path(f"/proc/{pid}").exists():
                        time.sleep(0.001)
                if late and (outcome.killed or running.pid not in targets):
                    done, left, survived = done + 1, left - 1, survived + 1
                if not outcome.killed:
                    outcome.done()
                    break
            if survived:  # ranks have random states of their own, which a run on another number of processes does not have
                good, runs = good + equal(path, expected, {"random states"}), runs + 1
            shutil.rmtree(path)
        events = open_run(whole, recipe=how["recipe"]).events
    written = [event.get("segment_bytes", 0) for event in events if event["event"] == "checkpoint"]
    more = f"segments in a checkpoint: at most {max(written):,} bytes, on average {sum(written) // len(written):,}" if any(written) else ""
    return verdict(f"{kind}: runs equal after {done} kills, {' or '.join(map(str, numbers))} processes", good, runs, more)


def workers(times: int) -> bool:
    """One of two workers dies at a random instant; the run ends by itself with the bits of an undisturbed process."""
    from sonde import train
    from tests.engine.small import tagger
    from tests.engine.test_processes import assert_same_bits

    rng, killed, good, steps = random.Random(0), 0, 0, 400
    quiet = {"shards": 4, "threads": 1, "quiet": True}
    with folder() as home:
        whole = train(tagger, run=home / "whole", steps=steps, **quiet)

        def act(path: Path) -> harness.Attempt:
            return harness.Attempt(lambda: (silence(), train(tagger, run=path, steps=steps, processes=2, checkpoint_every=40, **quiet)))

        began = time.perf_counter()
        act(home / "timed").wait().done()
        length = time.perf_counter() - began
        while killed < times:
            path = home / f"run-{killed}"
            running = act(path)
            while not (path / "events.jsonl").exists() and not running.ends_within(0.01):
                continue  # the workers are up once the run has begun
            late = not running.ends_within(rng.uniform(0.0, 0.6 * length))
            if late:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(rng.choice(running.workers()), signal.SIGKILL)
            running.wait().done()
            restarts = (path / "events.jsonl").read_text().count('"resume"')
            if late and restarts:  # else the worker had done its work already
                killed += 1
                try:
                    assert_same_bits(open_run(path, recipe=tagger), whole)
                    good += 1
                except AssertionError as error:
                    print(f"  {path.name}: {error}")
            shutil.rmtree(path)
    return verdict("runs equal after one of two workers was killed, 4 shards, masked objective", good, killed)


def saves(times: int) -> bool:
    """A kill at every call of a save, a torn write at every write."""
    calls, place, expected, good, runs = Calls(), InSave(), harness.reference(), 0, 0
    with folder() as home:
        with disk(calls):
            harness.train(home / "calls")
        many = sum(place.note(name)[0] == 2 for name, _ in calls.seen)
        left = [offset for offset in range(many) for _ in range(times)]
        while left:
            path, runs = home / f"run-{runs}", runs + 1
            for save in itertools.cycle((2, 0, 1)):
                if not left or not attempt(path, kill_in_save(2 if not path.exists() else save, left[-1])).wait().killed:
                    break
                left.pop()
            finished(path)
            good += equal(path, expected)
            shutil.rmtree(path)
    return verdict(f"runs equal after {times} kills at each of {many} calls", good, runs)


def power(times: int) -> bool:
    """States that a power loss may leave, each read by the loader."""
    harness.reference()
    with folder() as home:
        start = time.perf_counter()
        problems = Story.of(home / "story").crashes(times, home / "crashed", seed=9)
        spent = time.perf_counter() - start
    for problem, count in problems.items():
        print(f"  {count} x {problem}")
    return verdict("power losses with the acknowledged checkpoint loaded", times - problems.total(), times, f"{spent:.0f} s")


def damage(times: int) -> bool:
    """Damaged checkpoints: seen before use, the one before loaded."""
    harness.reference()
    rng, seen = random.Random(4), 0
    with folder() as home:
        assert attempt(home / "run", kill_in_save(3, 0)).wait().killed
        place = home / "run" / "checkpoints"
        sound = checkpoints.path_of(place, test_checkpoint.NEWEST)
        whole = {path.name: path.read_bytes() for path in sound.iterdir()}
        for _ in range(times):
            what = rng.choice(test_checkpoint.DAMAGES)(sound, rng)
            messages: list[str] = []
            snapshot = checkpoint.newest(place, lambda snapshot: None, messages.append)
            fine = snapshot is not None and snapshot.step == test_checkpoint.BEFORE and len(messages) == 1 and "is damaged" in messages[0]
            seen += fine
            if not fine:
                print(f"  not seen: {what}")
            shutil.rmtree(place / f"bad-{sound.name}", ignore_errors=True)
            shutil.rmtree(sound, ignore_errors=True)
            sound.mkdir()
            for name, data in whole.items():
                (sound / name).write_bytes(data)
    return verdict("damaged checkpoints seen, the one before loaded", seen, times)


def signals(times: int) -> bool:
    """Signals at random times: every finished step saved, the right code, the same end."""
    expected, rng, good, slowest = harness.reference(), random.Random(2), 0, 0.0
    with folder() as home:
        for number in range(times):
            path, steps, kind = home / f"run-{number}", test_faults.Steps(), rng.choice(list(test_faults.CODES))
            counting = steps.counting()
            running = attempt(path, before=lambda counting=counting: (silence(), counting()))  # type: ignore[misc]
            least = rng.randint(1, harness.STEPS - 4)
            while steps.done < least and not running.ends_within(0.0005):
                continue
            sent = time.perf_counter()
            running.send(kind)
            outcome = running.wait()
            slowest = max(slowest, time.perf_counter() - sent)
            saved = max(checkpoints.steps(path / "checkpoints"), default=0)
            fine = outcome.code == test_faults.CODES[kind] and saved == steps.done
            if not fine:
                print(f"  {signal.Signals(kind).name}: code {outcome.code}, {steps.done} steps done, {saved} saved")
            finished(path)
            good += fine and equal(path, expected, {"kept checkpoints"})
            shutil.rmtree(path)
    return verdict("signals with no step lost, ended the same", good, times, f"slowest stop {slowest:.2f} s")


def numbers(times: int) -> bool:
    """Bad numbers stopped before the update; explosions within ten steps; no alarm in healthy runs."""
    harness.reference()
    rng, stopped = random.Random(6), 0
    with folder() as home:
        for number in range(times):
            path, step = home / f"run-{number}", rng.randrange(harness.STEPS)
            options = {"place": rng.choice(test_numerics.PLACES), "value": rng.choice(("nan", "inf")), "row": rng.randrange(3)}
            steps = test_faults.Steps()

            def act(path: Path = path, step: int = step, options: dict = options, steps: test_faults.Steps = steps) -> None:
                steps.counting()()
                harness.train(path, test_numerics.spoiled_recipe, steps=str(step), **options)

            outcome = Attempt(act).wait()
            newest = test_numerics.newest(path)
            fine = outcome.code == 5 and steps.done == step and f"step {step}, " in outcome.parts["where"]
            stopped += fine and (newest is None or test_numerics.is_finite(newest))
            if not fine:
                print(f"  step {step}, {options}: code {outcome.code} after {steps.done} updates, {dict(outcome.parts)}")
        runs = max(1, times // 2)
        alarms = [_alarm(home / f"bad-{seed}", seed, 100.0) for seed in range(runs)]
        calm = [_alarm(home / f"good-{seed}", seed, 1.0) for seed in range(runs)]
    late = [alarm - 80 for alarm in alarms if alarm is not None]
    fine = verdict("bad numbers stopped before the update and named", stopped, times)
    seen = sum(delay <= 10 for delay in late)
    fine &= verdict("explosions seen within 10 steps", seen, runs, f"at the latest after {max(late, default=0)}")
    return verdict("healthy runs without an alarm", calm.count(None), runs) and fine


def _alarm(path: Path, seed: int, factor: float) -> int | None:
    """The step at which a run was stopped."""
    try:
        harness.train(path, test_numerics.shaken, seed=seed, factor=factor, rule=("sgd", "adamw")[seed % 2], checkpoint_every=1000)
    except NumericalStop as error:
        match = re.search(r"step (\d+)", error.where)
        return int(match.group(1)) if match else None
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ("kills", *MIXED, "workers", "saves", "power", "damage", "signals", "numbers", "all")
    parser.add_argument("what", nargs="?", default="all", choices=names)
    parser.add_argument("--times", type=int, help="how often; by default as often as written above")
    parser.add_argument("--processes", type=int, default=1, help="worker processes of the runs that are killed")
    args = parser.parse_args()
    usual: dict[str, tuple[int, Callable[[int], bool]]] = {
        "kills": (200, lambda times: kills(times, args.processes)),
        **{name: (100, partial(mixed, name)) for name in MIXED},
        "workers": (20, workers),
        "saves": (3, saves),
        "power": (20_000, power),
        "damage": (10_000, damage),
        "signals": (200, signals),
        "numbers": (100, numbers),
    }
    chosen = list(usual) if args.what == "all" else [args.what]
    results = [act(args.times or times) for name, (times, act) in usual.items() if name in chosen]
    if args.what == "all":
        results.append(kills(args.times or 40, 2))
    return 0 if all(results) else 1


if __name__ == "__main__":
    raise SystemExit(main())
