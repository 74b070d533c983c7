"""A signature is the whole configuration system: options are read off a function's keyword arguments.

    def recipe(width: Annotated[int, Range(1, 4096)] = 32, lr: Annotated[float, Range(above=0)] = 1e-3) -> Recipe:
        '''A small CNN.

        Args:
            width: channels of the first convolution
        '''

One `Option` knows its type, default, range and help text.  The command line, the Python interface, sweeps, `run.json`
and the lab all parse and check through it, so a wrong value gets the same answer everywhere.
"""

from __future__ import annotations

import functools
import inspect
import math
import re
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from .errors import BadInput, closest, nearest

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Range:
    """Bounds of a number: `least <= value <= most`, or `above < value < below`."""

    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None

    def holds(self, value: float) -> bool:
        return (
            (self.least is None or value >= self.least)
            and (self.most is None or value <= self.most)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        signs = ((">=", self.least), (">", self.above), ("<=", self.most), ("<", self.below))
        return " and ".join(f"{sign} {number(bound)}" for sign, bound in signs if bound is not None)

    def brief(self) -> str:
        """For a help page: '1 to 4,096'; an upper bound of 1e9 or more is left out."""
        if self.least is None or self.most is None or self.above is not None or self.below is not None:
            return str(self)
        return f">= {number(self.least)}" if self.most >= 1e9 else f"{number(self.least)} to {number(self.most)}"


Count = Annotated[int, Range(least=1)]
"""a number of items, at least one"""
Share = Annotated[float, Range(least=0, most=1)]
"""a fraction or a probability"""


def number(value: float) -> str:
    """A number for a message: whole numbers with separators for thousands."""
    return f"{int(value):,}" if float(value).is_integer() and abs(value) < 1e15 else f"{value:g}"


@dataclass(frozen=True)
class Option:
    """One keyword argument of a recipe (or of a model's constructor)."""

    name: str
    type: Any
    default: Any
    range: Range | None = None
    help: str = ""
    owner: str = ""
    noun: str = "option"
    """what errors call it: an option that a user types, or an argument of a constructor"""

    @property
    def is_required(self) -> bool:
        return self.default is inspect.Parameter.empty

    @property
    def many(self) -> bool:
        """True where the option takes several values, such as `--widths 64 64`."""
        return _many(_without_none(self.type))

    def parse(self, words: Sequence[str]) -> Any:
        """A value from command-line words."""
        kind = _without_none(self.type)
        if not self.many and len(words) != 1:
            raise self._error(" ".join(words), "takes one value" if words else "needs a value")
        if _optional(self.type) and len(words) == 1 and words[0].lower() == "none":
            return self.check(None)
        if self.many:
            return self.check(tuple(_parse(word, item) for word, item in zip(words, self._kinds(words))))
        return self.check(_parse(words[0], kind))

    def check(self, value: Any) -> Any:
        """The value in its own type, or an error that names option, value, type and range."""
        if value is None and _optional(self.type):
            return None
        kind = _without_none(self.type)
        if not self.many:
            return self._one(value, kind)
        if not isinstance(value, (list, tuple)):
            count = _count(kind)
            raise self._error(value, f"must be a list of {_describe(_item(kind))}" if count is None else f"takes {count} values")
        return tuple(self._one(one, item) for one, item in zip(value, self._kinds(value)))

    def _kinds(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """The kind of each of several values: one for all, or one each for a `tuple[int, int]`."""
        kind = _without_none(self.type)
        count = _count(kind)
        if count is None:
            return (_item(kind),) * len(values)
        if count != len(values):
            raise self._error(values, f"takes {count} values")
        return get_args(kind)

    def _one(self, value: Any, kind: Any) -> Any:
        value = _convert(value, kind)
        if not _matches(value, kind):
            close = closest(value, map(str, choices(kind))) if isinstance(value, str) else None
            raise self._error(value, f"must be {_describe(kind)}", "" if close is None else f"did you mean '{close}'?")
        if isinstance(value, float) and not math.isfinite(value):
            raise self._error(value, "must be a finite number")
        if isinstance(value, int) and abs(value) >= 2**63:
            raise self._error(value, "is too large for a whole number")
        if self.range is not None and isinstance(value, (int, float)) and not self.range.holds(value):
            raise self._error(value, f"must be {self.range}")
        return value

    def _error(self, value: Any, why: str, fix: str = "") -> BadInput:
        try:
            shown = repr(value)
        except ValueError:  # Python refuses to print integers with thousands of digits
            shown = "a number too long to show"
        shown = shown if len(shown) <= 60 else shown[:57] + "..."
        owner = f" of {self.owner}" if self.owner else ""
        typed = self.noun == "option"
        return BadInput(
            f"{self.noun} '{self.name}'{owner} {why}, not {shown}",
            fix=fix or (f"add --help to the command for the options of {self.owner}" if self.owner and typed else ""),
        )

    def json_schema(self) -> dict[str, Any]:
        """The JSON schema of a value of this option."""
        kind = _without_none(self.type)
        schema = self._many_schema(kind) if self.many else _schema(kind, self.range)
        if _optional(self.type):
            schema = {"anyOf": [schema, {"type": "null"}]} if schema else {}
        if self.help:
            schema["description"] = self.help
        if not self.is_required:
            schema["default"] = list(self.default) if isinstance(self.default, tuple) else _json(self.default)
        return schema

    def _many_schema(self, kind: Any) -> dict[str, Any]:
        inside = get_args(kind)
        if get_origin(kind) is tuple and inside and inside[-1] is not ...:
            items = [_schema(one, self.range) for one in inside]
            return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
        return {"type": "array", "items": _schema(_item(kind), self.range)}

    def describe(self) -> str:
        """Type, range and default in a few words, for help texts."""
        kind = _describe(_item(_without_none(self.type)) if self.many else _without_none(self.type))
        parts = [kind + (" ..." if self.many else "")]
        if self.range is not None:
            parts.append(str(self.range))
        if not self.is_required:
            default = self.default
            shown = " ".join(map(str, default)) if isinstance(default, (tuple, list)) else default
            parts.append(f"default {shown}")
        return ", ".join(parts)


def options_of(function: Callable, owner: str = "", skip: Sequence[str] = ()) -> dict[str, Option]:
    """The options of a function: its keyword arguments with type, default, range and help text."""
    target: Any = function.__init__ if inspect.isclass(function) else function
    try:
        hints, extras = get_type_hints(target), get_type_hints(target, include_extras=True)
    except (NameError, AttributeError, TypeError, SyntaxError) as error:
        message = f"{owner or getattr(function, '__name__', 'a recipe')} has an annotation that cannot be read: {error}"
        raise BadInput(message, fix="import the type at the top of the file") from error
    helps = help_texts(inspect.getdoc(function) or "")
    by_name = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if name in skip or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        kind, bounds = hints.get(name, Any), find_range(extras.get(name))
        if kind is Any and parameter.default is not parameter.empty and parameter.default is not None:
            kind = type(parameter.default)
        by_name[name] = Option(name, kind, parameter.default, bounds, helps.get(name, ""), owner)
    return by_name


def checked(function: F) -> F:
    """Check the arguments of a function or constructor by their annotations, before it runs.

        class Dropout(nn.Module):
            @checked
            def __init__(self, rate: Annotated[float, Range(0, below=1)] = 0.1) -> None: ...

    Every argument whose annotation holds a `Range` or a `Literal` is checked against it, with the error messages of the
    command line, and converted to its type: 1 becomes 1.0 for a float.  Other arguments are passed on unchanged.
    A dataclass is decorated itself: `@checked` above `@dataclass`.
    """
    if inspect.isclass(function):
        function.__init__ = checked(function.__init__)  # type: ignore[method-assign]
        return function
    signature = inspect.signature(function)
    names = list(signature.parameters)

    @functools.wraps(function)
    def check_and_call(*positional: Any, **keywords: Any) -> Any:
        values = list(positional)
        for name, option in constrained_arguments(function, function.__qualname__.removesuffix(".__init__")).items():
            index = names.index(name)
            if name in keywords:
                keywords[name] = option.check(keywords[name])
            elif index < len(values) and signature.parameters[name].kind is not inspect.Parameter.KEYWORD_ONLY:
                values[index] = option.check(values[index])
        return function(*values, **keywords)

    return cast(F, check_and_call)


@functools.cache
def constrained_arguments(function: Callable, owner: str) -> dict[str, Option]:
    """Arguments of a function or constructor whose annotation holds a `Range` or a `Literal`."""
    options = options_of(function, owner)
    return {name: replace(option, noun="argument") for name, option in options.items() if option.range or choices(option.type)}


def json_schema(options: Mapping[str, Option], title: str = "", description: str = "") -> dict[str, Any]:
    """A JSON schema (draft 2020-12) of an object with these options: for a form or another program."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title,
        "description": description,
        "type": "object",
        "properties": {name: option.json_schema() for name, option in options.items()},
        "required": [name for name, option in options.items() if option.is_required],
        "additionalProperties": False,
    }


def resolve(function: Callable, values: Mapping[str, Any], owner: str) -> dict[str, Any]:
    """All options of a function with the given values checked and the rest at their defaults."""
    known = options_of(function, owner)
    check_names(values, known, owner)
    missing = [name for name, option in known.items() if option.is_required and name not in values]
    if missing:
        raise BadInput(f"{owner} needs the option '{missing[0]}'", fix=f"add --{missing[0].replace('_', '-')} VALUE (see --help)")
    return {name: option.check(values[name]) if name in values else option.default for name, option in known.items()}


def check_values(known: Mapping[str, Option], values: Mapping[str, Any], owner: str) -> dict[str, Any]:
    """The given values, each checked by its option."""
    check_names(values, known, owner)
    return {name: known[name].check(value) for name, value in values.items()}


def check_names(names: Iterable[str], known: Iterable[str], owner: str, noun: str = "option") -> None:
    """Refuse an unknown name and suggest the closest known one."""
    known = list(known)
    for name in names:
        if name not in known:
            raise BadInput(f"{owner} has no {noun} '{name}'", fix=nearest(name, known))


def help_texts(doc: str) -> dict[str, str]:
    """The entries `name: text` of a docstring's `Args:`; a line that is indented further continues the entry above."""
    texts: dict[str, str] = {}
    last, inside = "", False
    for line in doc.split("\n"):
        if line and not line.startswith(" "):
            inside, last = line.strip() in ("Args:", "Attributes:"), ""
        elif inside and (match := re.match(r" {4}([A-Za-z_][A-Za-z0-9_]*): +(\S.*)$", line)):
            last = match.group(1)
            texts[last] = match.group(2).strip()
        elif last and line.strip():
            texts[last] += " " + line.strip()
    return texts


def _parse(word: str, kind: Any) -> Any:
    """A word converted to a type; a word that cannot be converted stays as it is, and `check` refuses it."""
    if kind in (int, float):
        for number in (int, float):
            try:
                return _convert(number(word), kind)
            except ValueError:
                continue
    if kind is bool:
        return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}.get(word.lower(), word)
    if get_origin(kind) is Literal:
        return next((choice for choice in get_args(kind) if str(choice) == word), word)
    if _union(kind):
        values = ((_convert(_parse(word, option), option), option) for option in get_args(kind))
        return next((value for value, option in values if _matches(value, option)), word)
    return word


def _convert(value: Any, kind: Any) -> Any:
    """A value converted to a type where nothing is lost: 1 to 1.0, 1e4 to 10000, text to a path."""
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value) if abs(value) < 2**1023 else math.inf
    if kind is int and isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)  # 1e4 is a natural way to write a step count
    if kind is Path and isinstance(value, str) and value and "\0" not in value:
        return Path(value)
    if _union(kind) and not _matches(value, kind):
        values = ((_convert(value, option), option) for option in get_args(kind))
        return next((new for new, option in values if _matches(new, option)), value)
    return value


