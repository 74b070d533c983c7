"""A name on the command line -> the thing it names, with the options it can be given."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core import registry
from ..core.errors import BadInput, nearest
from ..core.options import Option, options_of
from ._options import flag, show, usable


@dataclass(frozen=True)
class Named:
    """Something with options: a recipe, a model, a lens."""

    target: str
    """what the engine is given: a name in a registry, or the path of a file"""
    owner: str
    make: Callable[..., Any]
    options: dict[str, Option]

    @property
    def summary(self) -> str:
        return (inspect.getdoc(self.make) or "").split("\n")[0]


def needed(words: Sequence[str], command: str, *registries: str) -> str:
    """The first word, or an error that lists what could stand there."""
    if not words:
        kinds = " or ".join(name.removesuffix("s") for name in registries)
        raise BadInput(
            f"{command} needs the name of a {kinds}", fix=nearest("", [one for name in registries for one in registry.names(name)])
        )
    return words[0]


def merged(own: Mapping[str, Option], thing: Named) -> dict[str, Option]:
    """Options of a command and options of what it works on; a name that means both is refused."""
    for name in own.keys() & thing.options.keys():
        raise BadInput(f"{thing.owner} has an option '{name}', and {flag(name)} already is an option", fix="give the option another name")
    return {**own, **thing.options}


def recipe(name: str) -> Named:
    """A recipe in the registry or in a user's file."""
    if name.endswith(".py"):
        path = usable(Path(name), "FILE.py")
        module, owner = registry.load_file(path), f"recipe '{path.stem}'"
    else:
        module, owner = registry.load("recipes", name), f"recipe '{name}'"
    make = getattr(module, "recipe", None)
    if not callable(make):
        raise BadInput(f"{show(name)} defines no function 'recipe'", fix="write: def recipe(...) -> Recipe")
    return Named(name, owner, make, options_of(make, owner, skip=("seed",)))


def model(name: str) -> Named:
    """A model of the library: the network in its file that has the file's name."""
    module = registry.load("models", name)
    kinds = {kind.__name__.lower(): kind for kind in vars(module).values() if inspect.isclass(kind) and kind.__module__ == module.__name__}
    make = kinds.get(name.replace("_", ""))
    if make is None:
        raise BadInput(f"models/{name}.py has no class of its name", fix=nearest(name, kinds))
    return Named(name, f"model '{name}'", make, options_of(make, f"model '{name}'"))


def lens(name: str) -> Named:
    """A lens in the registry."""
    read = registry.load("lenses", name).read
    return Named(name, f"lens '{name}'", read, options_of(read, f"lens '{name}'", skip=("subject",)))
