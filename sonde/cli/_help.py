"""Help texts: one screen each, made from summaries, usage lines and dials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING

from .. import __version__
from ._text import bold, columns, wide

if TYPE_CHECKING:
    from ..core.dials import Dial

CODES = (
    "exit codes: 0 done, 2 bad input, 3 data unusable, 4 no checkpoint, 5 numerical stop, 6 disk, memory or permission, "
    "7 process lost, 8 run busy, 75 or 130 stopped and saved"
)


def overview(commands: Mapping[str, str]) -> str:
    """`sonde --help`."""
    return "\n".join(
        (
            f"{bold('Sonde')} {__version__}: build a network, train it, look inside it.",
            "",
            f"  {bold('sonde')} COMMAND [words] [--options]",
            "",
            columns((bold(name), summary) for name, summary in commands.items()),
            "",
            columns(
                (
                    ("sonde list", "what there is to try"),
                    ("sonde train digits_cnn", "train it; give --run DIR and the same command goes on after a stop"),
                    ("sonde train digits_cnn --help", "the dials of a recipe; your own works too: sonde train ./mine.py"),
                )
            ),
            "",
            "every command has --help, and --debug to show where an error came from",
            wide(CODES),
        )
    )


def of_command(name: str, command: ModuleType, words: Sequence[str]) -> str:
    """`sonde COMMAND --help`; a command whose options depend on a name given has a function `dials(words)`."""
    summary = (command.__doc__ or "").split("\n")[0]
    parts = [summary, "", f"  {bold('sonde ' + name)} {command.USAGE}"]
    if hasattr(command, "dials"):
        owner, about, found = command.dials(words)
        if owner:
            parts += ["", bold(owner) + (f": {about}" if about else ""), options(found) or "  (no dials)"]
    if command.options():
        parts += ["", bold("options"), options({one.name: one for one in command.options()})]
    if command.EXAMPLES:
        parts += ["", bold("examples"), *(f"  {line}" for line in command.EXAMPLES)]
    return "\n".join(parts)


def options(dials: Mapping[str, Dial]) -> str:
    """One line per dial: how it is typed, what it is for, type, range and default."""
    from ._options import flag

    return columns((flag(name), _about(dial)) for name, dial in dials.items())


def _about(dial: Dial) -> str:
    said = _said(dial)
    return f"{dial.help} ({said})" if dial.help and said else dial.help or said


def _said(dial: Dial) -> str:
    """Type, range and default, without what goes without saying: an empty default, the type of a flag."""
    if dial.type is bool:
        return f"on; --no-{dial.name.replace('_', '-')} turns it off" if dial.default is True else ""
    return dial.say().removesuffix(", default None").removesuffix(", default ")
