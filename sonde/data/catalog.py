"""The catalog: every data set by its name, and a user's own files by their path.

A set is a function with a docstring in one of the modules below; its keyword arguments are its options.  Listing them
imports nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core import registry
from ..core.errors import BadInput, nearest

if TYPE_CHECKING:
    from ..core.batch import Data

MODULES = {
    "bundled": ("digits", "iris", "wine", "breast_cancer", "diabetes"),
    "synthetic": ("xor", "rings", "moons", "spirals", "blobs", "swiss_roll", "sine", "bowl"),
    "sequences": ("recall", "copying", "reset", "parity", "in_context", "tagging"),
    "toys": ("bilingual", "reversal"),
    "shapes": ("shapes",),
    "text.windows": ("stdlib_text", "tiny_shakespeare"),
    "text.corpora": ("novels", "kjv", "wikitext2", "nottingham", "given_names", "sst2", "sentence_polarity", "imdb", "multi30k"),
    "series": ("sunspots", "passengers", "temperatures"),
    "archives": ("mnist", "fashion_mnist", "cifar10"),
}


def names() -> list[str]:
    """All sets, in the order a newcomer would try them."""
    return [name for sets in MODULES.values() for name in sets]


def summary(name: str) -> str:
    """What a set is, in one line, read without importing it."""
    module = _home(name)
    return _summaries(module)[name]


def function(name: str) -> Callable[..., Data]:
    """The function that makes a set; its signature holds the options."""
    folder, _, module = f"data.{_home(name)}".rpartition(".")
    return getattr(registry.load(folder, module), name)


def load(name: str | Path, seed: int = 0, **options: Any) -> Data:
    """A set by name, or a user's file or folder by path, split into train, valid and test by the seed."""
    from ..core.options import options_of
    from .files import load_file, looks_like_path

    if isinstance(name, Path) or (name not in names() and looks_like_path(name)):
        return load_file(name, seed=seed, **options)
    make = function(name)
    known = options_of(make, f"data set '{name}'", skip=("seed",))
    for option in options:
        if option not in known:
            raise BadInput(f"data set '{name}' has no option '{option}'", fix=nearest(option, known))
    return make(seed=seed, **{option: known[option].check(value) for option, value in options.items()})


def _home(name: str) -> str:
    for module, sets in MODULES.items():
        if name in sets:
            return module
    raise BadInput(f"no data set '{name}'", fix=nearest(name, names()) + " (or give the path of a file)")


@cache
def _summaries(module: str) -> dict[str, str]:
    path = Path(__file__).parent.joinpath(*module.split(".")).with_suffix(".py")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = (node for node in tree.body if isinstance(node, ast.FunctionDef))
    return {node.name: (ast.get_docstring(node) or "").split("\n")[0] for node in functions}
