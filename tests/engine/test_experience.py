"""Runs whose batches depend on the model and on a state: the same bits however often they are killed, on however many processes."""

from __future__ import annotations

import os
import random
import shutil
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from sonde import train
from sonde.core.batch import Batch
from sonde.core.errors import BadInput
from sonde.core.recipe import Follower
from sonde.core.segments import Segments
from sonde.core.terms import Terms
from sonde.engine import average, job, observed, parts, record, saver, weights
from sonde.engine.world import World
from sonde.runs import checkpoints, segments
from tests.engine import harness
from tests.engine.experience import Fit, Mining, Pair, experience
from tests.engine.harness import EVERY, attempt, differences, digest, finished, kill_in_save, leftovers, mutant, same
from tests.engine.test_kill import gone, reaches, workers_of

LONG = 120
KIND: dict[str, Any] = {"recipe": experience, "shards": 4}


@pytest.fixture(scope="module")
def whole() -> dict[str, str]:
    """The run without an interruption, on one process."""
    return harness.reference(**KIND)


@pytest.fixture(scope="module")
def long() -> dict[str, str]:
    """A run that is long enough to be stopped on the way."""
    return harness.reference(**KIND, steps=LONG)


def unlike(path: Path, expected: dict[str, str]) -> list[str]:
    """What differs but the random states of the ranks, of which there may be another number."""
    return [name for name in differences(digest(path), expected) if name != "random states"]


def test_everything_is_compared(whole):
    assert {"average", "callback-0"} <= whole.keys() and "shard-3" in whole["state"]
    other = harness.reference(**KIND, seed=1)
    assert differences(whole, other) == [name for name in whole if name != "kept checkpoints"]


@pytest.mark.parametrize("processes, background", [(2, False), (2, True), (4, False), (1, True)])
def test_any_number_of_processes_gives_the_same_bits(processes, background, memory, whole):
    path = finished(memory / "run", **KIND, processes=processes, async_save=background)
    assert unlike(path, whole) == [] and leftovers(path) == []


def stop_at(path: Path, step: int, **how: Any) -> None:
    """Start or resume the run, and kill all of it once the checkpoint of a step is there."""
    running = attempt(path, **KIND, **how)
    workers = workers_of(running) if how["processes"] > 1 else []
    reaches(path, step, running)
    for pid in (running.pid, *workers):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    running.wait()
    gone(workers)


@pytest.mark.parametrize("numbers", [(1, 4, 2), (4, 1, 1), (2, 1, 4)])
def test_the_number_of_processes_may_change_at_a_resume(numbers, memory, long):
    """What belongs to a shard goes to whichever process owns it then."""
    path, last = memory / "run", KIND | {"steps": LONG}
    for processes, step in zip(numbers[:2], (EVERY, 3 * EVERY), strict=True):
        stop_at(path, step, processes=processes, steps=LONG)
    assert unlike(finished(path, **last, processes=numbers[2]), long) == []


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("number", range(4))
def test_killed_at_random_calls_of_the_disk(number, background, memory, whole):
    rng, path = random.Random(number), memory / "run"
    kills = 0
    for _ in range(5):
        at = rng.randint(5, 150)

        def rule(index: int, name: str, arguments: tuple, go: Callable[[], Any], at: int = at) -> Any:
            if index == at:
                os.kill(os.getpid(), signal.SIGKILL)
            return go()

        outcome = attempt(path, rule, **KIND, async_save=background).wait()
        kills += outcome.killed
        if not outcome.killed:
            outcome.done()
            break
    assert kills
    same(finished(path, **KIND, async_save=background), whole)


# What a resume must not forget

FORGOTTEN = {
    "a part's state": lambda: (record, "load", mutant(parts, "load", "part.load_state_dict(", "str(")),
    "the stream": lambda: (Mining, "load_state_dict", lambda self, state: None),
    "the average": lambda: (weights.Weights, "load", mutant(weights.Weights, "load", "self.average.restart()")),
    "a shard of another process": lambda: (parts, "_without_others", lambda json, own: {n: v for n, v in json.items() if n == "shard-0"}),
    "observing after a resume": lambda: (job.Job, "observe", observe_before(12)),
    "a state that advances twice": lambda: (job.Job, "_batch_of_model", twice),
    "the key of a batch": lambda: (job, "own_randomness", no_key),
}


