"""Checkpoints against power loss, damage, tampering and time: the last good one is loaded, or the run says why not."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from sonde.api.run import Run
from sonde.core import files, tensors
from sonde.core.batch import Data
from sonde.core.errors import BadInput, DataUnusable, NoCheckpoint
from sonde.core.recipe import Recipe
from sonde.data.tensors import TensorSource
from sonde.engine import checkpoint
from sonde.runs import checkpoints
from tests.engine.harness import (
    EVERY,
    Calls,
    Story,
    attempt,
    differences,
    digest,
    disk,
    kill_in_save,
    leftovers,
    pictures,
    train,
    trial,
)

NEWEST, BEFORE = 3 * EVERY, 2 * EVERY
"""steps of the two checkpoints that a run killed at its fourth save has"""


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory, reference: dict[str, str]) -> Path:
    """A run that was killed on the way; tests work on copies."""
    path = tmp_path_factory.mktemp("half") / "run"
    assert attempt(path, kill_in_save(3, 0)).wait().killed
    assert checkpoints.steps(path / "checkpoints") == [BEFORE, NEWEST]
    return path


@pytest.fixture
def run(half: Path, memory: Path) -> Path:
    return Path(shutil.copytree(half, memory / "run"))


# ---------------------------------------------------------------- order of writing, power loss


def test_a_save_syncs_in_the_order_that_makes_it_safe(memory: Path, reference: dict[str, str]) -> None:
    calls = Calls()
    with disk(calls):
        train(memory / "run")
    names = [name for name, _ in calls.seen]
    start = names.index("free_bytes")
    save = names[start : start + names[start:].index("fsync_directory", names[start:].index("rename")) + 1]
    merged = [name for index, name in enumerate(save) if name != "write" or save[index - 1] != "write"]
    assert merged == [
        "free_bytes",
        "mkdir",
        *["create", "write", "fsync", "close"] * 6,
        "fsync_directory",
        "rename",
        "fsync_directory",
    ]
    assert names[start - 1] == "fsync", "the rows a checkpoint speaks of are on the disk before it"
    folders = [path for name, path in calls.seen[start:] if name == "fsync_directory"][:2]
    assert folders[0].name.startswith(".tmp-5-") and folders[1].name == "checkpoints"


@pytest.mark.parametrize("part", range(2))
def test_power_loss_at_any_point(part: int, memory: Path, reference: dict[str, str]) -> None:
    """2,000 states: the last acknowledged checkpoint or a newer whole one is loaded, with all its rows."""
    assert Story.of(memory / "story").crashes(1000, memory / "crashed", seed=part) == {}


# ---------------------------------------------------------------- damage

Damage = Callable[[Path, random.Random], str]
"""changes something in the folder of a checkpoint; returns what"""


def flip(folder: Path, rng: random.Random) -> str:
    path = rng.choice(sorted(folder.iterdir()))
    data = bytearray(path.read_bytes())
    place = rng.randrange(len(data))
    data[place] ^= 1 << rng.randrange(8)
    path.write_bytes(data)
    return f"bit in {path.name} at {place}"


def truncate(folder: Path, rng: random.Random) -> str:
    path = rng.choice(sorted(folder.iterdir()))
    os.truncate(path, rng.randrange(path.stat().st_size))
    return f"{path.name} cut"


def lengthen(folder: Path, rng: random.Random) -> str:
    path = rng.choice(sorted(folder.iterdir()))
    path.write_bytes(path.read_bytes() + bytes(rng.randrange(1, 600)))
    return f"{path.name} lengthened"


def zero(folder: Path, rng: random.Random) -> str:
    """A block of zeros, where there is something else to lose."""
    path = rng.choice(sorted(folder.iterdir()))
    data = bytearray(path.read_bytes())
    while True:
        start = rng.randrange(len(data))
        length = len(data[start : start + 512])
        if any(data[start : start + 512]):
            data[start : start + 512] = bytes(length)
            path.write_bytes(data)
            return f"{path.name} zeroed"


def remove(folder: Path, rng: random.Random) -> str:
    path = rng.choice(sorted(folder.iterdir()))
    path.unlink()
    return f"{path.name} removed"


def add(folder: Path, rng: random.Random) -> str:
    name = rng.choice(("extra.safetensors", "model.safetensors.old", ".hidden", "model.pt"))
    shutil.copy(folder / "model.safetensors", folder / name)
    return f"{name} added"


def swap(folder: Path, rng: random.Random) -> str:
    """A file of another step."""
    name = rng.choice(["model.safetensors", "optim.safetensors", "rng.safetensors", "state.json", "manifest.json"])
    shutil.copy(checkpoints.path_of(folder.parent, BEFORE) / name, folder / name)
    return f"{name} of another step"


def mix(folder: Path, rng: random.Random) -> str:
    """Two files of the same checkpoint, each under the other's name."""
    one, other = rng.sample(["model.safetensors", "optim.safetensors", "rng.safetensors", "state.json"], 2)
    data = (folder / one).read_bytes()
    (folder / one).write_bytes((folder / other).read_bytes())
    (folder / other).write_bytes(data)
    return f"{one} and {other} swapped"


