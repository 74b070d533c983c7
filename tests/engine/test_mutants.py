"""The proofs can fail: with any one line of the defense removed, they see it.

A mutant is the real function with one line of its source replaced, so a test here also fails when the line is gone.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sonde.core import files
from sonde.engine import state, trainer, weights
from sonde.runs import checkpoints, rows
from tests.engine.harness import Story, attempt, differences, digest, kill_in_save, leftovers, mutant, same

Change = tuple[Any, str, Callable[..., Any]]
"""where a function is looked up, its name, and what is put there"""


def randomness(line: str, instead: str = "pass") -> Change:
    return left_out(state, "_restore", line, instead)


def moment(name: str) -> Change:
    changed = f'value.copy_(saved[name]) if not name.endswith(".{name}") else None'
    return state.Moments, "load_", mutant(state.Moments, "load_", "value.copy_(saved[name])", changed)


def left_out(owner: Any, name: str, line: str, instead: str = "pass") -> Change:
    return owner, name, mutant(owner, name, line, instead)


def killed_and_resumed(path: Path, reference: dict[str, str], change: Change | None) -> list[str]:
    """What differs from the reference after two kills, with a line changed in every process."""
    before = None if change is None else lambda: setattr(*change)
    for rule in (kill_in_save(2, 3), kill_in_save(1, 3)):
        assert attempt(path, rule, before).wait().killed
    outcome = attempt(path, before=before).wait()
    return [f"code {outcome.code}"] if outcome.code else differences(digest(path), reference)


RESUME = {
    "torch's generator": lambda: randomness('set_torch(saved["torch"])'),
    "Python's generator": lambda: randomness("set_python((", "str(("),
    "the draw Python kept": lambda: randomness("gauss[0] if gauss else None", "None"),
    "NumPy's generator": lambda: randomness("set_numpy((", "str(("),
    "the draw NumPy kept": lambda: randomness('has_gauss, float(saved["numpy.gauss"][0])', "0, 0.0"),
    "the place in the data": lambda: left_out(trainer.Trainer, "load", 'self.step = int(state["step"])'),
    "the best figure": lambda: left_out(trainer.Trainer, "load", 'self.best.load(state["best"])'),
    "the guard": lambda: left_out(trainer.Trainer, "load", "guard.load(saved)"),
    "a callback": lambda: left_out(trainer.Trainer, "load", "callback.load(saved)"),
    "the first moment": lambda: moment("exp_avg"),
    "the second moment": lambda: moment("exp_avg_sq"),
    "the optimizer's count": lambda: moment("step"),
    "weights and buffers": lambda: (weights, "load_model_", mutant(state, "load_model_", "tensor.copy_(saved[name])")),
    "the cut of the rows": lambda: left_out(rows.Log, "_open", "files.disk.truncate(self.path, size)"),
}


def test_the_kills_alone_change_nothing(memory: Path, reference: dict[str, str]) -> None:
    assert killed_and_resumed(memory / "run", reference, None) == []
    assert leftovers(memory / "run") == []


@pytest.mark.parametrize("line", RESUME)
def test_a_resume_that_forgets(line: str, memory: Path, reference: dict[str, str]) -> None:
    assert killed_and_resumed(memory / "run", reference, RESUME[line]()) != []


# ---------------------------------------------------------------- power loss

SYNCS = {
    "every file": lambda: left_out(files, "write_file", "disk.fsync(fd)"),
    "the tensors": lambda: left_out(files, "write_file", "disk.fsync(fd)", 'path.suffix == ".safetensors" or disk.fsync(fd)'),
    "the manifest": lambda: left_out(files, "write_file", "disk.fsync(fd)", 'path.name == "manifest.json" or disk.fsync(fd)'),
    "the folder of a checkpoint": lambda: left_out(checkpoints, "write", "files.disk.fsync_directory(aside)"),
    "the folder of all checkpoints": lambda: left_out(checkpoints, "write", "files.disk.fsync_directory(folder)"),
    "the rows": lambda: left_out(rows.Log, "fsync", "files.disk.fsync(self.fd)"),
    "the names of the logs": lambda: left_out(rows.Log, "_open", "files.disk.fsync_directory(self.path.parent)"),
    "the folder of the run": lambda: left_out(files, "make_folder", "disk.fsync_directory(path.parent)"),
}

UNCHECKED: Change = (checkpoints, "_verify", lambda path, size, digest: path.read_bytes())
"""a loader that believes every file"""


def in_place() -> Change:
    """A save that writes where the checkpoint will be, instead of aside."""
    once = mutant(checkpoints, "write", 'aside = folder / f".tmp-{step}-{os.getpid()}-{secrets.token_hex(4)}"', "aside = final")
    return checkpoints, "write", once


@pytest.mark.parametrize("line", SYNCS)
def test_a_save_that_does_not_sync(line: str, memory: Path, reference: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*SYNCS[line]())
    assert Story.of(memory / "story").crashes(150, memory / "crashed").total() > 0


def test_without_checksums_the_syncs_alone_hold(memory: Path, reference: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    story = Story.of(memory / "story")
    monkeypatch.setattr(*UNCHECKED)
    assert story.crashes(300, memory / "crashed").total() == 0


def test_without_checksums_or_syncs_a_mixture_is_loaded(memory: Path, reference: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*SYNCS["the tensors"]())
    story = Story.of(memory / "story")
    assert story.crashes(300, memory / "crashed")["a mixture was loaded"] == 0, "checksums see it, and lose the checkpoint"
    monkeypatch.setattr(*UNCHECKED)
    assert story.crashes(300, memory / "crashed")["a mixture was loaded"] > 0


# ---------------------------------------------------------------- damage


def test_a_save_in_place_is_seen_by_what_it_leaves(memory: Path, reference: dict[str, str]) -> None:
    """Checksums mask it: the half-written checkpoint is found damaged.  But a mere kill must not damage anything."""
    owner, name, save = in_place()
    path = memory / "run"
    assert attempt(path, kill_in_save(1, 20), lambda: setattr(owner, name, save)).wait().killed
    attempt(path).wait().done()
    assert leftovers(path) == ["checkpoints/bad-step-00000010"]
    with pytest.raises(AssertionError):
        same(path, reference)


@pytest.mark.parametrize("checked", [True, False])
def test_a_flipped_bit_needs_the_checksum(checked: bool, memory: Path, reference: dict[str, str]) -> None:
    path = memory / "run"
    assert attempt(path, kill_in_save(3, 0)).wait().killed
    flipped = checkpoints.path_of(path / "checkpoints", 15) / "model.safetensors"
    data = bytearray(flipped.read_bytes())
    data[-3] ^= 4
    flipped.write_bytes(data)
    change = left_out(checkpoints, "_verify", "if hashlib.sha256(data).hexdigest() != digest:", "if False:")
    attempt(path, before=None if checked else lambda: setattr(*change)).wait().done()
    assert (differences(digest(path), reference) == []) == checked
    assert leftovers(path) == (["checkpoints/bad-step-00000015"] if checked else [])
