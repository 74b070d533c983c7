"""Names and one-line summaries of everything a user can ask for by name, read by parsing: nothing is imported."""

from __future__ import annotations

import ast
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from ..core import shelf


def entries(kind: str) -> dict[str, str]:
    """Name -> summary of one kind of thing."""
    return KINDS[kind]()


def _on_shelf(name: str) -> Callable[[], dict[str, str]]:
    return lambda: {one: shelf.summary(name, one) for one in shelf.names(name)}


def _optimisers() -> dict[str, str]:
    """The rules of torch.optim but for those the builder refuses, and our own."""
    refused = ast.literal_eval(_assigned(shelf.folder("optim") / "build.py", "_REFUSED"))
    spec = find_spec("torch")
    home = Path(spec.origin).parent / "optim" / "__init__.py" if spec is not None and spec.origin else None
    kinds = []
    for node in ast.parse(home.read_text(encoding="utf-8")).body if home else []:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch.optim."):
            kinds += [name.name for name in node.names if name.name != "Optimizer"]
    theirs = {kind.lower(): f"torch.optim.{kind}" for kind in kinds if kind[0].isupper() and kind.lower() not in refused}
    return dict(sorted({**theirs, **_on_shelf("optim.rules")()}.items()))


def _functions(path: Path) -> dict[str, str]:
    """Public functions of a file that carry the mark `@_named`, with the first line of their docstrings."""
    found = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        marks = [mark.id for mark in getattr(node, "decorator_list", []) if isinstance(mark, ast.Name)]
        if isinstance(node, ast.FunctionDef) and "_named" in marks:
            found[node.name] = (ast.get_docstring(node) or "").split("\n")[0]
    return found


def _assigned(path: Path, name: str) -> ast.expr:
    """The expression a file assigns to a name at its top level."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        if any(isinstance(target, ast.Name) and target.id == name for target in targets) and node.value is not None:
            return node.value
    raise LookupError(f"{path.name} assigns nothing to {name}")


KINDS: dict[str, Callable[[], dict[str, str]]] = {
    "recipes": _on_shelf("recipes"),
    "data": dict,
    "models": _on_shelf("models"),
    "objectives": _on_shelf("objectives"),
    "optimisers": _optimisers,
    "schedules": lambda: _functions(shelf.folder("optim") / "schedules.py"),
    "lenses": _on_shelf("lenses"),
}
