"""The door to the disk: every byte written, in the right order; strict JSON; one owner for a run."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sonde.core import files
from sonde.core.errors import DataUnusable, ResourceFault, RunBusy
from sonde.core.files import Disk, Lock, dump_json, parse_json, read_json, replace_file, sha256_file, write_all, write_file


class Recorder(Disk):
    """A disk that notes each call, takes at most `most` bytes a write, and fails the i-th call with a chosen error."""

    def __init__(self, most: int = 1 << 30, fail_at: int = -1, code: int = errno.ENOSPC) -> None:
        self.calls: list[str] = []
        self.most, self.fail_at, self.code = most, fail_at, code

    def note(self, call: str) -> None:
        self.calls.append(call)
        if len(self.calls) - 1 == self.fail_at:
            raise OSError(self.code, os.strerror(self.code))

    def create(self, path: Path) -> int:
        self.note("create")
        return super().create(path)

    def write(self, fd: int, data: Any) -> int:
        self.note("write")
        return super().write(fd, data[: self.most])

    def fsync(self, fd: int) -> None:
        self.note("fsync directory" if stat.S_ISDIR(os.fstat(fd).st_mode) else "fsync file")
        super().fsync(fd)

    def rename(self, old: Path, new: Path) -> None:
        self.note("rename")
        super().rename(old, new)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    disk = Recorder()
    monkeypatch.setattr(files, "disk", disk)
    return disk


# ---------------------------------------------------------------- writing


def test_write_file_tells_size_and_hash(tmp_path: Path) -> None:
    chunks = [b"abc", bytearray(b"defg"), memoryview(np.arange(7.0)), np.arange(6, dtype=np.int16).reshape(2, 3), b"", np.empty((0, 3))]
    whole = b"".join(bytes(chunk) if not isinstance(chunk, np.ndarray) else chunk.tobytes() for chunk in chunks)
    size, digest = write_file(tmp_path / "f", chunks)
    assert (tmp_path / "f").read_bytes() == whole and size == len(whole)
    assert digest == hashlib.sha256(whole).hexdigest() == sha256_file(tmp_path / "f")


@given(st.lists(st.binary(max_size=50), max_size=5), st.integers(1, 7))
def test_short_writes_lose_nothing(tmp_path_factory: pytest.TempPathFactory, chunks: list[bytes], most: int) -> None:
    path = tmp_path_factory.mktemp("short") / "f"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "disk", Recorder(most=most))
        size, digest = write_file(path, chunks)
    assert path.read_bytes() == b"".join(chunks) and size == len(b"".join(chunks))
    assert digest == hashlib.sha256(b"".join(chunks)).hexdigest()


def test_a_disk_that_takes_nothing_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "disk", Recorder(most=0))
    with pytest.raises(OSError, match="took no bytes"):
        write_file(tmp_path / "f", [b"abc"])


def test_a_file_is_never_written_over_or_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for name in ("there", "link"):
        with pytest.raises(FileExistsError):
            write_file(tmp_path / name, [b"new"])
    assert (tmp_path / "there").read_text() == "old" and not (tmp_path / "elsewhere").exists()


def test_replace_syncs_the_file_before_the_rename_and_the_folder_after(tmp_path: Path, recorder: Recorder) -> None:
    replace_file(tmp_path / "f", b"one")
    assert recorder.calls == ["create", "write", "fsync file", "rename", "fsync directory"]
    replace_file(tmp_path / "f", b"two")
    assert (tmp_path / "f").read_bytes() == b"two" and os.listdir(tmp_path) == ["f"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
@pytest.mark.parametrize("call", range(5))
def test_a_fault_at_any_call_leaves_old_or_new_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int, code: int
) -> None:
    (tmp_path / "f").write_bytes(b"old")
    monkeypatch.setattr(files, "disk", Recorder(fail_at=call, code=code))
    with pytest.raises(OSError) as caught:
        replace_file(tmp_path / "f", b"new")
    assert caught.value.errno == code and os.listdir(tmp_path) == ["f"]
    assert (tmp_path / "f").read_bytes() == (b"new" if call == 4 else b"old")


def test_write_all_takes_any_buffer() -> None:
    reader, writer = os.pipe()
    write_all(writer, np.arange(3, dtype=np.uint16))
    os.close(writer)
    assert os.read(reader, 100) == np.arange(3, dtype=np.uint16).tobytes()
    os.close(reader)


def test_remove_quietly_takes_files_folders_and_nothing(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "inside").touch()
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "f").touch()
    for name in ("link", "folder", "nothing"):
        files.remove_quietly(tmp_path / name)
    assert os.listdir(tmp_path) == ["kept"] and os.listdir(tmp_path / "kept") == ["inside"]


# ---------------------------------------------------------------- JSON

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(VALUES)
def test_json_round_trip_is_canonical(value: Any) -> None:
    data = dump_json(value)
    assert parse_json(data) == value == json.loads(data)
    assert dump_json(parse_json(data)) == data and data.endswith(b"\n")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b'{"a": 1, "a": 2}',
        b'{"b": {"a": 1, "a": 1}}',
        b"NaN",
        b"[Infinity]",
        b"[-Infinity]",
        b"[1e999]",
        b"[-1e999]",
        b"\xff\xfe",
        b'"\xed\xa0\x80"',
        b"[1] trailing",
        b"{'a': 1}",
        b"[" * 34 + b"]" * 34,
        b'{"a":' * 100_000,
        b"[" * 100_000,
        b"1" * 5000,
    ],
    ids=lambda data: repr(data[:20]),
)
def test_odd_json_is_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(ValueError):
        parse_json(data)
    (tmp_path / "run.json").write_bytes(data)
    with pytest.raises(DataUnusable) as caught:
        read_json(tmp_path / "run.json")
    assert "run.json" in caught.value.what and caught.value.fix


def test_depth_is_counted_from_the_top() -> None:
    deepest = b"[" * files.JSON_DEPTH + b"1" + b"]" * files.JSON_DEPTH
    assert parse_json(deepest) is not None
    with pytest.raises(ValueError, match="nested deeper"):
        parse_json(b"[" + deepest + b"]")


@given(st.binary())
def test_any_bytes_are_json_or_value_error(data: bytes) -> None:
    try:
        value = parse_json(data)
    except ValueError:
        return
    assert not isinstance(value, float) or math.isfinite(value)


def test_missing_large_and_unreadable_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "big.json").write_bytes(b" " * 200 + b"1")
    for path, text in ((tmp_path / "none.json", "none.json"), (tmp_path, tmp_path.name), (tmp_path / "big.json", "larger than 100 bytes")):
        with pytest.raises(DataUnusable) as caught:
            read_json(path, limit=100 if path.name == "big.json" else 1 << 20)
        assert text in str(caught.value) and str(path) in caught.value.where
    assert read_json(tmp_path / "big.json") == 1


def test_numbers_that_are_not_finite_are_never_written() -> None:
    with pytest.raises(ValueError):
        dump_json({"loss": float("nan")})


# ---------------------------------------------------------------- the lock

HOLDER = """
import sys
from pathlib import Path
from sonde.core.files import Lock
lock = Lock(Path(sys.argv[1]), "sonde train x")
{more}
print("held", flush=True)
sys.stdin.read()
"""


def hold(path: Path, more: str = "") -> subprocess.Popen:
    """A process that owns the lock until its input is closed."""
    command = [sys.executable, "-c", HOLDER.format(more=more), str(path)]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    return holder


def end(holder: subprocess.Popen) -> None:
    holder.kill()
    holder.communicate()


def test_a_second_process_is_refused_and_told_who_owns_the_run(tmp_path: Path) -> None:
    holder = hold(tmp_path / "run.lock")
    try:
        with pytest.raises(RunBusy) as caught:
            Lock(tmp_path / "run.lock", "second")
        assert f"pid {holder.pid} on " in caught.value.where and "sonde train x" in caught.value.where
        assert caught.value.last_good and caught.value.fix
        assert f"pid {holder.pid}" in (tmp_path / "run.lock").read_text(), "the refused process changed the owner's note"
    finally:
        end(holder)


def test_a_killed_owner_frees_the_lock_even_while_its_child_lives(tmp_path: Path) -> None:
    more = "import os, signal\nchild = os.fork()\nif child == 0:\n    signal.pause()\nprint(child, flush=True)"
    command = [sys.executable, "-c", HOLDER.format(more=more), str(tmp_path / "run.lock")]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    child = int(holder.stdout.readline())
    try:
        assert holder.stdout.readline() == "held\n"
        holder.send_signal(signal.SIGKILL)
        assert holder.wait() == -signal.SIGKILL
        os.kill(child, 0)  # the child is still there
        Lock(tmp_path / "run.lock", "next").release()
    finally:
        os.kill(child, signal.SIGKILL)
        end(holder)


def test_release_lets_the_next_one_in(tmp_path: Path) -> None:
    lock = Lock(tmp_path / "run.lock", "first")
    lock.release()
    lock.release()  # twice is harmless
    end(hold(tmp_path / "run.lock"))


@pytest.mark.parametrize("case", ["no folder", "a link", "a folder", "a full disk"])
def test_a_lock_that_cannot_be_made_is_a_resource_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    path = tmp_path / "run.lock"
    if case == "a full disk":

        def full(*_: Any) -> int:
            raise OSError(errno.ENOSPC, "no room")

        monkeypatch.setattr(os, "pwrite", full)
    elif case == "no folder":
        path = tmp_path / "nothing" / "run.lock"
    elif case == "a link":
        path.symlink_to(tmp_path / "elsewhere")
    else:
        path.mkdir()
    before = set(os.listdir("/dev/fd"))
    with pytest.raises(ResourceFault) as caught:
        Lock(path, "x")
    assert str(path.parent) == caught.value.where and caught.value.last_good and caught.value.fix
    assert len(os.listdir("/dev/fd")) == len(before)