def find_range(hint: Any) -> Range | None:
    """The first Range in an annotation, at any depth: `Annotated[int, Range(1)] | None` has one too."""
    if isinstance(hint, Range):
        return hint
    inside = (*get_args(hint), *getattr(hint, "__metadata__", ()))
    return next((bounds for bounds in map(find_range, inside) if bounds is not None), None)


def _union(kind: Any) -> bool:
    return get_origin(kind) in (Union, types.UnionType)


def choices(kind: Any) -> tuple[Any, ...]:
    """The values that a kind names with `Literal`, at any depth."""
    return get_args(kind) if get_origin(kind) is Literal else tuple(choice for part in get_args(kind) for choice in choices(part))


def _optional(kind: Any) -> bool:
    return kind is type(None) or (_union(kind) and type(None) in get_args(kind))


def _without_none(kind: Any) -> Any:
    if _union(kind):
        rest = tuple(option for option in get_args(kind) if option is not type(None))
        return rest[0] if len(rest) == 1 else Union[rest]  # noqa: UP007
    return kind


def _many(kind: Any) -> bool:
    return get_origin(kind) in (tuple, list, Sequence) or kind in (tuple, list)


def _count(kind: Any) -> int | None:
    """How many values a kind such as `tuple[int, int]` has; None where the number is free."""
    inside = get_args(kind)
    return None if get_origin(kind) is not tuple or inside[-1:] == (...,) else len(inside)


