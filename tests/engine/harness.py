"""Machinery of the proofs about runs.

trial       a small recipe that uses everything a resume must bring back
Attempt     a process of a run, forked from this one, which has imported everything: a start costs a tenth of a second
digest      what a run ended with, one hash for each thing that must be equal
Double      stands in for the disk: kills, fails or writes down any call
Journal     what was asked of the disk, in order; `crash` imagines what a power loss leaves of it
"""

from __future__ import annotations
import __future__

import ctypes
import errno
import functools
import hashlib
import inspect
import itertools
import json
import mmap
import os
import random
import select
import shutil
import signal
import tempfile
import textwrap
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

import sonde.engine.launch  # noqa: F401  imported here, so that no attempt has to
import sonde.engine.trainer  # noqa: F401
from sonde.api import run, training
from sonde.core import files
from sonde.core.batch import Batch, Data
from sonde.core.errors import SondeError
from sonde.core.recipe import Callback, Recipe
from sonde.data import augment
from sonde.data.tensors import TensorSource
from sonde.engine import checkpoint
from sonde.objectives.categorical import Categorical
from sonde.optim.build import optimizer
from sonde.runs import checkpoints
from sonde.runs.layout import RunDirectory
from sonde.runs.rows import Log

STEPS, EVERY = 23, 5
"""steps of the trial and steps between its checkpoints; 6 steps make an epoch, so most checkpoints fall inside one"""

# ---------------------------------------------------------------- the run under trial


class Jitter(nn.Module):
    """Careless user code: draws from the global generators of Python and NumPy, and counts in an unsaved buffer.

    Gaussian draws come in pairs of which one is kept for the next call, so the kept one matters too.
    """

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        self.seen += 1
        return x * (1 + 0.1 * random.gauss(0, 1)) + 0.1 * np.random.randn() + 0.001 * float(self.seen)


def jitter(batch: Batch, rng: torch.Generator) -> Batch:
    """An augmentation that draws from the global generators instead of the one it is given."""
    return batch.replace(x=batch.x + 0.1 * (torch.rand(()) + random.random() + np.random.rand()))


class Diary(Callback):
    """A callback whose state must survive."""

    def __init__(self) -> None:
        self.total = 0.0

    def step(self, run: Any, step: int, row: Mapping[str, float]) -> None:
        self.total += row["loss"]

    def state(self) -> dict[str, Any]:
        return {"total": self.total.hex()}

    def load(self, state: Mapping[str, Any]) -> None:
        self.total = float.fromhex(state["total"])


def network() -> nn.Module:
    body = (nn.Conv2d(1, 3, 3, bias=False), nn.BatchNorm2d(3), Jitter(), nn.ReLU())
    return nn.Sequential(*body, nn.Flatten(), nn.Dropout(0.3), nn.Linear(108, 4))


def pictures(many: int = 83) -> Data:
    """Noise with a bright corner that tells the class; 83 is no multiple of the batch."""
    rng = torch.Generator().manual_seed(5)
    y = torch.randint(0, 4, (many + 40,), generator=rng)
    x = torch.randn(many + 40, 1, 8, 8, generator=rng)
    for corner, (top, left) in enumerate(((0, 0), (0, 5), (5, 0), (5, 5))):
        x[y == corner, :, top : top + 3, left : left + 3] += 1.0
    parts = [TensorSource(x[a:b], y[a:b]) for a, b in ((0, many), (many, many + 20), (many + 20, many + 40))]
    return Data(*parts, name="pictures", task="classes")


def trial(steps: int = STEPS, lr: float = 0.01, on_bad: str = "stop", evaluate_every: int = 6, mode: str = "max") -> Recipe:
    """Dropout, augmentation, an uneven last batch, evaluation, a callback, and draws from every global generator.

    The best weights are those with the largest loss: early ones, which must be carried along to the end.
    """
    return Recipe(
        model=network,
        data=pictures,
        objective=Categorical(classes=4),
        optimizer=optimizer("adamw", lr=lr, weight_decay=0.01),
        steps=steps,
        batch_size=16,
        augment=augment.compose(augment.shift(1), jitter),
        log_every=2,
        evaluate_every=evaluate_every,
        evaluate_batch_size=16,
        clip_norm=1.0,
        mode=mode,
        restore_best=True,
        on_bad=on_bad,  # type: ignore[arg-type]
        callbacks=(Diary(),),
    )


