"""The run directory: the request, the history and the results of a run.

run.json        the request: recipe and its options, seed, options of the run, versions, data hashes; written once, atomically
metrics.jsonl   one row per logged step, deterministic; cut back to the checkpoint on resume, so never a duplicate
events.jsonl    what happened and when: starts, resumes, checkpoints, warnings; the only file with clock times
result.json     the final metrics, written when the run is done
checkpoints/    see checkpoints.py
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..core import files, renamed
from ..core.errors import BadInput, DataUnusable, ResourceFault, RunBusy, nearest
from .clock import now

FORMAT = 2
PARTS = {"recipe": dict, "options": dict, "seed": int, "run_options": dict, "fingerprint": dict, "data": dict}
"""what run.json must hold besides its format"""
ROOT = Path("runs")


class RunDirectory:
    """Paths and files of one run.  `open_for_writing` takes the lock; reading needs none."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.checkpoints = self.path / "checkpoints"
        self.lock: files.Lock | None = None

    @property
    def exists(self) -> bool:
        return os.path.isfile(self.path / "run.json")  # False, where Path.is_file may raise, for a path that cannot be

    def info(self) -> dict[str, Any]:
        """run.json, checked for its format."""
        info = files.read_json(self.path / "run.json")
        if not isinstance(info, dict) or type(info.get("format")) is not int:
            raise DataUnusable("run.json is not the record of a run", where=str(self.path), fix="choose another run")
        info = renamed.record(info)
        if info["format"] != FORMAT:
            age = "a newer" if info["format"] > FORMAT else "an older"
            raise BadInput(
                f"run '{self.path.name}' was made by {age} version of Sonde (format {info['format']})",
                fix=f"this version reads formats 1 to {FORMAT}",
            )
        for part, kind in PARTS.items():
            if not isinstance(info.get(part), kind):
                raise DataUnusable(f"run.json has no valid '{part}'", where=str(self.path), fix="choose another run")
        for split, about in info["data"].items():
            if not isinstance(about, dict) or type(about.get("n")) is not int or not isinstance(about.get("sha256"), str):
                raise DataUnusable(f"run.json has no valid record of the data '{split}'", where=str(self.path), fix="choose another run")
        return info

    def result(self) -> dict[str, Any]:
        path = self.path / "result.json"
        result = renamed.result(files.read_json(path) if os.path.isfile(path) else {})
        metrics = result.get("metrics", {}) if isinstance(result, dict) else None
        if not isinstance(metrics, dict) or not all(value is None or type(value) in (int, float) for value in metrics.values()):
            raise DataUnusable("result.json is not the result of a run", where=str(path), fix="remove it, and the run finishes again")
        return result

    @property
    def is_done(self) -> bool:
        return self.result().get("status") == "done"

    def open_for_writing(self) -> None:
        """Create the directory if needed, take the lock and prove that it can be written; ResourceFault says why not."""
        try:
            files.make_folder(self.path)
            self.lock = files.Lock(self.path / "run.lock", f"since {now()}")
            files.make_folder(self.checkpoints)
            for leftover in self.path.glob(".tmp-*"):
                files.remove_quietly(leftover)
            probe = self.path / ".tmp-probe"
            files.write_file(probe, [b"x"])
            files.disk.unlink(probe)
        except RunBusy:
            raise
        except OSError as error:
            self.close()
            raise ResourceFault(
                f"the run directory cannot be written: {error.strerror or error}",
                where=str(self.path),
                last_good="nothing was changed",
                fix="give a directory with write permission and free space: --run DIR",
            ) from error

    def close(self) -> None:
        if self.lock is not None:
            self.lock.release()
            self.lock = None

    def write(self, name: str, value: Any) -> None:
        """A JSON file of the run, replaced atomically."""
        try:
            files.replace_file(self.path / name, files.dump_json(value))
        except OSError as error:
            raise ResourceFault(
                f"{name} cannot be written: {error.strerror or error}", where=str(self.path), fix="free some disk space, then run again"
            ) from error

    def rows(self, name: str) -> Iterator[dict[str, Any]]:
        """Rows of a .jsonl file; a torn last line, left by a kill, is skipped."""
        path = self.path / name
        if not path.is_file():
            return
        with open(path, encoding="utf-8", errors="replace") as file:
            for line in file:
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError):
                    continue
                if isinstance(row, dict):
                    yield renamed.event(row)


def fresh(name: str, root: Path | None = None) -> Path:
    """The next free directory `runs/NAME-001`."""
    root = ROOT if root is None else root
    stem = re.sub(r"[^A-Za-z0-9_.-]", "_", name)
    used = [int(m.group(1)) for entry in root.glob(f"{stem}-*") if (m := re.fullmatch(re.escape(stem) + r"-(\d+)", entry.name))]
    return root / f"{stem}-{max(used, default=0) + 1:03d}"


def find(text: str | Path) -> RunDirectory:
    """A run by its path, or by its name under runs/."""
    for path in (Path(text), ROOT / text):
        run = RunDirectory(path)
        if run.exists:
            return run
    known = [entry.parent.name for entry in ROOT.glob("*/run.json")]
    raise BadInput(
        f"no run '{text}'",
        where=f"looked for run.json there and under {ROOT}/",
        fix=nearest(str(text), known) if known else "train one first: sonde train NAME",
    )


def latest() -> RunDirectory:
    """The run that was written to last, by its newest event."""
    runs = [RunDirectory(entry.parent) for entry in ROOT.glob("*/run.json")]
    if not runs:
        raise BadInput("there is no run to resume", where=f"under {ROOT}/", fix="start one with: sonde train NAME")
    return max(runs, key=lambda run: (run.path / "events.jsonl").stat().st_mtime if (run.path / "events.jsonl").exists() else 0.0)
