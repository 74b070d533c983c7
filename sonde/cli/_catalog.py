"""Names and one-line summaries of everything that `sonde list` lists, read by parsing: nothing is imported."""

from __future__ import annotations

import ast
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from ..core import registry


def entries(kind: str) -> dict[str, str]:
    """Name -> summary of one kind of thing."""
    return KINDS[kind]()


def _in_registry(name: str) -> Callable[[], dict[str, str]]:
    return lambda: {one: registry.summary(name, one) for one in registry.names(name)}


def _data() -> dict[str, str]:
    from ..data.catalog import names, summary

    return {name: summary(name) for name in names()}


def _models() -> dict[str, str]:
    """Networks of the library, and published models built from them: everything that `sonde explain` accepts as a model."""
    from ..models.published import PUBLISHED

    return {**_in_registry("models")(), **{name: "a published model, of its exact size" for name in PUBLISHED}}


def _optimizers() -> dict[str, str]:
    """Optimizers of torch.optim, without those that the builder refuses, and of Sonde."""
    from ..optim.known import REFUSED

    spec = find_spec("torch")
    home = Path(spec.origin).parent / "optim" / "__init__.py" if spec is not None and spec.origin else None
    kinds = []
    for node in ast.parse(home.read_text(encoding="utf-8")).body if home else []:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch.optim."):
            kinds += [name.name for name in node.names if name.name != "Optimizer"]
    of_torch = {kind.lower(): f"torch.optim.{kind}" for kind in kinds if kind[0].isupper() and kind.lower() not in REFUSED}
    return dict(sorted({**of_torch, **_in_registry("optim.rules")()}.items()))


def _functions_that_return(file: str, kind: str) -> Callable[[], dict[str, str]]:
    """Functions in a file of `optim` that return this type, with the first line of their docstrings."""

    def listing() -> dict[str, str]:
        body = ast.parse((registry.folder("optim") / file).read_text(encoding="utf-8")).body
        makers = [
            node for node in body if isinstance(node, ast.FunctionDef) and isinstance(node.returns, ast.Name) and node.returns.id == kind
        ]
        return {node.name: (ast.get_docstring(node) or "").split("\n")[0] for node in makers if node.name != kind.lower()}

    return listing


KINDS: dict[str, Callable[[], dict[str, str]]] = {
    "recipes": _in_registry("recipes"),
    "data": _data,
    "models": _models,
    "mixers": _in_registry("nn.mixers"),
    "objectives": _in_registry("objectives"),
    "optimizers": _optimizers,
    "schedules": _functions_that_return("schedules.py", "Schedule"),
    "initializers": _functions_that_return("initialize.py", "Initializer"),
    "lenses": _in_registry("lenses"),
}
