"""Child processes that leave nothing behind: each runs in a group of its own, and whatever escapes is found and killed."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

_children: list[subprocess.Popen] = []


def run(command: list[str], environment: dict[str, str], folder: Path, line: Callable[[str], None] = len) -> tuple[int, str]:
    """Run a program in a process group of its own and end what it leaves there: exit code and output, which `line` sees as it comes.

    The output goes to a file: a process that outlives the program would keep a pipe open for ever.
    """
    with tempfile.NamedTemporaryFile("w+", encoding="utf-8", errors="replace", prefix="sonde-matrix-") as out:
        child = subprocess.Popen(command, env=environment, cwd=folder, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
        _children.append(child)
        try:
            with open(out.name, encoding="utf-8", errors="replace") as seen:
                ended = False
                while not ended:
                    try:
                        ended = child.wait(0.3) is not None
                    except subprocess.TimeoutExpired:
                        pass
                    for text in seen:
                        line(text)
        finally:
            end(child)
            _children.remove(child)
        out.seek(0)
        return child.returncode, out.read()


def end(child: subprocess.Popen) -> None:
    """Kill a child with its group."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def end_all() -> None:
    """Kill every child with its group, and whatever else is below this process."""
    for child in list(_children):
        end(child)
    sweep()


def adopt() -> None:
    """Become the parent of every descendant that loses its own (Linux), so that `sweep` finds it."""
    if sys.platform == "linux":
        subreaper = 36  # PR_SET_CHILD_SUBREAPER
        ctypes.CDLL(None, use_errno=True).prctl(subreaper, 1, 0, 0, 0)


def sweep() -> None:
    """End every process that is still below this one, whatever session it made for itself."""
    with suppress(OSError):
        while left := descendants():
            for process in left:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass


def descendants() -> list[int]:
    """Living processes below this one, from /proc."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # The name in brackets may hold anything; state and parent follow it.
            state, parent = entry.read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                parents[int(entry.parent.name)] = int(parent)
    below, children = {os.getpid()}, True
    while children:
        children = {process for process, parent in parents.items() if parent in below} - below
        below |= children
    return sorted(below - {os.getpid()})
