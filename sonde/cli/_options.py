"""Words of a command line -> checked values.  Options of a command and of a recipe are both `Option`s and are parsed alike.

    --name value    --name=value    --several 1 2 3    --flag    --no-flag    --long-name for long_name

Nothing is guessed: an unknown, repeated or empty option and an extra word are errors that suggest the nearest option.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..core.errors import BadInput, nearest
from ..core.options import Option, Range


def option(name: str, kind: Any, default: Any, help: str, bounds: Range | None = None) -> Option:
    """Declare one option of a command."""
    return Option(name, kind, default, bounds, help)


def by_name(options: Sequence[Option], owner: str) -> dict[str, Option]:
    """Options of a command by name; errors show them as they are typed, --name."""
    return {one.name: replace(one, name=flag(one.name), owner=owner) for one in options}


def flag(name: str) -> str:
    """An option as it is typed: --long-name for long_name."""
    return "--" + name.replace("_", "-")


def take_names(words: Sequence[str], known: Mapping[str, Option], max_words: int = 1) -> tuple[list[str], list[str]]:
    """Up to `max_words` plain words from the front, and the remaining words.

    These words decide which options exist, so the search ends at the first unknown option.
    """
    plain: list[str] = []
    rest: list[str] = []
    start = 0
    for token in _tokens(words, known):
        if len(plain) == max_words or (token.typed and token.name is None):
            break
        if token.typed:
            rest += words[start : token.stop]
        else:
            plain += token.values
        start = token.stop
    return plain, rest + list(words[start:])


def parse(words: Sequence[str], known: Mapping[str, Option], owner: str, max_words: int = 0) -> tuple[list[str], dict[str, Any]]:
    """Plain words (at most `max_words`) and the values of the options that were given."""
    plain: list[str] = []
    flags: dict[str, Any] = {}
    for token in _tokens(words, known):
        if not token.typed:
            plain += token.values
            if len(plain) > max_words:
                raise BadInput(f"unexpected argument {show(plain[-1])} for {owner}", fix="write options as --name value")
        elif token.name is None:
            raise BadInput(f"{owner} has no option {show(token.typed)}", fix=nearest(token.typed, map(flag, known)))
        elif token.name in flags:
            raise BadInput(f"{owner} was given {flag(token.name)} twice", fix="give it once")
        else:
            flags[token.name] = _value(token, known[token.name], owner)
    return plain, flags


def show(word: str) -> str:
    """A word from the command line in quotes, shortened where it is long."""
    return f"'{word}'" if len(word) <= 60 else f"'{word[:57]}...'"


def usable(path: Path, what: str) -> Path:
    """The path itself, or an error if it is too long for a file system or has control characters."""
    if not str(path).isprintable():
        raise BadInput(f"{what} must be a path without control characters, not {show(str(path))}", fix="give another path")
    if len(os.fsencode(path)) > 4000 or any(len(os.fsencode(part)) > 255 for part in path.parts):
        raise BadInput(f"{what} must be a shorter path, not {show(str(path))}", fix="give a shorter path")
    return path


@dataclass(frozen=True)
class _Token:
    """A plain word (`typed` is empty) or an option with its values; `name` is None for an unknown option."""

    typed: str
    name: str | None
    values: list[str]
    stop: int
    """position of the next word"""
    bare: bool = False
    """a flag without a value"""


def _tokens(words: Sequence[str], known: Mapping[str, Option]) -> Iterator[_Token]:
    at = 0
    while at < len(words):
        word, at = words[at], at + 1
        if not _is_option(word):
            yield _Token("", None, [word], at)
            continue
        typed, equals, text = word.partition("=")
        name = _find(typed, known)
        if equals:
            yield _Token(typed, name, [text], at)
        elif name is None or known[name].type is bool:
            yield _Token(typed, name, [], at, bare=True)
        else:
            end = len(words) if known[name].many else at + 1
            stop = at
            while stop < min(end, len(words)) and not _is_option(words[stop]):
                stop += 1
            yield _Token(typed, name, list(words[at:stop]), stop)
            at = stop


def _is_option(word: str) -> bool:
    """Whether a word starts with a dash and is not a number such as -1e-3."""
    if len(word) < 2 or word[0] != "-":
        return False
    try:
        float(word)
    except ValueError:
        return True
    return False


def _find(typed: str, known: Mapping[str, Option]) -> str | None:
    name = typed.removeprefix("--").replace("-", "_") if typed.startswith("--") else ""
    if name in known:
        return name
    name = name.removeprefix("no_")
    return name if name in known and known[name].type is bool else None


def _value(token: _Token, option: Option, owner: str) -> Any:
    if option.type is bool:
        positive = flag(token.name or "").replace("_", "-") == token.typed.replace("_", "-")
        if token.bare:
            return positive
        if not positive:
            raise BadInput(f"{token.typed} of {owner} takes no value", fix=f"write {token.typed} alone")
    if not token.values:
        raise BadInput(
            f"{token.typed} of {owner} needs a value",
            fix=f"it takes {option.describe()}" + (f"; {token.typed}= means none" if option.many else ""),
        )
    value = option.parse([] if option.many and token.values == [""] else token.values)  # `--widths=` is the empty list
    return usable(value, f"{token.typed} of {owner}") if isinstance(value, Path) else value