def edit(folder: Path, rng: random.Random) -> str:
    """A manifest that says something else."""
    manifest = json.loads((folder / "manifest.json").read_text())
    name = rng.choice(sorted(manifest["files"]))
    change = rng.randrange(8)
    if change == 0:
        manifest["step"] += rng.choice((-1, 1, 5))
    elif change == 1:
        manifest["files"][name][0] += rng.choice((-1, 1))
    elif change == 2:
        manifest["files"][name][1] = hashlib.sha256(b"").hexdigest()
    elif change == 3:
        del manifest["files"][name]
    elif change == 4:
        manifest["files"]["../../outside"] = [1, "0"]
    elif change == 5:
        manifest["files"] = rng.choice(([], None, 3, "x", [name]))
    elif change == 6:
        manifest["files"][name] = rng.choice((None, [], [1], "x", {}, [1, 2, 3], [None, None]))
    else:
        manifest["format"] = rng.choice((0, None, "1", -1, 1.5, [1]))
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return f"manifest edited ({change})"


DAMAGES: tuple[Damage, ...] = (flip, flip, flip, truncate, lengthen, zero, zero, remove, add, swap, mix, edit)


@pytest.mark.parametrize("part", range(4))
def test_damage_is_always_seen(part: int, run: Path) -> None:
    """1,000 damaged checkpoints in all: each is found out before use, told about and kept; the one before it is loaded."""
    folder, rng = run / "checkpoints", random.Random(part)
    sound = checkpoints.path_of(folder, NEWEST)
    whole = {path.name: path.read_bytes() for path in sound.iterdir()}
    for _ in range(250):
        what = rng.choice(DAMAGES)(sound, rng)
        damaged = {path.name: path.read_bytes() for path in sound.iterdir()}
        assert damaged != whole, what
        messages: list[str] = []
        snapshot = checkpoint.newest(folder, lambda snapshot: None, messages.append)
        assert snapshot is not None and snapshot.step == BEFORE, what
        assert len(messages) == 1 and f"step-{NEWEST:08d} is damaged" in messages[0], what
        aside = folder / f"bad-step-{NEWEST:08d}"
        assert {path.name: path.read_bytes() for path in aside.iterdir()} == damaged, what
        shutil.rmtree(aside)
        sound.mkdir()
        for name, data in whole.items():
            (sound / name).write_bytes(data)


def test_the_undamaged_checkpoint_is_not_called_damaged(run: Path) -> None:
    messages: list[str] = []
    snapshot = checkpoint.newest(run / "checkpoints", lambda snapshot: None, messages.append)
    assert snapshot is not None and snapshot.step == NEWEST and messages == []


