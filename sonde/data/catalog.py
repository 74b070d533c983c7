"""The catalog: every data set by its name, and a user's own files by their path.

A set is a public function in a file of this folder that takes a `seed` first and returns `Data`:

    def moons(seed: int = 0, noise: float = 0.1) -> Data:

Its other arguments are its options, the first line of its docstring says what it is.  Listing them imports nothing.  A user's
own file with such a function is taken by its path: `load("./mine.py", noise=0.2)`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core import registry
from ..core.errors import BadInput, nearest

if TYPE_CHECKING:
    from ..core.batch import Data

FOLDER = Path(__file__).resolve().parent
_SET = re.compile(r"^def ([a-z]\w*)\((?:\s*#[^\n]*)?\s*seed\b(?:(?!^def ).)*?\) -> (?:\w+\.)?Data:", re.DOTALL | re.MULTILINE)
"""the head of a function that makes a set"""
_VARIANT = re.compile(r'^([a-z]\w*) = text_set\(\s*"\1",\s*"([^"]+)"', re.MULTILINE)
"""a set that is one of several alike, and its summary"""


def names() -> list[str]:
    """All sets, sorted."""
    return sorted(_homes())


def summary(name: str) -> str:
    """What a set is, in one line, read without importing it."""
    return _summaries(_home(name))[name]


def function(name: str) -> Callable[..., Data]:
    """The function that makes a set, by its name or the path of its file; its signature holds the options."""
    if registry.is_file(name):
        return _own(Path(name))
    *folders, module = _home(name).relative_to(FOLDER).with_suffix("").parts
    return getattr(registry.load(".".join(("data", *folders)), module), name)


def load(name: str | Path, seed: int = 0, **options: Any) -> Data:
    """A set by name or from a Python file of the user's, or their file or folder of data by path; split by the seed."""
    from ..core.options import check_values, options_of
    from .files import load_file, looks_like_path

    if not registry.is_file(name) and (isinstance(name, Path) or (name not in names() and looks_like_path(name))):
        return load_file(name, seed=seed, **options)
    make, owner = function(str(name)), f"data set '{registry.label(name)}'"
    return make(seed=seed, **check_values(options_of(make, owner, skip=("seed",)), options, owner))


def _home(name: str) -> Path:
    """The file of a set."""
    if name not in _homes():
        raise BadInput(f"no data set '{name}'", fix=nearest(name, names()) + " (or give the path of a file)")
    return _homes()[name]


@cache
def _homes() -> dict[str, Path]:
    """Name of each set -> its file."""
    files = [path for path in sorted(FOLDER.rglob("*.py")) if not path.stem.startswith("_")]
    texts = {path: path.read_text(encoding="utf-8") for path in files}
    return {name: path for path, text in texts.items() for name in (*_SET.findall(text), *dict(_VARIANT.findall(text)))}


def _own(path: Path) -> Callable[..., Data]:
    """The function of a user's file that makes a set: the one named like the file, or the only one."""
    module = registry.load_file(path)
    sets = [name for name in _SET.findall(path.read_text(encoding="utf-8-sig")) if callable(getattr(module, name, None))]
    chosen = [name for name in sets if name == path.stem] or sets
    if len(chosen) == 1:
        return getattr(module, chosen[0])
    if not sets:
        raise BadInput(f"{path.name} defines no data set", fix=f"write: def {path.stem}(seed: int = 0) -> Data")
    raise BadInput(f"{path.name} defines {len(sets)} data sets: {', '.join(sets)}", fix="name one of them like the file")


@cache
def _summaries(path: Path) -> dict[str, str]:
    text = path.read_text(encoding="utf-8")
    functions = (node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef))
    return dict(_VARIANT.findall(text)) | {node.name: (ast.get_docstring(node) or "").split("\n")[0] for node in functions}
