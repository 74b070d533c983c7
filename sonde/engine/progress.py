"""The progress display of a run, and the only code that reads the wall clock.

Rate and time left come from the last few seconds, not from the mean since the start, so a slow first epoch or a
resume does not spoil the estimate.  On a terminal one line is redrawn; elsewhere a plain line is printed now and then.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_silenced: ContextVar[bool] = ContextVar("silenced", default=False)


def span(seconds: float) -> str:
    """Seconds as people write them: 4.2 s, 3 min 05 s, 2 h 10 min."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def print_line(text: str) -> None:
    """Print a line; a closed terminal must not stop a run."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        return


@contextmanager
def silence(quiet: bool) -> Iterator[None]:
    """With quiet, hide every progress display inside, also that of a recipe that fits word vectors and does not know of --quiet."""
    before = _silenced.set(quiet or _silenced.get())
    try:
        yield
    finally:
        _silenced.reset(before)


class Pace:
    """Steps per second over a moving window."""

    def __init__(self, window: float = 10.0) -> None:
        self.window = window
        self.marks: deque[tuple[float, int]] = deque()

    def mark(self, step: int, at: float | None = None) -> None:
        at = time.monotonic() if at is None else at
        self.marks.append((at, step))
        while len(self.marks) > 2 and at - self.marks[0][0] > self.window:
            self.marks.popleft()

    @property
    def rate(self) -> float:
        if len(self.marks) < 2:
            return 0.0
        (t0, s0), (t1, s1) = self.marks[0], self.marks[-1]
        return (s1 - s0) / (t1 - t0) if t1 > t0 else 0.0

    def left(self, steps: int) -> float | None:
        """Seconds until `steps`, or None while nothing is known."""
        return (steps - self.marks[-1][1]) / self.rate if self.rate else None


class Progress:
    """A live line for a loop of known length; `tick` is cheap enough to call at every step."""

    def __init__(self, title: str, steps: int, start: int = 0, unit: str = "step", quiet: bool = False) -> None:
        self.title, self.steps, self.start, self.unit, self.quiet = title, steps, start, unit, quiet or _silenced.get()
        self.live = not self.quiet and sys.stderr.isatty()
        self.pace = Pace()
        self.pace.mark(start)
        self.metrics: dict[str, float] = {}
        self.interval = 0.2 if self.live else 10.0
        self.due = time.monotonic() + (0.2 if self.live else 3.0)
        self.display: Any = None

    def __enter__(self) -> Progress:
        if self.live:
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn
            from rich.progress import Progress as Bar

            columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), TextColumn("{task.fields[text]}"))
            self.display = Bar(*columns, console=Console(stderr=True), auto_refresh=False, transient=True)
            self.task = self.display.add_task(self.title, total=self.steps, completed=self.start, text="")
            self.display.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.display is not None:
            with self._on_terminal():
                self.display.stop()

    @contextmanager
    def _on_terminal(self) -> Iterator[None]:
        """Drawing on a terminal that was closed ends the drawing, not the run."""
        try:
            yield
        except OSError:
            self.display, self.quiet = None, True

    def note(self, metrics: Mapping[str, float]) -> None:
        """Metrics to show next to the bar."""
        left_out = ("step", "epoch", "phase", "lr", "grad_norm")
        self.metrics.update({name: value for name, value in metrics.items() if name not in left_out})

    def tick(self, step: int) -> None:
        if self.quiet:
            return
        at = time.monotonic()
        if at < self.due:
            return
        self.due = at + self.interval
        self.pace.mark(step, at)
        if self.display is not None:
            with self._on_terminal():
                self.display.update(self.task, completed=step, text=self.line(step))
                self.display.refresh()
        else:
            print_line(f"{self.title}  {self.line(step)}")

    def line(self, step: int) -> str:
        left = self.pace.left(self.steps)
        parts = [f"{self.unit} {step:,}/{self.steps:,}", f"{self.pace.rate:,.1f}/s" if self.pace.rate else ""]
        parts.append(f"{span(left)} left" if left is not None else "")
        parts += [f"{name} {value:.4g}" for name, value in list(self.metrics.items())[:4]]
        return "  ".join(part for part in parts if part)

    def say(self, text: str) -> None:
        """A line above the bar."""
        if self.quiet:
            return
        if self.display is not None:
            with self._on_terminal():
                self.display.console.print(text, markup=False, highlight=False)
        else:
            print_line(text)