def test_a_run_goes_on_from_the_one_before_and_ends_the_same(run: Path, reference: dict[str, str]) -> None:
    flip(checkpoints.path_of(run / "checkpoints", NEWEST), random.Random(0))
    train(run)
    assert differences(digest(run), reference) == []
    assert leftovers(run) == [f"checkpoints/bad-step-{NEWEST:08d}"]
    assert [event["text"] for event in Run(run).events if event["event"] == "warning" and "damaged" in event["text"]]


def test_no_good_checkpoint_at_all(run: Path) -> None:
    """Exit 4; nothing is deleted, and trying again says the same."""
    for step in (BEFORE, NEWEST):
        flip(checkpoints.path_of(run / "checkpoints", step), random.Random(step))
    rows = (run / "metrics.jsonl").read_bytes()
    for _ in range(2):
        with pytest.raises(NoCheckpoint) as caught:
            train(run)
        assert caught.value.exit_code == 4 and "no checkpoint of this run can be loaded" in caught.value.what
        assert leftovers(run) == [f"checkpoints/bad-step-{step:08d}" for step in (BEFORE, NEWEST)]
        assert all(len(list((run / entry).iterdir())) == 6 for entry in leftovers(run))
        assert (run / "metrics.jsonl").read_bytes() == rows


# ---------------------------------------------------------------- tampering: the checksums are right, the content is not


def forge_manifest(folder: Path, **changes: Any) -> None:
    """Change the manifest and the checksum it carries of itself."""
    manifest = {**json.loads((folder / "manifest.json").read_text()), **changes}
    del manifest["sha256"]
    manifest["sha256"] = hashlib.sha256(files.dump_json(manifest)).hexdigest()
    (folder / "manifest.json").write_bytes(files.dump_json(manifest))


def forge(folder: Path, name: str, data: bytes) -> None:
    """Change a file and the manifest with it."""
    (folder / name).write_bytes(data)
    listed = json.loads((folder / "manifest.json").read_text())["files"]
    forge_manifest(folder, files={**listed, name: [len(data), hashlib.sha256(data).hexdigest()]})


def forged_tensors(part: str, change: Callable[[dict[str, torch.Tensor]], Any]) -> Callable[[Path], None]:
    def act(folder: Path) -> None:
        path = folder / f"{part}.safetensors"
        contents = tensors.decode(path.read_bytes())
        change(contents)
        forge(folder, path.name, b"".join(tensors.encode(contents)))

    return act


def forged_state(**changes: Any) -> Callable[[Path], None]:
    def act(folder: Path) -> None:
        state = json.loads((folder / "state.json").read_text())
        state.update(changes)
        forge(folder, "state.json", json.dumps({name: value for name, value in state.items() if value != "gone"}).encode())

    return act


def put(name: str, value: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[dict[str, torch.Tensor]], None]:
    return lambda tensors: tensors.update({name: value(tensors[name])})