def observe_before(step_limit: int) -> Callable[..., None]:
    real = job.Job.observe

    def observe(self: job.Job, step: int, loss: float) -> None:
        if step < step_limit:
            real(self, step, loss)

    return observe


def twice(self: job.Job, step: int, shard: int) -> Any:
    """What asking for an example by `batch(0)` would do at every resume."""
    if not getattr(self, "began", False):
        self.began = True  # type: ignore[attr-defined]
        self.stream.batch(step, shard, self.shards, self.model)
    return ORDINARY(self, step, shard)


ORDINARY = job.Job._batch_of_model


class no_key:
    def __init__(self, *key: Any) -> None: ...

    def __enter__(self) -> None: ...

    def __exit__(self, *of: Any) -> None: ...


@pytest.mark.parametrize("what", FORGOTTEN)
def test_a_resume_that_forgets(what, memory, whole):
    owner, name, instead = FORGOTTEN[what]()
    path = memory / "run"
    for rule in (kill_in_save(2, 3), kill_in_save(1, 3), None):
        outcome = attempt(path, rule, lambda: setattr(owner, name, instead), **KIND).wait()
    assert outcome.code or differences(digest(path), whole) != []


# Damage


def stopped(path: Path, saves: int = 2) -> Path:
    """A run that was killed in a save after `saves` checkpoints; the folder of the newest."""
    assert attempt(path, kill_in_save(saves, 3), **KIND).wait().killed
    return checkpoints.path_of(path / "checkpoints", max(checkpoints.steps(path / "checkpoints")))


def own_segments(newest: Path) -> list[Path]:
    """Those that only the newest checkpoint lists."""
    lists = [harness.files.read_json(path / "manifest.json")["segments"] for path in newest.parent.glob("step-*")]
    before = {name for path, names in zip(newest.parent.glob("step-*"), lists, strict=True) if path != newest for name in names}
    listed = harness.files.read_json(newest / "manifest.json")["segments"]
    return [segments.path_of(newest.parent, name) for name in listed if name not in before]


@pytest.mark.parametrize("damage", ["lost", "of another run", "cut off", "one bit"])
def test_a_damaged_segment_costs_one_checkpoint_and_no_bit(damage, memory, whole):
    newest = stopped(memory / "run")
    victim = own_segments(newest)[0]
    data = victim.read_bytes()
    if damage == "lost":
        victim.unlink()
    elif damage == "of another run":
        other = finished(memory / "other", **KIND, seed=5)
        strange = next(path for path in (other / "checkpoints" / "segments").glob("*/*") if path.stat().st_size == len(data))
        shutil.copy(strange, victim)
    else:
        victim.write_bytes(data[:-1] if damage == "cut off" else data[:-1] + bytes([data[-1] ^ 1]))
    path = finished(memory / "run", **KIND)
    assert differences(digest(path), whole) == []
    assert any("damaged" in event.get("text", "") for event in harness.run.Run(path).events)
    assert [entry.name for entry in path.joinpath("checkpoints").glob("bad-*")] == [f"bad-{newest.name}"]


def test_only_listed_segments_stay(memory, whole):
    folder = finished(memory / "run", **KIND) / "checkpoints"
    listed = {name for path in folder.glob("step-*") for name in harness.files.read_json(path / "manifest.json")["segments"]}
    assert {path.name for path in folder.glob("segments/*/*")} == listed and listed