def train(path: Path, recipe: Any = trial, **more: Any) -> run.Run:
    """The trial in this process."""
    return training.train(recipe, run=path, **{"threads": 1, "checkpoint_every": EVERY, "quiet": True, **more})


# ---------------------------------------------------------------- processes


@dataclass(frozen=True)
class Outcome:
    """How an attempt ended: exit code, negative for a signal, and the error it raised."""

    code: int
    kind: str = ""
    parts: Mapping[str, str] = field(default_factory=dict)
    trace: str = ""

    @property
    def killed(self) -> bool:
        return self.code == -signal.SIGKILL

    def done(self) -> None:
        assert self.code == 0, f"code {self.code}: {self.kind} {dict(self.parts)}\n{self.trace}"


class Attempt:
    """A forked process that does one thing.  Its last error is left in shared memory."""

    running: ClassVar[list[Attempt]] = []
    """those that nobody has waited for; a fixture ends what a test leaves"""

    def __init__(self, act: Callable[[], Any]) -> None:
        self.report = mmap.mmap(-1, 1 << 16)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of forks beside threads; no thread here holds a lock
            self.pid = os.fork()
        if self.pid == 0:
            self._live(act)
        self.pidfd = os.pidfd_open(self.pid)
        Attempt.running.append(self)

    def _live(self, act: Callable[[], Any]) -> None:
        code, report = 1, {}
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: a test that is given up takes its attempts with it
        try:
            for number in (signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            act()
            code = 0
        except SondeError as error:
            code = error.exit_code
            parts = {name: getattr(error, name) for name in ("what", "where", "last_good", "fix")}
            report = {"kind": type(error).__name__, "parts": parts}
        except BaseException as error:
            report = {"kind": type(error).__name__, "trace": traceback.format_exc()[-8000:]}
        finally:
            message = json.dumps(report).encode()
            self.report[: len(message)] = message
            os._exit(code)

    def ends_within(self, seconds: float) -> bool:
        return bool(select.select([self.pidfd], [], [], seconds)[0])

    def send(self, number: int) -> None:
        os.kill(self.pid, number)

    def workers(self) -> list[int]:
        """Its child processes, oldest first."""
        return [int(pid) for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]

    def wait(self, seconds: float = 120.0) -> Outcome:
        """How it ended; one that does not end in time is killed and fails the test."""
        late = not self.ends_within(seconds)
        if late:
            self.send(signal.SIGKILL)
        Attempt.running.remove(self)
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        os.close(self.pidfd)
        assert not late, f"no end after {seconds} s"
        report = json.loads(self.report[:].rstrip(b"\0") or b"{}")
        self.report.close()
        return Outcome(code, **report)


def attempt(path: Path, rule: Rule | None = None, before: Callable[[], None] | None = None, **more: Any) -> Attempt:
    """Start or resume the trial in a process of its own, on a disk with a rule, after `before` has changed something there."""

    def act() -> None:
        if rule is not None:
            files.disk = Double(rule)  # type: ignore[assignment]
        if before is not None:
            before()
        train(path, **more)

    return Attempt(act)


def finished(path: Path, **more: Any) -> Path:
    """Run the trial to its end, from wherever it is."""
    attempt(path, **more).wait().done()
    return path


# ---------------------------------------------------------------- what must be equal


def tensors_digest(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes() if tensor.numel() else b"")
    return digest.hexdigest()


@functools.cache
def reference(**more: Any) -> dict[str, str]:
    """What the uninterrupted trial ends with.  It runs in this process, so that attempts find everything imported and warm."""
    with tempfile.TemporaryDirectory() as folder:
        return digest(train(Path(folder) / "reference", **more).path)


def digest(path: Path) -> dict[str, str]:
    """Thing -> hash or text, of a finished run."""
    last = checkpoint.read(checkpoints.path_of(path / "checkpoints", max(checkpoints.steps(path / "checkpoints"))))
    return {
        "parameters": tensors_digest(last.parts["model"]),
        "moments": tensors_digest(last.parts["optim"]),
        "best weights": tensors_digest(checkpoint.best_weights(last)),
        "random states": tensors_digest(last.parts["rng"]),
        **{name: tensors_digest(part) for name, part in last.parts.items() if name not in checkpoint.PARTS},
        "state": json.dumps(last.state, sort_keys=True),
        "metrics": (path / "metrics.jsonl").read_text(),
        "result": (path / "result.json").read_text(),
        "kept checkpoints": str(checkpoints.steps(path / "checkpoints")),
    }


def differences(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    """Names of what is not equal, bit for bit."""
    return [name for name in one if one[name] != other[name]]


def leftovers(path: Path) -> list[str]:
    """What an interrupted write left behind, and checkpoints that were found damaged."""
    return sorted(str(entry.relative_to(path)) for entry in path.rglob("*") if entry.name.startswith((".tmp-", ".del-", "bad-")))


def same(path: Path, reference: Mapping[str, str]) -> None:
    """The run ended like the reference, with nothing left behind and nothing found damaged on the way."""
    assert differences(digest(path), reference) == []
    assert leftovers(path) == []
    assert not [event["text"] for event in run.Run(path).events if "damaged" in event.get("text", "")]


# ---------------------------------------------------------------- disks

Rule = Callable[[int, str, tuple, Callable[[], Any]], Any]
"""(number of the call, its name, its arguments, a function that does it) -> what the call returns"""


class Double:
    """A disk that leaves every call to a rule."""

    def __init__(self, rule: Rule) -> None:
        self.real, self.rule, self.count = files.Disk(), rule, 0

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            index, self.count = self.count, self.count + 1
            return self.rule(index, name, arguments, lambda: getattr(self.real, name)(*arguments))

        return call


@contextmanager
def disk(rule: Rule) -> Iterator[None]:
    """A disk with a rule, in this process."""
    before, files.disk = files.disk, Double(rule)  # type: ignore[assignment]
    try:
        yield
    finally:
        files.disk = before


class Calls:
    """Writes down (name, what about), and does it."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, Any]] = []

    def __call__(self, index: int, name: str, arguments: tuple, go: Callable[[], Any]) -> Any:
        self.seen.append((name, arguments[0]))
        return go()


class InSave:
    """Numbers calls within saves: each save begins by asking for free space, and lasts until the next one does."""

    def __init__(self) -> None:
        self.save, self.offset = -1, 0

    def note(self, name: str) -> tuple[int, int]:
        if name == "free_bytes":
            self.save, self.offset = self.save + 1, -1
        self.offset += 1
        return self.save, self.offset


def kill_in_save(save: int, offset: int) -> Rule:
    """SIGKILL at one call of a save of this process; a write is torn in the middle."""
    place = InSave()

    def rule(index: int, name: str, arguments: tuple, go: Callable[[], Any]) -> Any:
        if place.note(name) == (save, offset):
            if name == "write":
                os.write(arguments[0], arguments[1][: len(arguments[1]) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        return go()

    return rule


Fault = int | Literal["short"]


def failing(fault: Fault, at: Callable[[int, str], bool]) -> Rule:
    """The calls chosen by `at(index, name)` fail with an errno, a write after half of its bytes; 'short' takes half and says so."""

    def rule(index: int, name: str, arguments: tuple, go: Callable[[], Any]) -> Any:
        if not at(index, name):
            return go()
        if name == "write" and len(arguments[1]) > 1:
            done = os.write(arguments[0], arguments[1][: len(arguments[1]) // 2])
            if fault == "short":
                return done
        elif name == "close" or fault == "short":
            done = go()  # a failing close still gives the descriptor back
            if fault == "short":
                return done
        raise OSError(fault, os.strerror(int(fault)))

    return rule


FAULTS: tuple[Fault, ...] = (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EINTR, errno.EACCES, "short")


# ---------------------------------------------------------------- power loss


class Journal:
    """A rule that writes down what each call does to files and directories, as a file system sees it.

    ("link", folder, name, node) ("move", folder, old, new, node) ("unlink", folder, name)
    ("write", node, offset, bytes) ("cut", node, size) ("sync", node) ("sync folder", folder) ("note", anything)

    A node is a number.  Directories that were not made through the disk count as safe.
    """

    ROOT = 0

    def __init__(self, root: Path, skip: Callable[[str, Path], bool] = lambda name, path: False) -> None:
        self.root, self.skip = root, skip
        self.log: list[tuple] = []
        self.nodes: dict[Path, int] = {root: self.ROOT}
        self.numbers = itertools.count(1)
        self.sizes: dict[int, int] = {}
        self.open: dict[int, Path] = {}

    def __call__(self, index: int, name: str, arguments: tuple, go: Callable[[], Any]) -> Any:
        if self.skip(name, self._path(arguments[0])):
            return None
        result = go()
        getattr(self, f"_{name}", lambda *_: None)(result, *arguments)
        return result

    def note(self, what: Any) -> None:
        self.log.append(("note", what))

    def _path(self, about: Any) -> Path:
        return self.open.get(about, self.root) if isinstance(about, int) else Path(about)

    def _folder(self, path: Path) -> int:
        if path not in self.nodes:
            self.nodes[path] = next(self.numbers)
            self.log += [("link", self._folder(path.parent), path.name, self.nodes[path]), ("sync folder", self._folder(path.parent))]
        return self.nodes[path]

    def _new(self, path: Path) -> int:
        folder, self.nodes[path] = self._folder(path.parent), next(self.numbers)
        self.log.append(("link", folder, path.name, self.nodes[path]))
        return self.nodes[path]

    def _create(self, fd: int, path: Path) -> None:
        self.sizes[self._new(path)] = 0
        self.open[fd] = path

    def _open_append(self, fd: int, path: Path) -> None:
        if path not in self.nodes:
            self.sizes[self._new(path)] = 0
        self.open[fd] = path

    def _close(self, _: None, fd: int) -> None:
        self.open.pop(fd, None)

    def _write(self, done: int, fd: int, data: Any) -> None:
        node = self.nodes[self.open[fd]]
        self.log.append(("write", node, self.sizes[node], bytes(data[:done])))
        self.sizes[node] += done

    def _truncate(self, _: None, path: Path, size: int) -> None:
        self.sizes[self.nodes[path]] = size
        self.log.append(("cut", self.nodes[path], size))

    def _fsync(self, _: None, fd: int) -> None:
        self.log.append(("sync", self.nodes[self.open[fd]]))

    def _fsync_directory(self, _: None, path: Path) -> None:
        self.log.append(("sync folder", self._folder(path)))

    def _mkdir(self, _: None, path: Path) -> None:
        self._new(path)

    def _rename(self, _: None, old: Path, new: Path) -> None:
        moved = {path: node for path, node in self.nodes.items() if path == old or old in path.parents}
        self.log.append(("move", self._folder(old.parent), old.name, new.name, moved[old]))
        for path, node in moved.items():
            del self.nodes[path]
            self.nodes[new / path.relative_to(old)] = node

    def _unlink(self, _: None, path: Path) -> None:
        self.log.append(("unlink", self._folder(path.parent), path.name))
        self.nodes.pop(path, None)

    def _remove_tree(self, _: None, path: Path) -> None:
        for inside in [entry for entry in self.nodes if entry.parent == path]:
            self._unlink(None, inside)
        self._unlink(None, path)


def crash(log: list[tuple], moment: int, rng: random.Random, target: Path) -> list[Any]:
    """Lay out in `target` what a power loss after `moment` entries of the log may leave; returns the notes made before it.

    What was synced is there.  Of what was not, anything may be: data complete, lost, torn or zeroed in blocks, file by
    file; names of files kept or lost, one by one.
    """
    names: dict[int, list[tuple]] = {}
    sure_names: dict[int, int] = {}
    data: dict[int, list[tuple]] = {}
    sure_data: dict[int, int] = {}
    notes = []
    for entry in log[:moment]:
        kind, node = entry[0], entry[1]
        if kind == "note":
            notes.append(node)
        elif kind == "sync":
            sure_data[node] = len(data.get(node, []))
        elif kind == "sync folder":
            sure_names[node] = len(names.get(node, []))
        else:
            (data if kind in ("write", "cut") else names).setdefault(node, []).append(entry)
    luck = rng.choice((0.0, 0.5, 0.9, 1.0))

    def kept() -> bool:
        return rng.random() < luck

    def content(node: int) -> bytes:
        entries, sure = data.get(node, []), sure_data.get(node, 0)
        fate = "complete" if kept() else rng.choice(("lost", "torn", "zeroed", "zeroed"))
        last = {"complete": len(entries), "lost": sure, "torn": rng.randint(sure, len(entries)), "zeroed": len(entries)}[fate]
        buffer, safe = bytearray(), 0
        for index, (kind, _, place, *rest) in enumerate(entries[:last]):
            if kind == "cut":
                del buffer[place:]
            else:
                buffer[place : place + len(rest[0])] = rest[0]
            safe = len(buffer) if index < sure else min(safe, len(buffer))
        if fate == "torn" and len(buffer) > safe:
            del buffer[rng.randint(safe, len(buffer)) :]
        for start in range(safe, len(buffer) if fate == "zeroed" else 0, 512):
            if rng.random() < 0.2:
                buffer[start : start + 512] = bytes(len(buffer[start : start + 512]))
        return bytes(buffer)

    def lay(node: int, path: Path) -> None:
        path.mkdir()
        inside: dict[str, int] = {}
        for index, entry in enumerate(names.get(node, [])):
            if index >= sure_names.get(node, 0) and not kept():
                continue
            if entry[0] == "link":
                inside[entry[2]] = entry[3]
            elif entry[0] == "move":
                inside.pop(entry[2], None)
                inside[entry[3]] = entry[4]
            else:
                inside.pop(entry[2], None)
        for name, child in inside.items():
            if child in names or child not in files_of:
                lay(child, path / name)
            else:
                (path / name).write_bytes(content(child))

    files_of = {entry[1] for entry in log if entry[0] in ("write", "cut", "sync")}
    lay(Journal.ROOT, target)
    return notes


class Died(BaseException):
    """A process that ends here, as far as its disk can tell: from now on it is refused everything."""


@dataclass
class Story:
    """A run written down, with all it takes to judge what a crash left of it."""

    log: list[tuple]
    saved: dict[int, str]
    """step -> what its checkpoint held"""
    rows: bytes
    """metrics.jsonl in the end"""

    @classmethod
    def of(cls, folder: Path) -> Story:
        """The trial, killed in the middle of a save and resumed."""
        folder.mkdir()
        journal, saved, place = Journal(folder), {}, InSave()
        real = checkpoint.save

        def save(where: Path, step: int, parts: Any, state: Any, about: Any, segments: Any = ()) -> Path:
            saved[step] = content_digest(parts, state)
            path = real(where, step, parts, state, about, segments)
            journal.note(step)
            return path

        def dying(index: int, name: str, arguments: tuple, go: Callable[[], Any]) -> Any:
            if place.note(name) >= (2, 20):
                raise Died
            return journal(index, name, arguments, go)

        checkpoint.save = save  # type: ignore[assignment]
        try:
            with disk(dying), suppress(Died):
                train(folder / "run")
            with disk(journal):
                run = train(folder / "run")
        finally:
            checkpoint.save = real  # type: ignore[assignment]
        return cls(journal.log, saved, (run.path / "metrics.jsonl").read_bytes())

    def crashes(self, states: int, target: Path, seed: int = 0) -> Counter[str]:
        """How often each wrong thing happens when the power fails at any point and the run is resumed."""
        rng, counts = random.Random(seed), Counter[str]()
        for _ in range(states):
            acknowledged = crash(self.log, rng.randint(0, len(self.log)), rng, target)
            counts[self._after(target / "run", max(acknowledged, default=0))] += 1
            shutil.rmtree(target)
        del counts[""]
        return counts

    def _after(self, path: Path, acknowledged: int) -> str:
        """What is wrong with a run after a crash: what the engine does to resume it, step by step."""
        directory = RunDirectory(path)
        if not directory.exists:
            return "the run is lost" if acknowledged else ""
        try:
            directory.info()
            snapshot = checkpoint.newest(directory.checkpoints, lambda snapshot: None, lambda text: None)
            if (snapshot.step if snapshot else 0) < acknowledged:
                return "an acknowledged checkpoint is lost"
            if snapshot is None:
                return ""
            if content_digest(snapshot.parts, snapshot.state) != self.saved[snapshot.step]:
                return "a mixture was loaded"
            rows = Log(path / "metrics.jsonl")
            rows.open(snapshot.state["metrics"])
            rows.close()
            return "" if self.rows.startswith(rows.path.read_bytes()) else "rows are damaged"
        except SondeError as error:
            return f"no resume: {type(error).__name__}"


def content_digest(parts: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any]) -> str:
    return " ".join(tensors_digest(parts[name]) for name in sorted(parts)) + json.dumps(state, sort_keys=True)


# ---------------------------------------------------------------- mutants


def mutant(owner: Any, name: str, line: str, instead: str = "pass") -> Callable[..., Any]:
    """The function `owner.name` with one line of its source replaced."""
    function = getattr(owner, name)
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(line) == 1, f"{name} has {source.count(line)} lines like: {line}"
    code = compile(source.replace(line, instead), f"mutant of {name}", "exec", __future__.annotations.compiler_flag)
    namespace: dict[str, Any] = {}
    exec(code, function.__globals__, namespace)
    return namespace[name]