FORGED = {
    "a tensor of another shape": forged_tensors("model", put("6.weight", lambda t: t[:, :-1])),
    "a tensor of another dtype": forged_tensors("model", put("6.weight", lambda t: t.double())),
    "a tensor more": forged_tensors("model", lambda tensors: tensors.update(extra=torch.ones(3))),
    "a tensor less": forged_tensors("model", lambda tensors: tensors.pop("6.bias")),
    "a best tensor of another shape": forged_tensors("best", put("6.weight", lambda t: t[1:])),
    "a moment of another shape": forged_tensors("optim", put("6.weight.exp_avg", lambda t: t.T.contiguous())),
    "a moment of another dtype": forged_tensors("optim", put("6.weight.exp_avg", lambda t: t.half())),
    "a moment more": forged_tensors("optim", lambda tensors: tensors.update({"6.weight.max_exp_avg_sq": torch.ones(4, 108)})),
    "a moment less": forged_tensors("optim", lambda tensors: tensors.pop("6.bias.exp_avg_sq")),
    "a random state less": forged_tensors("rng", lambda tensors: tensors.pop("rank-0.numpy")),
    "a random state too short": forged_tensors("rng", put("rank-0.torch", lambda t: t[:100])),
    "a random state of another dtype": forged_tensors("rng", put("rank-0.python", lambda t: t.double())),
    "a position outside the state": forged_tensors("rng", put("rank-0.numpy", lambda t: t.index_fill(0, torch.tensor([624]), 10**6))),
    "a random word too large": forged_tensors("rng", put("rank-0.numpy", lambda t: t.index_fill(0, torch.tensor([3]), 2**40))),
    "a state without a guard": forged_state(guard="gone"),
    "a guard that is a list": forged_state(guard=[1, 2]),
    "a best figure that is no number": forged_state(best={"value": "many", "step": 1, "since": 0}),
    "rows that are no number": forged_state(metrics="all"),
    "rows below nothing": forged_state(metrics=-5),
    "the state of another step": forged_state(step=3),
    "a callback too many": forged_state(callbacks=[{}, {}]),
    "no tensors but a pickle": lambda folder: forge(folder, "model.safetensors", b"\x80\x04cos\nsystem\n."),
    "a manifest of another step": lambda folder: forge_manifest(folder, step=BEFORE),
    "a format of no meaning": lambda folder: forge_manifest(folder, format="1"),
    "a file list of another kind": lambda folder: forge_manifest(folder, files=[1, 2]),
    "a state that is no table": lambda folder: forge(folder, "state.json", b"[]"),
}


@pytest.mark.parametrize("what", FORGED)
def test_a_checkpoint_that_does_not_fit_is_seen_before_use(what: str, run: Path, reference: dict[str, str]) -> None:
    """The run goes on from the one before it, ends the same, and the forged one is set aside."""
    FORGED[what](checkpoints.path_of(run / "checkpoints", NEWEST))
    train(run)
    assert differences(digest(run), reference) == []
    assert leftovers(run) == [f"checkpoints/bad-step-{NEWEST:08d}"]


def test_a_model_that_fits_no_checkpoint_changes_nothing(run: Path) -> None:
    """Sound checkpoints of another model are not damaged: they stay where they are."""
    for step in (BEFORE, NEWEST):
        FORGED["a tensor more"](checkpoints.path_of(run / "checkpoints", step))
    with pytest.raises(NoCheckpoint, match="tensor 'extra' is not in the model, only in the checkpoint"):
        train(run)
    assert checkpoints.steps(run / "checkpoints") == [BEFORE, NEWEST] and leftovers(run) == []


# ---------------------------------------------------------------- other versions, other data, other recipes


def test_a_checkpoint_from_the_future_is_refused_and_left_alone(run: Path) -> None:
    forge_manifest(checkpoints.path_of(run / "checkpoints", NEWEST), format=3)
    with pytest.raises(BadInput, match="newer version"):
        train(run)
    assert checkpoints.steps(run / "checkpoints") == [BEFORE, NEWEST] and leftovers(run) == []


def test_a_run_from_the_future_is_refused(run: Path) -> None:
    (run / "run.json").write_text((run / "run.json").read_text().replace('"format": 2', '"format": 7'))
    with pytest.raises(BadInput, match="newer version"):
        train(run)


def changed_data(change: Callable[[TensorSource], TensorSource]) -> Callable[..., Recipe]:
    """The trial on data that are not quite the same."""

    def build() -> Data:
        data = pictures()
        return Data(change(data.train), data.valid, data.test, name=data.name, task=data.task)

    def other(**options: Any) -> Recipe:
        return trial(**options).replace(data=build)

    other.__module__, other.__qualname__, other.__name__ = trial.__module__, trial.__qualname__, trial.__name__
    other.__signature__ = __import__("inspect").signature(trial)  # type: ignore[attr-defined]
    return other


