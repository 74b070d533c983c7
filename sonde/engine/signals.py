"""Signals ask, the loop obeys: a step or a save in progress is always finished first."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType


class StopRequest:
    """Context in which SIGTERM, SIGHUP and SIGINT set a flag; a second SIGINT ends the process at once.

    In a thread that is not the main one nothing is installed and nothing is asked.
    """

    SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)

    def __init__(self) -> None:
        self.signal = 0
        self.previous: dict[int, object] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            for number in self.SIGNALS:
                self.previous[number] = signal.signal(number, self._asked)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _asked(self, number: int, frame: FrameType | None) -> None:
        if self.signal == signal.SIGINT and number == signal.SIGINT:
            _say(b"\nstopped at once; the last checkpoint is intact\n")
            os._exit(130)
        self.signal = number
        if number == signal.SIGINT:
            _say(b"\nfinishing this step and saving; press Ctrl-C again to stop at once\n")


def _say(text: bytes) -> None:
    try:
        os.write(2, text)
    except OSError:  # the terminal may be the very thing that is gone
        return
