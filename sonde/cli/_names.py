"""A name on the command line -> the thing it names, with the dials it can be given."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core import shelf
from ..core.dials import Dial, dials
from ..core.errors import BadInput, nearest
from ._options import usable


@dataclass(frozen=True)
class Named:
    """Something with dials: a recipe, a model, a lens."""

    target: str
    """what the engine is given: a name on a shelf, or the path of a file"""
    owner: str
    make: Callable[..., Any]
    dials: dict[str, Dial]

    def described(self) -> tuple[str, str, dict[str, Dial]]:
        """Owner, first line of its docstring, dials: what a help text shows."""
        return self.owner, (inspect.getdoc(self.make) or "").split("\n")[0], self.dials


def needed(words: Sequence[str], command: str, shelf_name: str) -> str:
    """The first word, or an error that lists what could stand there."""
    if not words:
        kind = shelf_name.removesuffix("s")
        raise BadInput(f"{command} needs the name of a {kind}", fix=nearest("", shelf.names(shelf_name)))
    return words[0]


def recipe(name: str) -> Named:
    """A recipe on the shelf or in a user's file."""
    if is_file(name):
        path = usable(Path(name), "the recipe file")
        module, owner = shelf.load_file(path), f"recipe '{path.name}'"
    else:
        module, owner = shelf.load("recipes", name), f"recipe '{name}'"
    make = getattr(module, "recipe", None)
    if not callable(make):
        raise BadInput(f"{owner} has no function 'recipe'", fix="write `def recipe(...) -> Recipe`")
    return Named(name, owner, make, dials(make, owner, skip=("seed",)))


def is_file(name: str) -> bool:
    return name.endswith(".py") or "/" in name


def model(name: str) -> Named:
    """A model of the library: the one network class of its file."""
    from torch import nn

    module = shelf.load("models", name)
    owner = f"model '{name}'"
    kinds = [kind for kind in vars(module).values() if inspect.isclass(kind) and issubclass(kind, nn.Module) and kind.__module__ == module.__name__]
    make = next((kind for kind in kinds if kind.__name__.lower() == name.replace("_", "")), None)
    if make is None:
        raise BadInput(f"{owner} has no class of its name", fix=nearest(name, [kind.__name__ for kind in kinds]))
    return Named(name, owner, make, dials(make, owner))


def lens(name: str) -> Named:
    """A lens on the shelf."""
    owner = f"lens '{name}'"
    make = shelf.load("lenses", name).read
    return Named(name, owner, make, dials(make, owner, skip=("subject",)))
