"""A name on the command line -> the recipe, model, mixer or lens of that name, with its options."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ..core import registry, signatures
from ..core.errors import BadInput
from ..core.options import Option, options_of
from ._options import flag, usable


@dataclass(frozen=True)
class Named:
    """Something with options: a recipe, a model, a mixer, a lens.  Its options are known without importing its file."""

    target: str
    """a name in a registry, or the path of a file"""
    owner: str
    summary: str
    options: dict[str, Option]
    load: Callable[[], Callable[..., Any]]
    """imports the function or class itself"""


def describe(target: str, owner: str, path: Path, function: str, load: Callable[[], Callable[..., Any]], skip: Sequence[str] = ()) -> Named:
    """What a file defines: read from its source text where possible, else imported."""
    read = signatures.read_signature(path, function, owner, skip)
    if read is not None:
        return Named(target, owner, read.summary, read.options, load)
    make = load()
    return Named(target, owner, (inspect.getdoc(make) or "").split("\n")[0], options_of(make, owner, skip), lambda: make)


def first_name(words: Sequence[str], command: str, *registries: str) -> str:
    """The first word, or an error that says which names are possible."""
    if not words:
        kinds = " or ".join(name.removesuffix("s") for name in registries)
        raise BadInput(f"{command} needs the name of a {kinds}", fix=f"`sonde list {registries[0]}` shows them")
    return words[0]


def merge_options(own: Mapping[str, Option], thing: Named) -> dict[str, Option]:
    """Options of a command and of what it works on; a name that both use is refused."""
    for name in own.keys() & thing.options.keys():
        raise BadInput(
            f"{thing.owner} has an option '{name}', and {flag(name)} is already an option of the command",
            fix="rename the option in your file",
        )
    return {**own, **thing.options}


def recipe(name: str) -> Named:
    """A recipe in the registry or in a user's file."""
    owner = f"recipe '{registry.label(check_name(name))}'"
    load = partial(registry.function_of, "recipes", name, "recipe", "def recipe(...) -> Recipe")
    return describe(name, owner, registry.path_of("recipes", name), "recipe", load, skip=("seed",))


def model(name: str) -> Named:
    """A model in the registry or in a user's file: the class named like the file."""

    def load() -> type:
        from torch import nn

        return registry.class_of("models", name, nn.Module)

    return _class("models", name, load)


def mixer(name: str) -> Named:
    """A mixer in the registry or in a user's file."""

    def load() -> type:
        from ..nn.mixers import Mixer

        return registry.class_of("nn.mixers", name, Mixer)

    return _class("nn.mixers", name, load)


def _class(kind: str, name: str, load: Callable[[], type]) -> Named:
    label = registry.label(check_name(name))
    path = registry.path_of(kind, name)
    matching = [one for one in signatures.classes(path) if one.lower() == label.replace("_", "").lower()]
    return describe(name, f"{registry.kind_of(kind)} '{label}'", path, matching[0] if len(matching) == 1 else "tiny()", load)


def lens(name: str) -> Named:
    """A lens in the registry or in a user's file."""
    owner, write = f"lens '{registry.label(check_name(name))}'", "def read(subject: Subject) -> Reading"
    load = partial(registry.function_of, "lenses", name, "read", write)
    if registry.is_file(name) and next(iter(inspect.signature(load()).parameters), "") != "subject":
        raise BadInput(f"the first argument of 'read' of {owner} is not 'subject'", fix=f"write: {write}")
    return describe(name, owner, registry.path_of("lenses", name), "read", load, skip=("subject",))


def check_name(name: str) -> str:
    """The name of a plug-in; a path is checked to be a possible file name."""
    return str(usable(Path(name), "FILE.py")) if registry.is_file(name) else name
