"""Files made to do harm: nothing in them is ever executed, nothing makes a reader crash, hang or eat memory.

Everything here runs in a forked process under an audit hook, which sees what Python is about to do however it is asked.
"""

from __future__ import annotations

import ast
import copy
import gzip
import hashlib
import io
import json
import os
import pickle
import random
import resource
import shutil
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sonde.api.run import Run
from sonde.core import files, tensors
from sonde.core.errors import SondeError
from sonde.engine import checkpoint
from sonde.runs import checkpoints
from sonde.runs.layout import RunDirectory
from tests.engine.harness import EVERY, Attempt, attempt, kill_in_save, train, trial

NEWEST = 3 * EVERY
PARTS = ("model.safetensors", "optim.safetensors", "rng.safetensors", "best.safetensors", "state.json", "manifest.json")
LOOSE = ("run.json", "result.json", "skips.json", "metrics.jsonl", "events.jsonl")

# ---------------------------------------------------------------- payloads


class Evil:
    """Asks to be rebuilt by a call."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


def payloads(canary: Path) -> dict[str, bytes]:
    """Files that leave a mark when they are unpickled, by the ways they are known to come."""
    touch = f"touch {canary}"
    evils = {
        "os.system": Evil(os.system, touch),
        "exec": Evil(exec, f"open({str(canary)!r}, 'w').close()"),
        "eval": Evil(eval, f"open({str(canary)!r}, 'w').close()"),
        "nested": {"weights": [1, (2, Evil(os.system, touch))]},
    }
    blobs = {f"pickle {name} {protocol}": pickle.dumps(evil, protocol) for name, evil in evils.items() for protocol in (0, 2, 5)}
    whole = io.BytesIO()
    torch.save({"w": torch.ones(3), "e": Evil(os.system, touch)}, whole)
    blobs["torch zip"] = whole.getvalue()
    legacy = io.BytesIO()
    torch.save(Evil(os.system, touch), legacy, _use_new_zipfile_serialization=False)
    blobs["torch legacy"] = legacy.getvalue()
    array = io.BytesIO()
    np.save(array, np.array([Evil(os.system, touch)], dtype=object), allow_pickle=True)
    blobs["npy of objects"] = array.getvalue()
    bundle = io.BytesIO()
    np.savez(bundle, w=np.array([Evil(os.system, touch)], dtype=object))
    blobs["npz of objects"] = bundle.getvalue()
    blobs["gzip"] = gzip.compress(blobs["pickle os.system 2"])
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    polyglot = io.BytesIO(len(header).to_bytes(8, "little") + header + b"\0" * 4)
    with zipfile.ZipFile(polyglot, "a") as archive:
        archive.writestr("archive/data.pkl", blobs["pickle os.system 2"])
    blobs["safetensors and zip in one"] = polyglot.getvalue()
    blobs["python source"] = f"import os; os.system({touch!r})\n".encode()
    blobs["json that names a class"] = json.dumps(
        {"__class__": "os.system", "__reduce__": ["os.system", [touch]], "py/object": "os.system"}
    ).encode()
    return blobs


# ---------------------------------------------------------------- the watch

WATCHED = ("pickle.find_class", "exec", "compile", "import", "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "socket.connect")


class Watch:
    """What was done that no file may make us do.  `usual` is what reading a harmless run does: type hints are evaluated."""

    def __init__(self, root: Path, usual: Callable[[], Any] = lambda: None) -> None:
        self.root, self.seen, self.usual = root, list[str](), set[str]()
        sys.addaudithook(self._hear)
        usual()
        self.usual, self.seen = set(self.seen), []

    def _hear(self, event: str, arguments: tuple) -> None:
        if event in WATCHED and (text := self._text(event, arguments)) not in self.usual:
            self.seen.append(text)
        if event == "open" and isinstance(arguments[0], str) and isinstance(arguments[2], int):
            writes = arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            if writes and not arguments[0].startswith((str(self.root), "/dev/null")):
                self.seen.append(f"write {arguments[0]}")

    @staticmethod
    def _text(event: str, arguments: tuple) -> str:
        code = arguments[0]
        about = (code.co_filename, code.co_names, code.co_consts) if event == "exec" else arguments
        return f"{event} {str(about)[:300]}"


def watched(root: Path, act: Callable[[], None], harmless: Path) -> None:
    """Do it in a process of its own, under the watch; whatever is seen fails the test."""

    def usual() -> None:
        path = Path(shutil.copytree(harmless, root / "harmless"))
        read_everything(path)
        (path / "result.json").write_text("{}")
        resumed(path)

    def child() -> None:
        watch = Watch(root, usual)
        act()
        assert watch.seen == []

    Attempt(child).wait().done()


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory, reference: dict[str, str]) -> Path:
    path = tmp_path_factory.mktemp("hostile") / "run"
    assert attempt(path, kill_in_save(3, 0)).wait().killed
    read_everything(path)  # so that nothing is imported for the first time under the watch
    return path


def forge(folder: Path, name: str, data: bytes) -> None:
    """A file of a checkpoint, with a manifest that vouches for it."""
    (folder / name).write_bytes(data)
    if name == "manifest.json":
        return
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["sha256"]
    manifest["files"][name] = [len(data), hashlib.sha256(data).hexdigest()]
    manifest["sha256"] = hashlib.sha256(files.dump_json(manifest)).hexdigest()
    (folder / "manifest.json").write_bytes(files.dump_json(manifest))


def read_everything(path: Path) -> list[str]:
    """Every way in which a run is read, short of training; returns the kinds of errors met.  Others than ours are not caught."""
    run, met = Run(path), list[str]()
    run.__dict__["recipe"] = trial()
    ways: list[Callable[[], Any]] = [
        lambda: run.info,
        lambda: run.result,
        lambda: run.metrics,
        lambda: run.events,
        lambda: run.model(),
        lambda: run.model("best"),
        lambda: run.model(NEWEST),
        lambda: checkpoint.read(checkpoints.path_of(path / "checkpoints", NEWEST)),
        lambda: repr(run),
    ]
    for way in ways:
        try:
            way()
        except SondeError as error:
            assert error.what and len(error.render()) < 2000
            met.append(type(error).__name__)
    return met


def resumed(path: Path) -> str:
    """Resume a run; returns the kind of error, or ''."""
    try:
        train(path, steps=23)
    except SondeError as error:
        return type(error).__name__
    return ""


# ---------------------------------------------------------------- nothing is executed


def test_the_watch_sees_what_a_payload_does(tmp_path: Path) -> None:
    """Loaded the careless way, every payload that is a pickle is seen, and leaves its mark."""
    canary = tmp_path / "canary"
    blobs = payloads(canary)
    for name in ("pickle os.system 0", "pickle exec 5", "pickle eval 2", "pickle nested 2", "npy of objects", "torch legacy"):

        def act(name: str = name) -> None:
            watch = Watch(tmp_path / "nothing")
            if name.startswith("pickle"):
                pickle.loads(blobs[name])
            elif name.startswith("npy"):
                np.load(io.BytesIO(blobs[name]), allow_pickle=True)
            else:
                torch.load(io.BytesIO(blobs[name]), weights_only=False)
            assert watch.seen

        Attempt(act).wait().done()
        assert canary.exists()
        canary.unlink()


@pytest.mark.parametrize("name", [*PARTS, *LOOSE])
def test_no_file_of_a_run_is_ever_executed(name: str, half: Path, memory: Path) -> None:
    """Every payload, in the place of every file, vouched for by the manifest or not; read in every way, and resumed."""
    canary = memory / "canary"
    blobs = payloads(canary)

    def act() -> None:
        for number, (what, data) in enumerate(blobs.items()):
            for vouched in (False, True) if name in PARTS else (False,):
                path = Path(shutil.copytree(half, memory / f"run-{number}-{vouched}"))
                folder = checkpoints.path_of(path / "checkpoints", NEWEST)
                if vouched:
                    forge(folder, name, data)
                else:
                    (folder / name if name in PARTS else path / name).write_bytes(data)
                    shutil.copy(path / "run.json", path / f"also.{what.split()[0]}")
                    (folder.parent / "also.pkl").write_bytes(data)
                read_everything(path)
                if number % 3 == 0:
                    resumed(path)
                assert not canary.exists(), what
                shutil.rmtree(path)

    watched(memory, act, half)
    assert not canary.exists()


# ---------------------------------------------------------------- things that are not files


def strange_files(place: Path) -> dict[str, Callable[[], Any]]:
    def replaced(make: Callable[[], Any]) -> Callable[[], Any]:
        def act() -> None:
            place.unlink()
            make()

        return act

    def sparse(size: int) -> Callable[[], Any]:
        return lambda: os.truncate(place, size)

    return {
        "a pipe": replaced(lambda: os.mkfifo(place)),
        "a device without end": replaced(lambda: place.symlink_to("/dev/zero")),
        "a folder": replaced(place.mkdir),
        "a link to itself": replaced(lambda: place.symlink_to(place)),
        "a link to nowhere": replaced(lambda: place.symlink_to(place.with_name("nowhere"))),
        "a terabyte of nothing": sparse(1 << 40),
        "empty": sparse(0),
    }


@pytest.mark.parametrize("name", [*PARTS, *LOOSE])
def test_what_is_no_ordinary_file_neither_blocks_nor_fills_the_memory(name: str, half: Path, memory: Path) -> None:
    where = checkpoints.path_of(half / "checkpoints", NEWEST) if name in PARTS else half
    for what in strange_files(where / name):

        def act(what: str = what) -> None:
            path = Path(shutil.copytree(half, memory / "run"))
            place = (checkpoints.path_of(path / "checkpoints", NEWEST) if name in PARTS else path) / name
            if not place.exists():
                place.touch()
            strange_files(place)[what]()
            if name in PARTS[:-1] and what == "a terabyte of nothing":  # also where the manifest says so
                manifest = json.loads((place.parent / "manifest.json").read_text())
                del manifest["sha256"]
                manifest["files"][name][0] = 1 << 40
                manifest["sha256"] = hashlib.sha256(files.dump_json(manifest)).hexdigest()
                (place.parent / "manifest.json").write_bytes(files.dump_json(manifest))
            limit = 6 << 30
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
            if not (name.endswith("jsonl") and what == "a terabyte of nothing"):  # rows are read as they come
                read_everything(path)
            if name in PARTS:
                assert resumed(path) == ""

        Attempt(act).wait(60).done()
        shutil.rmtree(memory / "run")


# ---------------------------------------------------------------- headers that lie

ODD: tuple[Any, ...] = (
    *(None, True, False, -1, 0, 1, 2, 7, 2**31, 2**48, 2**63, 2**64, 10**30, 1.5, -0.0, 1e308, "", "F32", "I64", "x" * 5000),
    *([], {}, [0], [0, 0], [2**47, 2**47], [0, 2**47, 2**47], [0] * 17, [[[[]]]], {"a": {}}, "\ud800", "\x00", "__metadata__", "same-as:a"),
)


def good_header() -> tuple[dict[str, Any], bytes]:
    data = b"".join(tensors.encode({"a": torch.arange(6.0).view(2, 3), "b": torch.arange(4), "c": torch.ones(3, dtype=torch.bool)}))
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def changed(value: Any, rng: random.Random) -> Any:
    """A JSON value with one thing in it replaced, removed, doubled or moved, wherever that is."""
    value = copy.deepcopy(value)
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = rng.choice(sorted(value))
        action = rng.randrange(6)
        if action == 0:
            del value[key]
        elif action == 1:
            value[str(rng.choice(ODD))[:50]] = value[key]
        elif action == 2:
            value[rng.choice(("__metadata__", "a", "b", "dtype", "shape"))] = rng.choice(ODD)
        else:
            value[key] = changed(value[key], rng)
        return value
    if isinstance(value, list) and value and rng.random() < 0.7:
        place = rng.randrange(len(value))
        action = rng.randrange(3)
        if action == 0:
            del value[place]
        elif action == 1:
            value.insert(place, rng.choice(ODD))
        else:
            value[place] = changed(value[place], rng)
        return value
    return value + rng.choice((-1, 1, 8, 2**40)) if type(value) is int and rng.random() < 0.5 else rng.choice(ODD)


def written(header: Any, body: bytes, rng: random.Random) -> bytes:
    """A file with that header, and now and then a lie about its length, a broken text or a torn end."""
    text = json.dumps(header, ensure_ascii=rng.random() < 0.9).encode("utf-8", "surrogatepass")
    lie = rng.randrange(12)
    if lie == 0:
        text = text.replace(b'"a"', b'"b"', 1)  # the same name twice
    elif lie == 1:
        text = text.replace(b"[", b"[" * 2000, 1)
    elif lie == 2:
        text = text[: rng.randrange(len(text))]
    elif lie == 3:
        text = bytes(rng.randrange(256) if rng.random() < 0.02 else byte for byte in text)
    length = rng.choice((0, 1, len(text) - 1, len(text) + 1, 2**31, 2**63, 2**64 - 1)) if lie == 4 else len(text)
    body = body[: rng.randrange(len(body))] if lie == 5 else body + bytes(rng.randrange(9)) if lie == 6 else body
    return max(length, 0).to_bytes(8, "little") + text + body


def test_five_thousand_headers_that_lie(half: Path, memory: Path) -> None:
    """Tensors or ValueError; never another error, a pause, or memory beyond the file."""

    def act() -> None:
        rng, (header, body) = random.Random(0), good_header()
        longest, refused = 0.0, 0
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(5000):
            mutated = header
            for _ in range(rng.randint(1, 3)):
                mutated = changed(mutated, rng)
            data = written(mutated, body, rng)
            start = time.perf_counter()
            try:
                contents = tensors.decode(data)
                assert sum(t.numel() * t.element_size() for t in set(contents.values())) <= len(data)
            except ValueError:
                refused += 1
            longest = max(longest, time.perf_counter() - start)
        assert refused > 3000 and longest < 1.0
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10

    watched(memory, act, half)


@pytest.mark.parametrize("opening", ["[", "{", '{"a":{"a":['])
@pytest.mark.parametrize("unit", ["0,", '"a":1,', "[],", "{},", '"",', "1.5,", "100,", '"abcd":{},', '"abcde":[],', '"":{},', "\\u0041"])
def test_a_header_as_large_as_allowed_costs_bounded_memory(opening: str, unit: str) -> None:
    """At most 64 MB beyond the file, whatever small things it is filled with."""

    def act() -> None:
        body = (opening + unit * (tensors.HEADER_LIMIT // len(unit)))[: tensors.HEADER_LIMIT].encode()
        data = len(body).to_bytes(8, "little") + body
        del body
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with pytest.raises(ValueError):
            tensors.decode(data)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < (len(data) >> 10) + (64 << 10)

    Attempt(act).wait(60).done()


# ---------------------------------------------------------------- records that lie


@pytest.mark.parametrize("name", ["run.json", "result.json", "skips.json", "state.json", "manifest.json"])
def test_a_record_that_lies_meets_only_our_errors(name: str, half: Path, memory: Path) -> None:
    """Values of the wrong kind anywhere in a record of a run, also where checksums vouch for it."""

    def act() -> None:
        rng, path = random.Random(1), Path(shutil.copytree(half, memory / "run"))
        folder = checkpoints.path_of(path / "checkpoints", NEWEST)
        place = folder / name if name in PARTS else path / name
        if name == "result.json":
            place.write_bytes(files.dump_json({"status": "done", "steps": 23, "model_step": 20, "metrics": {"test/loss": 1.0}}))
        if name == "skips.json":
            place.write_bytes(files.dump_json([3, 4]))
        good = json.loads(place.read_text())
        for _ in range(80):
            mutated = changed(good, rng)
            try:
                data = files.dump_json(mutated)
            except (ValueError, UnicodeEncodeError):
                continue
            if name == "state.json":
                forge(folder, name, data)
            elif name == "manifest.json" and isinstance(mutated, dict):
                mutated.pop("sha256", None)
                place.write_bytes(files.dump_json({**mutated, "sha256": hashlib.sha256(files.dump_json(mutated)).hexdigest()}))
            else:
                place.write_bytes(data)
            read_everything(path)
            if rng.random() < 0.25:
                again = Path(shutil.copytree(path, memory / "again"))
                resumed(again)
                shutil.rmtree(again)

    watched(memory, act, half)


def test_rows_that_lie_are_passed_over(half: Path, memory: Path) -> None:
    path = Path(shutil.copytree(half, memory / "run"))
    lines = ["[" * 100_000, "NaN", "1e999", '{"a": ' * 5000, '"text"', "\x00", "{}", '{"step": "x"}', "9" * 10_000, "\ud800", ""]
    (path / "metrics.jsonl").write_bytes("\n".join(lines).encode("utf-8", "surrogatepass"))
    assert list(RunDirectory(path).rows("metrics.jsonl")) == [{}, {"step": "x"}]


def test_our_own_code_has_no_door_for_code() -> None:
    """No unpickling, no evaluation of text, no loading of arrays with objects, anywhere in the package."""
    modules = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib", "yaml"}
    violations = []
    for path in Path(files.__file__).parents[1].rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, (ast.Import, ast.ImportFrom)) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if {name.split(".")[0] for name in names} & modules:
                violations.append(f"{path.name}:{node.lineno} imports {names}")
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                trusting = any(k.arg == "allow_pickle" and getattr(k.value, "value", True) for k in node.keywords)
                if called in ("eval", "exec", "torch.load") or called.endswith("numpy.load") or trusting:
                    violations.append(f"{path.name}:{node.lineno} calls {called}")
    assert violations == []


def test_many_small_tensors_with_odd_names_are_no_bomb() -> None:
    many = {f"blocks[{number}].gate,{number % 7}": torch.ones(()) for number in range(3000)}
    assert len(tensors.decode(b"".join(tensors.encode(many)))) == 3000
    with pytest.raises(SondeError, match="too many for one file"):
        b"".join(tensors.encode({f"{'x' * 2000}{number}": torch.ones(()) for number in range(2000)}))
