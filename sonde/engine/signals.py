"""Signal handling (SIGTERM, SIGHUP, Ctrl-C): a training step or a checkpoint in progress is always finished before the run stops."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import final

from ..core.errors import Interrupted, Preempted, SondeError


def stop_error(number: int, when: str, run: str, last_good: str, fix: str) -> SondeError:
    """The error that ends a run after a signal.

    Args:
        number: of the signal
        when: end of the sentence 'stopped by SIGTERM ...', such as 'after step 10 of 100'
        run: path of the run directory
        last_good: what is safely on disk
        fix: what the user can do next
    """
    kind = Interrupted if number == signal.SIGINT else Preempted
    return kind(f"stopped by {signal.Signals(number).name} {when}", where=run, last_good=last_good, fix=fix)


class Handlers:
    """Abstract context manager: inside it SIGTERM, SIGHUP and SIGINT call `on_signal`; on exit the earlier handlers return.

    Python allows handlers in the main thread only; in any other thread nothing is installed.
    """

    SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)

    def __init__(self) -> None:
        self.signal = 0
        """number of the last signal; 0 if there was none"""
        self.previous: dict[int, object] = {}

    def install(self) -> None:
        """Install the handlers.  A signal received by an enclosing `Handlers` is copied; an ignored one (nohup) stays ignored."""
        if threading.current_thread() is threading.main_thread():
            for number in self.SIGNALS:
                current = signal.getsignal(number)
                if current != signal.SIG_IGN:
                    self.previous[number] = signal.signal(number, self.on_signal)
                    owner = getattr(current, "__self__", None)
                    self.signal = self.signal or (owner.signal if isinstance(owner, Handlers) else 0)

    def __exit__(self, *_: object) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        raise NotImplementedError


@final
class StopRequest(Handlers):
    """For the training loop: a signal sets a flag, which the loop checks between steps; a second Ctrl-C ends the process at once."""

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
    """For the time before the first step and after the last, when nothing has to be finished: a signal raises an error at once."""

    def __init__(self, run: str, when: str) -> None:
        super().__init__()
        self.run, self.when = run, when

    def __enter__(self) -> StopAtOnce:
        self.install()
        return self

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        self.signal = number  # if user code swallows the error (`except Exception`), the loop still sees this flag
        raise stop_error(number, self.when, self.run, "all checkpoints saved so far", "run the same command again")


def _write(text: bytes) -> None:
    """Write to standard error; print() is not safe in a signal handler."""
    try:
        os.write(2, text)
    except OSError:  # the terminal may be closed
        return