def test_a_checkpoint_of_a_large_buffer_writes_what_changed(memory):
    """Blocks of 40 rows; 15 new examples between two checkpoints change one block of 250 of the examples and of their errors, or two."""
    run = harness.train(memory / "run", experience, capacity=10_000)
    sizes = [event["segment_bytes"] for event in run.events if event["event"] == "checkpoint"]
    block = 40 * 6 * 4 + len(b"F32 (40, 5) F32 (40,) ")
    assert sizes[0] <= 2 * block and all(0 < size <= 2 * block for size in sizes[1:])
    assert sum(path.stat().st_size for path in run.path.glob("checkpoints/segments/*/*")) < 6 * block


# Processes that share no disk


def test_blocks_go_to_rank_0_where_no_shares_disk(memory, long, monkeypatch):
    monkeypatch.setattr(record.Record, "_shares_disk", lambda self: False)
    path = memory / "run"
    stop_at(path, EVERY, processes=2, steps=LONG)
    assert unlike(finished(path, **KIND, steps=LONG, processes=2), long) == []


def test_a_shares_disk_where_a_file_is_seen(memory):
    shared = []
    real = record.Record._shares_disk

    def look(self):
        shared.append(real(self))
        (memory / f"rank-{self.world.rank}").write_text(str(shared[-1]))
        return shared[-1]

    outcome = attempt(memory / "run", before=lambda: setattr(record.Record, "_shares_disk", look), **KIND, processes=2).wait()
    outcome.done()
    assert [(memory / f"rank-{rank}").read_text() for rank in (0, 1)] == ["True", "True"]
    assert not list((memory / "run").glob(".shared-*"))


# Updates in turn, copies and averages, against sums by hand


def test_an_average_is_the_sum_written_out():
    live = [torch.tensor([1.0, 2.0]), torch.tensor([[3.0]])]
    average_of = average.Average(live, 0.5)
    expected = [one.clone() for one in live]
    for step in range(4):
        for one in live:
            one += step + 1
        average_of.update(step)
        d = min(0.5, (1 + step) / (10 + step))
        expected = [d * old + (1 - d) * new for old, new in zip(expected, live, strict=True)]
    assert all(torch.allclose(mine, theirs, rtol=1e-6) for mine, theirs in zip(average_of.values, expected, strict=True))
    with average_of.swap():
        assert torch.allclose(live[0], expected[0], rtol=1e-6)
    assert live[0].tolist() == [11.0, 12.0]


def test_weights_are_averaged_and_the_average_is_what_a_run_gives(tmp_path):
    from tests.engine.small import line

    weights_of: list[torch.Tensor] = []

    class Spy(harness.Diary):
        def step(self, run, step, row):
            weights_of.append(next(self.model.parameters()).detach().clone())

    spy, recipe = Spy(), line(steps=9)
    net = recipe.build_model()
    spy.model = net
    start = next(net.parameters()).detach().clone()
    run = train(recipe.replace(model=net, callbacks=(spy,), patience=0, restore_best=False), run=tmp_path / "run", quiet=True, ema=0.6)
    expected = start
    for step, value in enumerate(weights_of):
        d = min(0.6, (1 + step) / (10 + step))
        expected = d * expected + (1 - d) * value
    final = next(net.parameters())
    assert torch.allclose(final, expected, atol=1e-6) and not torch.allclose(final, weights_of[-1], atol=1e-4)
    assert run.info["run_options"]["ema"] == 0.6
    saved = harness.checkpoint.read(checkpoints.path_of(run.path / "checkpoints", 9))
    assert torch.equal(saved.parts["average"]["0.weight"], final) and torch.equal(saved.parts["model"]["0.weight"], weights_of[-1])


def test_a_copy_follows_by_hand():
    model = Pair()
    with torch.no_grad():
        for parameter in model.net.parameters():
            parameter += 1
    before = model.target[0].weight.clone()
    followers = average.followers_of(Fit(), model)
    followers.update(0)
    assert torch.equal(model.target[0].weight, before), "every second step"
    followers.update(1)
    assert torch.allclose(model.target[0].weight, 0.8 * before + 0.2 * model.net[0].weight, rtol=1e-6)


