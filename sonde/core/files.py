"""All writes to disk of anything that a run must not lose.

Every write, sync and rename of a run goes through the object `disk`.  Tests swap it for one that counts calls, fails
the i-th with a chosen error, kills the process there, or records the order of operations for the crash-state model.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import math
import os
import shutil
import socket
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .errors import DataUnusable, ResourceFault, RunBusy

JSON_LIMIT = 16 << 20
JSON_DEPTH = 32


class Disk:
    """The system calls a save is made of, one method each."""

    def create(self, path: Path) -> int:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)

    def open_append(self, path: Path) -> int:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)

    def write(self, fd: int, data: Any) -> int:
        return os.write(fd, data)

    def fsync(self, fd: int) -> None:
        os.fsync(fd)

    def fsync_directory(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self.fsync(fd)
        finally:
            os.close(fd)

    def close(self, fd: int) -> None:
        os.close(fd)

    def mkdir(self, path: Path) -> None:
        os.mkdir(path)

    def rename(self, old: Path, new: Path) -> None:
        os.rename(old, new)

    def truncate(self, path: Path, size: int) -> None:
        os.truncate(path, size)

    def unlink(self, path: Path) -> None:
        os.unlink(path)

    def remove_tree(self, path: Path) -> None:
        shutil.rmtree(path)

    def free_bytes(self, path: Path) -> int:
        return shutil.disk_usage(path).free


disk = Disk()


def write_all(fd: int, data: Any) -> None:
    """Write every byte; a short write is continued, a write of zero bytes is an error."""
    view = memoryview(data)
    view = view.cast("B") if view.nbytes else memoryview(b"")  # an array with no entries cannot be cast
    while len(view):
        done = disk.write(fd, view[: 1 << 24])
        if done <= 0:
            raise OSError(5, "the disk took no bytes")
        view = view[done:]


def write_file(path: Path, chunks: Iterable[Any]) -> tuple[int, str]:
    """Create a file, write the chunks, sync it; return (size, sha256)."""
    digest, size = hashlib.sha256(), 0
    fd = disk.create(path)
    try:
        for chunk in chunks:
            digest.update(chunk)
            size += memoryview(chunk).nbytes
            write_all(fd, chunk)
        disk.fsync(fd)
    finally:
        disk.close(fd)
    return size, digest.hexdigest()


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file atomically (temporary file, fsync, rename): readers see the old content or the new, never a mixture."""
    aside = path.with_name(f".tmp-{path.name}-{os.getpid()}")
    remove_quietly(aside)
    try:
        write_file(aside, [data])
        disk.rename(aside, path)
        disk.fsync_directory(path.parent)
    except BaseException:
        remove_quietly(aside)
        raise


def make_folder(path: Path) -> None:
    """Create a directory and its parents, each synced into its parent; an existing one is left as it is."""
    if path.is_dir():
        return
    make_folder(path.parent)
    try:
        disk.mkdir(path)
    except FileExistsError:  # another process was faster
        if not path.is_dir():
            raise
    try:
        disk.fsync_directory(path.parent)
    except PermissionError:  # a folder that may be written but not listed cannot be opened, so it cannot be synced
        return


def remove_quietly(path: Path) -> None:
    """Remove a file or directory if it exists; errors are ignored."""
    try:
        if path.is_dir() and not path.is_symlink():
            disk.remove_tree(path)
        else:
            disk.unlink(path)
    except OSError:
        return


def dump_json(value: Any) -> bytes:
    """Canonical JSON: sorted keys, no NaN literal."""
    return (json.dumps(value, sort_keys=True, allow_nan=False, indent=1) + "\n").encode()


def read_json(path: Path, limit: int = JSON_LIMIT) -> Any:
    """JSON with a size cap, a depth cap, no duplicate keys and no NaN; any fault is DataUnusable naming the file."""
    try:
        return parse_json(read_file(path, limit))
    except (OSError, ValueError) as error:
        raise DataUnusable(f"{path.name} cannot be read: {error}", where=str(path), fix="restore the file or use another run") from error


def read_file(path: Path, limit: int) -> bytes:
    """All bytes of an ordinary file of at most `limit` bytes; OSError for anything else: a pipe blocks, a device never ends."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode):
            raise OSError(errno.EINVAL, "it is not an ordinary file")
        try:
            data = file.read(min(limit, about.st_size) + 1)
        except MemoryError as error:
            raise OSError(errno.ENOMEM, f"it does not fit into memory with its {about.st_size} bytes") from error
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"it is larger than {limit} bytes")
    return data


def parse_json(data: bytes) -> Any:
    """Strict JSON from bytes; raises ValueError on anything odd."""

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        mapping = dict(items)
        if len(mapping) != len(items):
            raise ValueError("a key occurs twice")
        return mapping

    def constant(word: str) -> Any:
        raise ValueError(f"{word} is not allowed")

    def number(word: str) -> float:
        value = float(word)
        if math.isinf(value):
            raise ValueError(f"{word[:20]} is too large for a number")
        return value

    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=pairs, parse_constant=constant, parse_float=number)
    except RecursionError:
        raise ValueError(f"nested deeper than {JSON_DEPTH}") from None
    _check_depth(value, JSON_DEPTH)
    return value


def _check_depth(value: Any, levels: int) -> None:
    if levels < 0:
        raise ValueError(f"nested deeper than {JSON_DEPTH}")
    if isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            _check_depth(item, levels - 1)


def sha256_file(path: Path) -> str:
    """Hash of a file, read in blocks."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


class Lock:
    """Owner of a run directory for the life of the process.

    `lockf`, not `flock`: it is released when the owner is killed even if forked children live on.  The file must never
    be opened elsewhere in this process, or the lock is lost.
    """

    def __init__(self, path: Path, owner: str) -> None:
        self.path = path
        self.fd: int | None = None
        try:
            self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
            self._take(self.fd)
            os.ftruncate(self.fd, 0)
            os.pwrite(self.fd, f"pid {os.getpid()} on {socket.gethostname()}, {owner}\n".encode(), 0)
        except OSError as error:
            self.release()
            raise ResourceFault(
                f"the run directory cannot be locked: {error.strerror}",
                where=str(path.parent),
                last_good="nothing was changed",
                fix="use a folder you may write to, on a local file system with free space",
            ) from error
        except RunBusy:
            self.release()
            raise

    def _take(self, fd: int) -> None:
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:
            holder = os.pread(fd, 300, 0).decode("utf-8", "replace").strip()
            raise RunBusy(
                "another process is using this run directory",
                where=f"{self.path.parent} ({holder})" if holder else str(self.path.parent),
                last_good="nothing was changed",
                fix="wait for it, stop it, or choose another --run",
            ) from error

    def release(self) -> None:
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None
