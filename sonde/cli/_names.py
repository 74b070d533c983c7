"""A name on the command line -> the thing it names, with the options it can be given."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core import registry, signatures
from ..core.errors import BadInput, nearest
from ..core.options import Option, options_of
from ._options import flag, show, usable


@dataclass(frozen=True)
class Named:
    """Something with options: a recipe, a model, a lens.  Its file is imported when it is made, not to know its options."""

    target: str
    """what the engine is given: a name in a registry, or the path of a file"""
    owner: str
    summary: str
    options: dict[str, Option]
    load: Callable[[], Callable[..., Any]]
    """imports the function or class itself"""


def named(target: str, owner: str, place: Path, function: str, load: Callable[[], Callable[..., Any]], skip: Sequence[str] = ()) -> Named:
    """What a file defines: read from its text where that says enough, else imported."""
    read = signatures.declared(place, function, owner, skip)
    if read is not None:
        return Named(target, owner, read.summary, read.options, load)
    make = load()
    return Named(target, owner, (inspect.getdoc(make) or "").split("\n")[0], options_of(make, owner, skip), lambda: make)


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
    path = usable(Path(name), "FILE.py") if name.endswith(".py") else registry.folder("recipes") / f"{registry.check('recipes', name)}.py"

    def load() -> Callable[..., Any]:
        make = getattr(registry.load_file(path) if name.endswith(".py") else registry.load("recipes", name), "recipe", None)
        if not callable(make):
            raise BadInput(f"{show(name)} defines no function 'recipe'", fix="write: def recipe(...) -> Recipe")
        return make

    return named(name, f"recipe '{path.stem}'", path, "recipe", load, skip=("seed",))


def model(name: str) -> Named:
    """A model of the library: the network in its file that has the file's name."""
    path = registry.folder("models") / f"{registry.check('models', name)}.py"

    def load() -> Callable[..., Any]:
        module = registry.load("models", name)
        kinds = {one.__name__.lower(): one for one in vars(module).values() if inspect.isclass(one) and one.__module__ == module.__name__}
        make = kinds.get(name.replace("_", ""))
        if make is None:
            raise BadInput(f"models/{name}.py has no class of its name", fix=nearest(name, kinds))
        return make

    kinds = {one.lower(): one for one in signatures.classes(path)}
    return named(name, f"model '{name}'", path, kinds.get(name.replace("_", ""), ""), load)


def mixer(name: str) -> Named:
    """A mixer in the registry: the class of its small example."""
    path = registry.folder("nn.mixers") / f"{registry.check('nn.mixers', name)}.py"
    return named(name, f"mixer '{name}'", path, "tiny()", lambda: type(registry.load("nn.mixers", name).tiny()))


def lens(name: str) -> Named:
    """A lens in the registry."""
    path = registry.folder("lenses") / f"{registry.check('lenses', name)}.py"
    return named(name, f"lens '{name}'", path, "read", lambda: registry.load("lenses", name).read, skip=("subject",))
