"""Summaries of run directories, without torch: options, progress, metrics."""

from __future__ import annotations

import fcntl
import os
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from ..core.errors import SondeError, clean

METRICS = ("test/accuracy", "valid/accuracy", "test/loss", "valid/loss", "loss")
"""metrics that summarize a run, the first that exists is shown"""


@dataclass
class RunSummary:
    """One run, as one row of a table."""

    path: Path
    recipe: str = "-"
    status: str = "-"
    step: int | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    seconds: float | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def main(self) -> str:
        """The metric that summarizes the run, with its name."""
        name = next((name for name in METRICS if name in self.metrics), next(iter(self.metrics), None))
        return "-" if name is None else f"{name} {self.metrics[name]:.4g}"


def folders(home: Path) -> list[Path]:
    """Directories under `home` that hold a run, complete or broken."""
    marks = ("run.json", "metrics.jsonl", "events.jsonl", "checkpoints")
    inside = sorted(path for path in home.iterdir() if path.is_dir()) if home.is_dir() else []
    return [path for path in inside if any(os.path.lexists(path / mark) for mark in marks)]


def summarize(path: Path) -> RunSummary:
    """Read one run directory; whatever is wrong with it becomes its status."""
    try:
        return _read(path)
    except SondeError as error:
        return RunSummary(path, status=f"unreadable: {error.what}")
    except Exception as error:  # one broken run must not break the table of all runs
        return RunSummary(path, status=f"unreadable: {clean(error)[:80]}")


def _read(path: Path) -> RunSummary:
    from .layout import RunDirectory

    folder = RunDirectory(path)
    info, result = folder.info(), _mapping(folder.result())
    last = next(iter(deque(folder.rows("metrics.jsonl"), maxlen=1)), {})
    recipe = _mapping(info.get("recipe"))
    counted = {**_numbers(last), **_numbers(result)}
    step = int(counted.get("steps", counted.get("step", 0)))
    return RunSummary(
        path,
        recipe=str(recipe.get("name") or Path(str(recipe.get("file", "-"))).name),
        status="done" if result.get("status") == "done" else "running" if busy(path) else _stop_status(folder, step),
        step=step,
        metrics=_numbers(result.get("metrics")) or {name: value for name, value in _numbers(last).items() if name in METRICS},
        seconds=_seconds(folder.rows("events.jsonl")),
        options={**_mapping(info.get("options")), "seed": info.get("seed")},
    )


def _stop_status(folder: Any, step: int) -> str:
    """The last step, and the checkpoint from which the run continues."""
    saved = [int(entry.name.removeprefix("step-")) for entry in folder.checkpoints.glob("step-*") if entry.name[5:].isdigit()]
    last = max(saved, default=0)
    return f"stopped at step {step}" if last == step else f"stopped at step {step}, continues from {last}"


def _seconds(events: Iterable[Mapping[str, Any]]) -> float | None:
    """Time at work: from each start or resume to the last sign of life before the next one."""
    total, begin, last = 0.0, None, None
    for row in events:
        at = datetime.fromisoformat(row["time"])
        if row["event"] in ("start", "resume"):
            total, begin = total + _span(begin, last), at
        last = at
    return None if begin is None else total + _span(begin, last)


def _span(begin: datetime | None, end: datetime | None) -> float:
    return 0.0 if begin is None or end is None else max((end - begin).total_seconds(), 0.0)  # a clock may be set back


def busy(path: Path) -> bool:
    """True while a process owns the run directory."""
    try:
        fd = os.open(path / "run.lock", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def differences(seen: Sequence[RunSummary]) -> list[str]:
    """For each run, the options in which the runs of its recipe differ, as text."""
    texts = []
    for one in seen:
        peers = [other.options for other in seen if other.recipe == one.recipe]
        names = [name for name in one.options if any(peer.get(name) != one.options[name] for peer in peers)]
        texts.append(" ".join(f"{name}={one.options[name]}" for name in names))
    return texts


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _numbers(value: Any) -> dict[str, float]:
    return {name: item for name, item in _mapping(value).items() if isinstance(item, (int, float)) and not isinstance(item, bool)}
