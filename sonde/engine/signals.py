"""Signal handling: a step or a save in progress is always finished before the run stops."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import final

from ..core.errors import Interrupted, Preempted, SondeError


def stop_error(number: int, when: str, run: str, last_good: str, fix: str = "the same command begins again") -> SondeError:
    """The error that ends a run after a signal."""
    kind = Interrupted if number == signal.SIGINT else Preempted
    return kind(f"stopped by {signal.Signals(number).name} {when}", where=run, last_good=last_good, fix=fix)


class Handlers:
    """Context in which SIGTERM, SIGHUP and SIGINT call `on_signal`; abstract.

    Outside the main thread no handler is installed.
    """

    SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)

    def __init__(self) -> None:
        self.signal = 0
        """the last signal"""
        self.previous: dict[int, object] = {}

    def install(self) -> None:
        """Install the handlers and take over a pending signal of earlier ones; signals that the shell ignores stay ignored (nohup)."""
        if threading.current_thread() is threading.main_thread():
            for number in self.SIGNALS:
                before = signal.getsignal(number)
                if before != signal.SIG_IGN:
                    self.previous[number] = signal.signal(number, self.on_signal)
                    owner = getattr(before, "__self__", None)
                    self.signal = self.signal or (owner.signal if isinstance(owner, Handlers) else 0)

    def __exit__(self, *_: object) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        raise NotImplementedError


@final
class StopRequest(Handlers):
    """The signals set a flag, which the loop checks between steps; a second SIGINT ends the process at once."""

    def __enter__(self) -> StopRequest:
        self.install()
        return self

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.signal == signal.SIGINT and number == signal.SIGINT:
            _write(b"\nstopped at once; the last checkpoint is intact\n")
            os._exit(130)
        self.signal = number
        if number == signal.SIGINT:
            _write(b"\nfinishing this step and saving; press Ctrl-C again to stop at once\n")


@final
class StopAtOnce(Handlers):
    """Before the first step and after the last there is nothing to finish: a signal ends the run immediately."""

    def __init__(self, run: str, when: str) -> None:
        super().__init__()
        self.run, self.when = run, when

    def __enter__(self) -> StopAtOnce:
        self.install()
        return self

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        self.signal = number  # an `except Exception` in a user's code may catch the error; the loop still sees this flag
        raise stop_error(number, self.when, self.run, "every checkpoint there is", "the same command continues, or begins again")


def _write(text: bytes) -> None:
    try:
        os.write(2, text)
    except OSError:  # the terminal may be closed
        return
