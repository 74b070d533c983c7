"""Names and one-line summaries of everything that `sonde list` lists.

Source files are parsed, not imported, so that the command answers at once: importing torch alone takes seconds.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from ..core import registry


def entries(kind: str) -> dict[str, str]:
    """Name -> summary of one kind, e.g. of all 'mixers'."""
    return KINDS[kind]()


def _plugins(folder: str) -> Callable[[], dict[str, str]]:
    """A function that lists the plug-ins of a folder: each file is one, and the first line of its docstring its summary."""
    return lambda: {name: registry.summary(folder, name) for name in registry.names(folder)}


def _data() -> dict[str, str]:
    from ..data.catalog import names, summary

    return {name: summary(name) for name in names()}


def _models() -> dict[str, str]:
    """Networks of the library, and published models built from them: everything that `sonde explain` accepts as a model."""
    from ..models.published import PUBLISHED

    return {**_plugins("models")(), **{name: "a published model, of its exact size" for name in PUBLISHED}}


def _optimizers() -> dict[str, str]:
    """Optimizers of torch.optim, without those that the training loop cannot use (REFUSED), and of Sonde."""
    from ..optim.known import REFUSED

    spec = find_spec("torch")
    init_file = Path(spec.origin).parent / "optim" / "__init__.py" if spec is not None and spec.origin else None
    classes = []
    for node in ast.parse(init_file.read_text(encoding="utf-8")).body if init_file else []:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch.optim."):
            classes += [alias.name for alias in node.names if alias.name != "Optimizer"]
    from_torch = {cls.lower(): f"torch.optim.{cls}" for cls in classes if cls[0].isupper() and cls.lower() not in REFUSED}
    return dict(sorted({**from_torch, **_plugins("optim.rules")()}.items()))


def _functions_by_return_type(file: str, type_name: str) -> Callable[[], dict[str, str]]:
    """A function that lists the functions in a file of `optim` which return this type, with the first line of their docstrings.

    A function called like the type (`schedule`) makes one from its name, and is not listed.
    """

    def listing() -> dict[str, str]:
        body = ast.parse((registry.folder("optim") / file).read_text(encoding="utf-8")).body
        functions = [node for node in body if isinstance(node, ast.FunctionDef) and node.name != type_name.lower()]
        matching = [node for node in functions if isinstance(node.returns, ast.Name) and node.returns.id == type_name]
        return {node.name: (ast.get_docstring(node) or "").split("\n")[0] for node in matching}

    return listing


KINDS: dict[str, Callable[[], dict[str, str]]] = {
    "recipes": _plugins("recipes"),
    "data": _data,
    "models": _models,
    "mixers": _plugins("nn.mixers"),
    "objectives": _plugins("objectives"),
    "optimizers": _optimizers,
    "schedules": _functions_by_return_type("schedules.py", "Schedule"),
    "initializers": _functions_by_return_type("initialize.py", "Initializer"),
    "lenses": _plugins("lenses"),
}