@pytest.mark.parametrize(
    "follower, message",
    [
        (Follower("goal", "net"), "has no such part"),
        (Follower("net", "target"), "its weight '0.weight' trains by itself"),
        (Follower("target", "net", decay=1.0), "it has decay 1.0"),
        (Follower("target", "net.0"), "it is not built like 'net.0'"),
    ],
)
def test_a_follower_that_cannot_be_is_refused(follower, message):
    with pytest.raises(BadInput, match=message):
        average.Followers(Pair(), [follower])


@pytest.mark.parametrize(
    "optimizer, message",
    [({"net": None}, "phase 'scale' has no optimizer"), ({"net": 1, "scale": 2, "head": 3}, "an optimizer for 'head', which is no phase")],
)
def test_optimizers_that_fit_no_phase_are_refused(optimizer, message, tmp_path):
    with pytest.raises(BadInput, match=message):
        train(experience().replace(optimizer=optimizer), run=tmp_path / "run", quiet=True)


def test_a_stream_without_epochs_needs_steps(tmp_path):
    with pytest.raises(BadInput, match="a stream without epochs needs a number of steps"):
        train(experience().replace(steps=None, epochs=2), run=tmp_path / "run", quiet=True)


def test_asking_for_an_example_changes_no_state(tmp_path, monkeypatch):
    steps = []
    real = Mining.batch
    monkeypatch.setattr(Mining, "batch", lambda self, step, *more: steps.append(step) or real(self, step, *more))
    train(experience(steps=3), run=tmp_path / "run", quiet=True, threads=1)
    assert steps == [0, 1, 2]


def test_what_a_step_measures_is_that_of_all_shards(memory):
    """Means over shards of unequal size, in the order of the shards."""

    def objective(model: Any, batch: Batch) -> Terms:
        return Terms(nll=(batch.x.sum(), len(batch)), extra=(batch.x.square().sum(), 2.0)).note(x=batch.x * 2)

    watched = observed.Observed(objective)
    for shard, size in enumerate((3, 1, 2)):
        watched.shard = shard
        watched(torch.nn.Identity(), Batch(x=torch.arange(size) + shard * 10.0))
    measured = watched.take(1.5, range(3), 3, World.single())
    assert measured.loss == 1.5 and measured.means == {"extra": (5 + 100 + 841) / 6, "nll": (3 + 10 + 41) / 6}
    assert measured.notes[2]["x"].tolist() == [40.0, 42.0]
    assert watched.take(0.0, range(3), 3, World.single()).notes == {}


# Saving in the background


def test_a_disk_that_refuses_in_the_background_is_a_warning(memory, whole):
    def rule(index: int, name: str, arguments: tuple, go: Callable[[], Any]) -> Any:
        if name == "create" and "/.tmp-10-" in str(arguments[0]):
            raise OSError(28, "No space left on device")
        return go()

    outcome = attempt(memory / "run", rule, **KIND, async_save=True).wait()
    outcome.done()
    events = harness.run.Run(memory / "run").events
    assert [event["step"] for event in events if event["event"] == "checkpoint"] == [5, 15, 20, 23]
    assert any("could not be written: No space left" in event.get("text", "") for event in events)
    assert differences(digest(memory / "run"), whole) == []


def test_a_copy_is_not_touched_by_later_steps():
    tied = torch.ones(3)
    copied = record.copy({"model": {"a": tied, "b": tied, "c": tied[1:]}, "best": {"d": tied}}, but=("best",))
    tied += 1
    assert copied["model"]["a"].tolist() == [1, 1, 1] and copied["model"]["a"] is copied["model"]["b"]
    assert copied["model"]["c"].tolist() == [1, 1] and copied["best"]["d"] is tied


def test_blocks_that_are_written_in_the_background_are_copies(memory):
    buffer = Segments((4, 2), rows=2)
    one = saver.Saver(memory, World.single())
    blocks = one.blocks_to_write(parts.gather({"stream": {"buffer": buffer}}, one.world), copy=True)
    buffer.write(0, 7.0)
    assert all(not bool(block.any()) for block in blocks.values())