def nudged(source: TensorSource) -> TensorSource:
    x = source.fields["x"].clone()
    x[7, 0, 3, 3] += 1e-6
    return TensorSource(x, source.y)


CHANGES: dict[str, Callable[[TensorSource], TensorSource]] = {
    "one pixel": nudged,
    "one label": lambda s: TensorSource(s.fields["x"], s.y.index_fill(0, torch.tensor([3]), (int(s.y[3]) + 1) % 4)),
    "one example less": lambda s: s.subset(torch.arange(len(s) - 1)),
    "one example more": lambda s: s.subset(torch.cat([torch.arange(len(s)), torch.tensor([0])])),
    "another order": lambda s: s.subset(torch.arange(len(s)).flip(0)),
    "another dtype": lambda s: TensorSource(s.fields["x"].double().float().half().float(), s.y),
}


@pytest.mark.parametrize("what", CHANGES)
def test_data_that_changed_since_the_start(what: str, run: Path) -> None:
    other = changed_data(CHANGES[what])
    before = (run / "metrics.jsonl").read_bytes()
    with pytest.raises(DataUnusable, match="the train data changed since the run began") as caught:
        train(run, other)
    record = json.loads((run / "run.json").read_text())["data"]["train"]
    assert caught.value.exit_code == 3 and record["sha256"][:12] in caught.value.where and "--accept-data-change" in caught.value.fix
    assert (run / "metrics.jsonl").read_bytes() == before and checkpoints.steps(run / "checkpoints") == [BEFORE, NEWEST]


def test_a_change_of_data_can_be_accepted_and_is_recorded(run: Path) -> None:
    other = changed_data(nudged)
    was = json.loads((run / "run.json").read_text())["data"]["train"]["sha256"]
    done = train(run, other, accept_data_change=True)
    assert done.info["data"]["train"]["sha256"] == pictures_of(other) != was
    assert any("the data changed (train), as accepted" in event.get("text", "") for event in done.events)
    assert done.result["status"] == "done"


def pictures_of(recipe: Callable[..., Recipe]) -> str:
    return recipe().build_data().train.fingerprint()


@pytest.fixture
def recipe_file(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "mine.py"
    path.write_text("from tests.engine.harness import trial\n\n\ndef recipe(steps: int = 23):\n    return trial(steps)\n")
    yield path


def test_a_recipe_file_that_changed_since_the_start(recipe_file: Path, memory: Path, reference: dict[str, str]) -> None:
    assert attempt(memory / "run", kill_in_save(1, 0), recipe=recipe_file).wait().killed
    text = recipe_file.read_text()
    recipe_file.write_text(text.replace("trial(steps)", "trial(steps, lr=0.02)"))
    with pytest.raises(BadInput, match="another version of mine.py") as caught:
        train(memory / "run", recipe_file)
    assert caught.value.exit_code == 2
    recipe_file.write_text(text)
    assert differences(digest(train(memory / "run", recipe_file).path), reference) == []


def test_options_that_changed_since_the_start(run: Path) -> None:
    with pytest.raises(BadInput, match="lr=0.01, not 0.02"):
        train(run, lr=0.02)
    with pytest.raises(BadInput, match="seed 0, not 4"):
        train(run, seed=4)
    assert checkpoints.steps(run / "checkpoints") == [BEFORE, NEWEST]


def test_a_tensor_of_a_kind_that_cannot_be_saved_is_named(memory: Path) -> None:
    parts = {"model": {"w": torch.ones(2, dtype=torch.complex128)}, "optim": {}, "rng": {}, "best": {}}
    with pytest.raises(BadInput, match="tensor 'w' of torch.complex128 cannot be saved"):
        checkpoint.save(memory, 1, parts, {"step": 1}, {})
    assert list(memory.iterdir()) == []
