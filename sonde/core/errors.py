"""Every error a user can meet: what failed, where, the last good state, and what to do; with a fixed exit code."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from . import renamed


class SondeError(Exception):
    """Base of all errors raised on purpose.  `what` is a sentence without a full stop; the other parts may be empty."""

    exit_code = 1
    one_line = False

    def __init__(self, what: str, *, where: str = "", last_good: str = "", fix: str = "") -> None:
        self.what, self.where, self.last_good, self.fix = (clean(part) for part in (what, where, last_good, fix))
        super().__init__(self.render())

    def render(self) -> str:
        """One line for a user's mistake, at most four for a fault: what, where, last good state, what to do."""
        if self.one_line:
            where = f" ({self.where})" if self.where else ""
            return f"{self.what}{where}" + (f"; {self.fix}" if self.fix else "")
        parts = (("", self.what), ("where: ", self.where), ("last good: ", self.last_good), ("to do: ", self.fix))
        return "\n".join(label + text for label, text in parts if text)

    def __reduce__(self):
        return _rebuild, (type(self), self.what, self.where, self.last_good, self.fix)


def _rebuild(cls, what, where, last_good, fix):
    return cls(what, where=where, last_good=last_good, fix=fix)


class BadInput(SondeError, ValueError):
    """A user's mistake: unknown name, wrong type, value out of range."""

    exit_code = 2
    one_line = True


class DataUnusable(SondeError):
    """Data that is missing, damaged, changed since the run began, or does not fit the model."""

    exit_code = 3


class NoCheckpoint(SondeError):
    """A checkpoint was needed and none can be loaded."""

    exit_code = 4


class NumericalStop(SondeError):
    """A loss or gradient that is not finite, or a loss that exploded."""

    exit_code = 5


class ResourceFault(SondeError):
    """Disk, memory or permission."""

    exit_code = 6


class PeerLost(SondeError):
    """A worker process died or hung and the restarts are used up."""

    exit_code = 7


class RunBusy(SondeError):
    """Another process owns the run directory."""

    exit_code = 8


class Preempted(SondeError):
    """SIGTERM or SIGHUP: state saved, the same command continues."""

    exit_code = 75


class Interrupted(SondeError):
    """Ctrl-C: state saved, the same command continues."""

    exit_code = 130


def clean(text: object) -> str:
    """Untrusted text made safe for a terminal: one line, control characters escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))


def nearest(name: str, known: Iterable[str]) -> str:
    """The fix for an unknown name: the new name of a renamed one, else the closest known name, else the list of known names."""
    known = sorted(set(known))
    new = renamed.present(name, known)
    if new is not None:
        return f"'{name}' is now '{new}'"
    close = closest(name, known)
    if close is not None:
        return f"did you mean '{close}'?"
    if not known:
        return "there are none"
    return "choose from " + ", ".join(known[:20]) + (", ..." if len(known) > 20 else "")


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is closest to a misspelled one, or None.

    Dashes before an option are ignored.  Where no name is very close, initials are tried (--learning-rate means --lr), then a
    name that contains the wrong one or is contained in it (cnn means digits_cnn).
    """
    bare = {one.lstrip("-"): one for one in sorted(known)}
    query = str(name).lstrip("-")
    initials = "".join(word[0] for word in re.split("[-_ ]+", query.lower()) if word)
    by_initials = [initials] if len(initials) > 1 and initials in bare else []
    within = [one for one in bare if len(query) > 2 and (query in one or (len(one) > 2 and one in query))]
    close = difflib.get_close_matches(query, bare, 1, 0.8) or by_initials or difflib.get_close_matches(query, bare, 1, 0.6) or within
    return bare[close[0]] if close else None
