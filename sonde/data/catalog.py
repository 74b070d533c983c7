"""The catalog: every data set by its name, and a user's own files by their path.

A set is a public function in a file of this folder that takes a `seed` first and returns `Data`:

    def moons(seed: int = 0, noise: float = 0.1) -> Data:

Its other arguments are its options, the first line of its docstring says what it is.  A set of examples that recipes ask for
by their kind declares it: `-> Annotated[Data, "images"]`.  Listing them imports nothing.  A user's own file with such a
function is taken by its path: `load("./mine.py", noise=0.2)`.
"""

from __future__ import annotations

import ast
import inspect
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
KINDS = {"images": "(N, C, H, W)", "points": "(N, 2)", "texts": "(N, T)"}
"""kind of examples -> shape of x"""
_SET = re.compile(
    r'^def ([a-z]\w*)\((?:\s*#[^\n]*)?\s*seed\b(?:(?!^def ).)*?\) -> (?:Annotated\[)?(?:\w+\.)?Data(?:, "(\w+)"\])?:',
    re.DOTALL | re.MULTILINE,
)
"""the head of a function that makes a set, and the kind of its examples"""
_VARIANT = re.compile(r'^([a-z]\w*) = \w+_set\(\s*"\1",\s*"([^"]+)"', re.MULTILINE)
"""a set that is one of several alike: name = some_set("name", "summary", ...)"""


def names(kind: str | None = None) -> list[str]:
    """All sets, or those that declare one kind of examples, sorted."""
    return sorted(name for name, (_, declared) in _sets().items() if kind in (None, declared))


def summary(name: str) -> str:
    """What a set is, in one line, read without importing it."""
    return _summaries(_file_of(name))[name]


def function(name: str) -> Callable[..., Data]:
    """The function that makes a set, by its name or the path of its file; its signature holds the options."""
    if registry.is_file(name):
        return _own(Path(name))
    *folders, module = _file_of(name).relative_to(FOLDER).with_suffix("").parts
    return getattr(registry.load(".".join(("data", *folders)), module), name)


def load(name: str | Path, seed: int = 0, **options: Any) -> Data:
    """A set by name or from a Python file of the user's, or their file or folder of data by path; split by the seed."""
    from ..core.options import check_values, options_of
    from .files import load_file

    if _is_data_path(name):
        return load_file(name, seed=seed, **options)
    make, owner = function(str(name)), f"data set '{registry.label(name)}'"
    return make(seed=seed, **check_values(options_of(make, owner, skip=("seed",)), options, owner))


def load_kind(kind: str | tuple[str, ...], name: str, seed: int = 0, **options: Any) -> Data:
    """A set that declares this kind of examples, by name, or whatever `load` reads by path if its examples have the shape.

    Args:
        kind: one of `KINDS`, or several
        options: left out where the set does not have them
    """
    from .files import file_options

    kinds = (kind,) if isinstance(kind, str) else kind
    is_data, suitable = _is_data_path(name), [name for one in kinds for name in names(one)]
    if not (is_data or registry.is_file(name) or name in suitable):
        message, fix = f"no data set '{name}'", nearest(name, suitable)
        if name in names():
            message, fix = f"data set '{name}' does not hold {' or '.join(kinds)}", f"choose from {', '.join(suitable)}"
        raise BadInput(message, fix=f"{fix} (or give the path of a file)")
    known = file_options(name) if is_data else inspect.signature(function(name)).parameters
    data = load(name, seed, **{option: value for option, value in options.items() if option in known})
    x = data.train[:1].x
    if x.dim() not in [KINDS[one].count(",") + 1 for one in kinds]:
        expected = " or ".join(f"{one} {KINDS[one]}" for one in kinds)
        shape = ", ".join(map(str, ("N", *x.shape[1:])))
        raise BadInput(f"x of '{registry.label(name)}' has the shape ({shape})", fix=f"give {expected}")
    return data


def _is_data_path(name: str | Path) -> bool:
    """Whether this is the path of a user's data, not the name of a set or the path of a Python file."""
    from .files import looks_like_path

    return not registry.is_file(name) and (isinstance(name, Path) or (name not in names() and looks_like_path(name)))


def _file_of(name: str) -> Path:
    """The file of a set."""
    if name not in _sets():
        raise BadInput(f"no data set '{name}'", fix=nearest(name, names()) + " (or give the path of a file)")
    return _sets()[name][0]


@cache
def _sets() -> dict[str, tuple[Path, str]]:
    """Name of each set -> its file, and the kind of its examples or ''."""
    sets: dict[str, tuple[Path, str]] = {}
    for path in sorted(FOLDER.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        sets |= {name: (path, "") for name, _ in _VARIANT.findall(text)} | {name: (path, kind) for name, kind in _SET.findall(text)}
    return sets


def _own(path: Path) -> Callable[..., Data]:
    """The function of a user's file that makes a set: the one named like the file, or the only one."""
    module = registry.load_file(path)
    sets = [name for name, _ in _SET.findall(path.read_text(encoding="utf-8-sig")) if callable(getattr(module, name, None))]
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
