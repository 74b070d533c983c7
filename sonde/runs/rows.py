"""Rows of a run: append-only JSON lines that a kill or a full disk never tears."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..core import files
from ..core.errors import DataUnusable, ResourceFault


class Log:
    """An append-only file of JSON rows.  Each row leaves the process at once; `sync` puts them on the disk.

    Rows that a full disk refuses wait in memory and are tried again with the next one, so a run loses none of them
    if room is made, and a checkpoint is never newer than the rows it speaks of.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        """bytes that are whole rows"""
        self.waiting = b""
        self.torn = False
        """whether the file ends with part of a row that the disk took before it refused the rest"""
        self.fd: int | None = None

    def open(self, size: int | None) -> None:
        """Continue after `size` bytes and drop rows that a killed process wrote later; None keeps all of them."""
        try:
            self._open(size)
        except OSError as error:
            self.close()
            raise self._fault(error) from error

    def _open(self, size: int | None) -> None:
        self.fd = files.disk.open_append(self.path)
        files.disk.fsync_directory(self.path.parent)  # a new file is only as safe as its name
        there = os.fstat(self.fd).st_size
        if size is not None and there < size:
            self.close()
            raise DataUnusable(
                f"{self.path.name} has {there} bytes; the checkpoint knows of {size}",
                where=str(self.path),
                last_good="the checkpoint itself is good",
                fix="restore the file, or start again with another --run",
            )
        if size is None:
            size = whole_rows(self.path)
        if there > size:
            files.disk.truncate(self.path, size)
        self.size = size

    def add(self, row: Mapping[str, Any]) -> bool:
        """One row; False where the disk did not take it yet."""
        self.waiting += (json.dumps({name: _plain(value) for name, value in row.items()}, allow_nan=False) + "\n").encode()
        try:
            self._flush()
        except OSError:
            return False
        return True

    def _flush(self) -> None:
        assert self.fd is not None
        if not self.waiting:
            return
        if self.torn:  # a half-written row must not glue itself to the next one
            files.disk.truncate(self.path, self.size)
        self.torn = True
        files.write_all(self.fd, self.waiting)
        self.torn = False
        self.size += len(self.waiting)
        self.waiting = b""

    def flush(self) -> None:
        """All rows with the system, or ResourceFault."""
        try:
            self._flush()
        except OSError as error:
            raise self._fault(error) from error

    def sync(self) -> None:
        """All rows on the disk, or ResourceFault."""
        self.flush()
        self.fsync()

    def fsync(self) -> None:
        """All rows that were flushed on the disk, or ResourceFault.  Another thread may call it."""
        try:
            if self.fd is not None:
                files.disk.fsync(self.fd)
        except OSError as error:
            raise self._fault(error) from error

    def _fault(self, error: OSError) -> ResourceFault:
        return ResourceFault(
            f"{self.path.name} cannot be written: {error.strerror or error}",
            where=str(self.path),
            last_good=f"{self.size} bytes of whole rows",
            fix="free some disk space; the rows are kept in memory and tried again",
        )

    def close(self) -> None:
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None


def whole_rows(path: Path) -> int:
    """Bytes up to and including the last newline: what follows is a row torn by a kill."""
    with open(path, "rb") as file:
        file.seek(0, os.SEEK_END)
        size = file.tell()
        step = min(size, 1 << 16)
        file.seek(size - step)
        return size - step + file.read(step).rfind(b"\n") + 1


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
