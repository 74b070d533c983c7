"""The file system is the registry: plug-ins are files in a folder, listed without importing them.

A registry is a folder of the package, named by its dotted path: "recipes", "lenses", "nn.mixers".  Every file that does
not start with an underscore is one plug-in; the first line of its docstring is its summary.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from . import renamed
from .errors import BadInput, nearest

PACKAGE = Path(__file__).resolve().parent.parent


def folder(registry: str) -> Path:
    """The folder of a registry."""
    return PACKAGE.joinpath(*registry.split("."))


def names(registry: str) -> list[str]:
    """Names in a registry, sorted; nothing is imported."""
    return sorted(path.stem for path in folder(registry).glob("*.py") if not path.stem.startswith("_"))


def summary(registry: str, name: str) -> str:
    """First line of a plug-in's docstring, read by parsing."""
    return first_line(folder(registry) / f"{name}.py")


def first_line(path: Path) -> str:
    """First docstring line of a Python file, or '' where there is none."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return text.strip().split("\n")[0]


def check(registry: str, name: str) -> str:
    """The name itself if it is in the registry, else an error with the nearest one."""
    known = names(registry)
    if name not in known:
        kind = registry.split(".")[-1].removesuffix("s").replace("lense", "lens")
        raise BadInput(f"no {kind} '{name}'", fix=nearest(name, known))
    return name


def load(registry: str, name: str) -> ModuleType:
    """Import one plug-in."""
    return importlib.import_module(f"sonde.{registry}.{check(registry, name)}")


def attribute(module: str, name: str) -> Any:
    """A name from a module of the package, imported when it is first used: for the `__getattr__` of an `__init__.py`."""
    return getattr(importlib.import_module(module), name)


def load_file(path: Path) -> ModuleType:
    """Import a user's own file.  Its folder joins sys.path, so it may import its neighbors."""
    try:
        path = path.resolve()
        there = path.is_file()
    except (OSError, RuntimeError, ValueError):  # a name too long, links in a circle, a zero byte
        there = False
    if not there or path.suffix != ".py":
        raise BadInput(f"no Python file '{path.name}' in {path.parent}", fix="give the path of a file that ends in .py")
    try:
        source = path.read_text(encoding="utf-8-sig")
        compile(source, str(path), "exec")
    except (SyntaxError, ValueError, OSError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        raise BadInput(
            f"{path.name} is not a readable Python file: {error}", where=f"line {line}" if line else "", fix="fix the file"
        ) from error
    # One module per path and content: an edited file is a new module, the same file is loaded once.
    name = f"sonde_user_{path.stem}_{hashlib.sha256(f'{path}|{source}'.encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # a file that calls sys.exit must not end the command as if all were well
        del sys.modules[name]
        fix = f"it has names of an older version; rewrite it: sonde upgrade {path.name}" if renamed.in_text(source) else "fix the file"
        raise BadInput(f"{path.name} failed while being imported: {type(error).__name__}: {error}", fix=fix) from error
    return module