def _item(kind: Any) -> Any:
    inside = get_args(kind)
    return inside[0] if inside else Any


def _matches(value: Any, kind: Any) -> bool:
    if kind is Any:
        return True
    if get_origin(kind) is Literal:
        return any(type(value) is type(choice) and value == choice for choice in get_args(kind))
    if _union(kind):
        return any(_matches(value, option) for option in get_args(kind))
    if kind in (int, float):
        return isinstance(value, kind) and not isinstance(value, bool)
    origin = get_origin(kind) or kind
    return isinstance(value, origin) if isinstance(origin, type) else True


def _schema(kind: Any, bounds: Range | None = None) -> dict[str, Any]:
    """The JSON schema of one value; {} where anything goes."""
    if get_origin(kind) is Literal:
        return {"enum": list(get_args(kind))}
    if _union(kind):
        return {"anyOf": [_schema(option, bounds) for option in get_args(kind)]}
    names = {int: "integer", float: "number", bool: "boolean", str: "string", Path: "string"}
    schema: dict[str, Any] = {"type": names[kind]} if kind in names else {}
    if kind is Path:
        schema |= {"format": "path", "minLength": 1}
    if bounds is not None and kind in (int, float):
        words = {"minimum": bounds.least, "maximum": bounds.most, "exclusiveMinimum": bounds.above, "exclusiveMaximum": bounds.below}
        schema |= {word: bound for word, bound in words.items() if bound is not None}
    return schema


def _json(value: Any) -> Any:
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def _describe(kind: Any) -> str:
    if get_origin(kind) is Literal:
        listed = get_args(kind)
        return ("one of " if len(listed) > 1 else "") + ", ".join(map(str, listed))
    if _union(kind):
        return " or ".join(_describe(option) for option in get_args(kind))
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text", Path: "a path", Any: "any value"}
    return names.get(kind, getattr(kind, "__name__", str(kind)))
