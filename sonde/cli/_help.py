"""Help texts, one screen each, from summaries, usage lines and options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING

from .. import __version__
from ..report.terminal import bold, columns, wide

if TYPE_CHECKING:
    from ..core.options import Option

CODES = (
    "exit codes: 0 done, 2 bad input, 3 data unusable, 4 no checkpoint, 5 numerical stop, 6 disk, memory or permission, "
    "7 process lost, 8 run busy, 75 or 130 stopped and saved"
)

WORDS = {"a whole number": "N", "a number": "X", "text": "TEXT", "a path": "PATH"}
MAX_CHOICES = 18
"""characters of the choices of an option up to which they stand beside its name; more stand in its description"""


def overview(commands: Mapping[str, str]) -> str:
    """`sonde --help`."""
    return "\n".join(
        (
            f"{bold('Sonde')} {__version__}: build a network, train it, look inside it.",
            f"  {bold('sonde')} COMMAND [arguments] [--options]",
            "",
            columns((bold(name), summary) for name, summary in commands.items()),
            "",
            columns(
                (
                    ("sonde list", "what there is to try"),
                    ("sonde train digits_cnn", "train it; give --run DIR and the same command continues after a stop"),
                    ("sonde train digits_cnn --help", "the options of a recipe; your own works too: sonde train ./mine.py"),
                )
            ),
            "",
            "every command has --help, --schema (its options as JSON) and --debug (where an error came from)",
            wide(CODES),
        )
    )


def of_command(name: str, command: ModuleType, words: Sequence[str]) -> str:
    """`sonde COMMAND --help`.  Where the options depend on a name, the command defines `describe_target(words)`."""
    parts = [(command.__doc__ or "").split("\n")[0], "", f"  {bold('sonde ' + name)} {command.USAGE}"]
    thing = command.describe_target(list(words)) if hasattr(command, "describe_target") else None
    if thing is not None:
        parts += ["", bold(thing.owner) + (f": {thing.summary}" if thing.summary else ""), options(thing.options) or "  no options"]
        parts += ["", f"and the options of `sonde {name} --help`"] if command.options() else []
        return "\n".join(parts)
    if command.options():
        parts += ["", bold("options"), options({one.name: one for one in command.options()})]
    if command.EXAMPLES:
        parts += ["", bold("examples"), *(f"  {line}" for line in command.EXAMPLES)]
    return "\n".join(parts)


def schema(name: str, command: ModuleType, words: Sequence[str]) -> str:
    """`sonde COMMAND NAME --schema`: the options of NAME, or of the command itself, as a JSON schema."""
    import json

    from ..core.options import json_schema

    thing = command.describe_target(list(words)) if hasattr(command, "describe_target") else None
    if thing is not None:
        return json.dumps(json_schema(thing.options, thing.owner, thing.summary), indent=2)
    own = {one.name: one for one in command.options()}
    return json.dumps(json_schema(own, f"sonde {name}", (command.__doc__ or "").split("\n")[0]), indent=2)


def options(options: Mapping[str, Option]) -> str:
    """One entry per option: how it is typed, what it is for, range and default."""
    return columns((_signature(name, option), _describe(option)) for name, option in options.items())


def _signature(name: str, option: Option) -> str:
    """`--lr X`, `--widths N ...`, `--way up|down`, `--flag`; for a flag that is on by default also `--no-flag`."""
    from dataclasses import replace
    from inspect import Parameter

    from ..core.options import choices
    from ._options import flag

    if option.type is bool:
        return f"{flag(name)}, {flag(f'no_{name}')}" if option.default is True else flag(name)
    kind = replace(option, range=None, default=Parameter.empty).describe().removesuffix(" ...")
    kind, names = kind.removeprefix("one of "), ", ".join(map(str, choices(option.type)))
    word = WORDS.get(kind, "VALUE")
    if kind == names:
        word = names.replace(", ", "|") if len(names) <= MAX_CHOICES else "WORD"
    return f"{flag(name)} {word}" + (" ..." if option.many else "")


def _describe(option: Option) -> str:
    """Help text, range and default; an empty default is left out."""
    from ..core.options import choices

    facts = [] if option.range is None else [option.range.brief()]
    names = ", ".join(map(str, choices(option.type)))
    if len(names) > MAX_CHOICES and not all(str(name) in option.help for name in choices(option.type)):
        facts.insert(0, f"one of {names}")
    if option.is_required:
        facts.append("required")
    elif option.type is not bool and option.default not in (None, (), ""):
        several = isinstance(option.default, (tuple, list))
        facts.append("default " + (" ".join(map(str, option.default)) if several else _value(option.default)))
    elif option.default is True:
        facts.append("default on")
    details = f"({', '.join(facts)})" if facts else ""
    return f"{option.help} {details}".strip()


def _value(default: object) -> str:
    return f"{default:,}" if type(default) is int else str(default)
