"""Files of well-known data sets: taken from a data folder, else downloaded, and always checked by their hash.

Folders searched, in this order: $SONDE_DATA, ./data, the cache ($XDG_CACHE_HOME/sonde or ~/.cache/sonde).
"""

from __future__ import annotations

import hashlib
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from http.client import HTTPException
from pathlib import Path
from typing import Any

from ..core.errors import BadInput, DataUnusable, ResourceFault
from ..core.files import disk, remove_quietly, write_file

TIMEOUT = 30
BLOCK = 1 << 16


def cache() -> Path:
    """Where downloads go."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sonde"


def roots() -> list[Path]:
    """Folders that may hold data, in the order of the search."""
    named = os.environ.get("SONDE_DATA")
    if named and not Path(named).is_dir():
        raise BadInput(f"SONDE_DATA names '{named}', which is not a folder", fix="set it to a folder of data sets or unset it")
    return [*([Path(named)] if named else []), Path("data"), cache()]


def find(*names: str) -> Path | None:
    """The first of these files or folders that exists in any root; all names are tried in one root before the next."""
    for root in roots():
        for name in names:
            if (root / name).exists():
                return root / name
    return None


def check_hash(data: bytes, sha256: str, path: Path) -> bytes:
    """Return the bytes if their hash is the known one."""
    got = hashlib.sha256(data).hexdigest()
    if got != sha256:
        raise DataUnusable(
            f"'{path.name}' is not the file it should be: {len(data)} bytes with sha256 {got[:16]}... instead of {sha256[:16]}...",
            where=str(path),
            fix="remove this file; it is then downloaded again, or put a good copy there",
        )
    return data


def download(mirrors: tuple[str, ...], path: Path, size: int, check: Callable[[Path], Any]) -> Path:
    """Download a file to `path`: written under a temporary name, checked, renamed.

    Args:
        mirrors: addresses before the file name, tried in this order
        size: largest number of bytes to accept
        check: raises DataUnusable for a wrong file
    """
    failures = []
    for mirror in mirrors:
        url, temporary = mirror + path.name, path.with_name(f".tmp-{os.getpid()}-{path.name}")  # keeps its suffix for `check`
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            remove_quietly(temporary)
            write_file(temporary, _blocks(url, size))
            check(temporary)
            disk.rename(temporary, path)
            disk.fsync_directory(path.parent)
            return path
        except DataUnusable as error:
            failures.append(f"{url}: {error.what}")
        except OSError as error:
            raise ResourceFault(
                f"'{path.name}' cannot be written: {error.strerror or error}",
                where=str(path.parent),
                fix="free some disk space or set XDG_CACHE_HOME to another folder",
            ) from error
        finally:
            remove_quietly(temporary)
    raise DataUnusable(
        f"'{path.name}' is not on this machine and cannot be downloaded",
        where="; ".join(failures),
        fix=f"get {path.name} from one of these addresses and put it at {path} (or in the folder {path.parent.name} of $SONDE_DATA)",
    )


def _blocks(url: str, limit: int) -> Iterator[bytes]:
    """The body of a response in blocks, with a progress bar; any network error is DataUnusable."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT) as answer, Progress(*columns, console=Console(stderr=True)) as bar:
            content_length = answer.headers.get("Content-Length", "")
            total = int(content_length) if content_length.isdigit() else None
            task, got = bar.add_task(url.rsplit("/", 1)[1], total=total), 0
            while block := answer.read(BLOCK):
                got += len(block)
                if got > limit:
                    raise DataUnusable(f"more than {limit} bytes received")
                bar.advance(task, len(block))
                yield block
            if total is not None and got != total:
                raise DataUnusable(f"{got} of {total} bytes received")
    except (urllib.error.URLError, HTTPException, OSError, ValueError) as error:
        raise DataUnusable(f"{getattr(error, 'reason', None) or error}") from error
