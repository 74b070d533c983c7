"""The command `sonde`: finds the file of a subcommand, runs it, and turns every error into a message and an exit code.

A command is a file in `commands/`: its first docstring line is its summary, `POSITION` its position in the list of commands, `USAGE`,
`EXAMPLES` and `options()` are its help, and `run(words) -> exit code` does the work.  Only the file of the command that runs is imported.
"""

from __future__ import annotations

import errno
import math
import os
import sys
from collections.abc import Sequence

from .. import __version__
from ..core import registry
from ..core.errors import Interrupted, ResourceFault, SondeError, clean

REGISTRY = "cli.commands"

DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
NOT_PERMITTED = {errno.EACCES, errno.EPERM, errno.EROFS}
OUT_OF_MEMORY = ("can't allocate memory", "out of memory", "not enough memory")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit code and never raises."""
    words = [str(word) for word in (sys.argv[1:] if argv is None else argv)]
    # Read by OpenMP when torch is loaded.  By default its threads spin for a millisecond while they wait for each other;
    # on a busy machine a spinning thread blocks the core that the other one needs (docs/lab-book.md).
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")
    debug = "--debug" in words
    try:
        if hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(errors="backslashreplace")  # a terminal that cannot encode a name must not cause a crash
        code = _dispatch([word for word in words if word != "--debug"])
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader is gone (`sonde list | head -1`): print nothing, and keep the interpreter from flushing again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except BaseException as error:  # not every error is an Exception: a panic in compiled code is not
        fault = _fault(error)
        if debug:
            import traceback

            traceback.print_exception(error)
        print(f"error: {fault.render()}", file=sys.stderr)
        return fault.exit_code


def _dispatch(words: list[str]) -> int:
    from . import _help

    if not words or words[0] in ("-h", "--help", "help"):
        print(_help.overview(commands()))
        return 0
    if words[0] in ("-V", "--version"):
        print(f"sonde {__version__}")
        return 0
    command = registry.load(REGISTRY, words[0])
    if any(word in ("-h", "--help") for word in words[1:]):
        print(_help.of_command(words[0], command, [word for word in words[1:] if word not in ("-h", "--help")]))
        return 0
    if "--schema" in words[1:]:
        print(_help.schema(words[0], command, [word for word in words[1:] if word != "--schema"]))
        return 0
    return command.run(words[1:])


def commands() -> dict[str, str]:
    """Every command with its summary, read by parsing; `POSITION` orders them, a command without one comes last."""
    names = sorted(registry.names(REGISTRY), key=lambda name: registry.constant(REGISTRY, name, "POSITION") or math.inf)
    return {name: registry.summary(REGISTRY, name) for name in names}


def _fault(error: BaseException) -> SondeError:
    """The error itself if it is a SondeError, else a SondeError that describes it."""
    if isinstance(error, SondeError):
        return error
    if isinstance(error, KeyboardInterrupt):
        return Interrupted("interrupted")
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and any(text in str(error) for text in OUT_OF_MEMORY)):
        return ResourceFault("memory ran out", where=_first_line(error), fix="use a smaller batch or model, or fewer --processes")
    if isinstance(error, OSError) and error.errno in DISK_FULL | NOT_PERMITTED:
        fix = "free some space there" if error.errno in DISK_FULL else "choose a directory you can write to, or change its permissions"
        return ResourceFault(str(error.strerror).lower(), where=str(error.filename or ""), fix=fix)
    text = f"{type(error).__name__}: {_first_line(error)}".removesuffix(": ")
    return SondeError(f"internal error: {text}; run again with --debug to see where")


def _first_line(error: BaseException) -> str:
    text = str(error).strip().split("\n")[0]
    return clean(text if len(text) <= 300 else text[:297] + "...")
