"""Segments on the disk: files named by the hash of what they hold, shared by all checkpoints of a run.

    checkpoints/segments/3f/3fa9...c1      written once, never changed, removed when no checkpoint lists it

A segment is on the disk before the manifest that lists it; a crash in between leaves a file that nothing refers to, which the next
clean-up removes.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..core import files

FOLDER = "segments"
NAME = re.compile(r"[0-9a-f]{64}")


def path_of(checkpoints: Path, name: str) -> Path:
    return checkpoints / FOLDER / name[:2] / name


def write(checkpoints: Path, name: str, chunks: Iterable[Any]) -> int:
    """Put a segment on the disk unless it is there; returns the bytes written."""
    path = path_of(checkpoints, name)
    if path.exists():
        return 0
    files.make_folder(path.parent)
    aside = path.with_name(f".tmp-{name[:12]}-{os.getpid()}-{secrets.token_hex(4)}")
    try:
        size, digest = files.write_file(aside, chunks)
        if digest != name:
            raise OSError(errno.EIO, f"segment {name[:12]} changed while it was written")
        files.disk.rename(aside, path)
    except BaseException:
        files.remove_quietly(aside)
        raise
    files.disk.fsync_directory(path.parent)
    return size


def read(checkpoints: Path, name: str) -> bytes:
    """The bytes of a segment; ValueError or OSError where they are not those that its name is the hash of."""
    path = path_of(checkpoints, name)
    data = files.read_file(path, path.lstat().st_size)
    if hashlib.sha256(data).hexdigest() != name:
        raise ValueError(f"segment {name[:12]} does not match its checksum")
    return data


def collect(checkpoints: Path, listed: set[str]) -> None:
    """Remove segments that no checkpoint lists, and what an interrupted write left behind."""
    folder = checkpoints / FOLDER
    for path in folder.glob("*/*") if folder.is_dir() else ():
        if path.name not in listed:
            files.remove_quietly(path)
