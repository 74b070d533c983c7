"""Models people fit with scikit-learn's words: `fit`, `predict`, `score`.  `from sonde.estimators import Ridge` loads one file.

The folder is the list: every public class on a scikit-learn mixin in a file without underscore is an estimator.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import Any

from ..core import registry


@cache
def homes() -> dict[str, str]:
    """Name of each estimator -> the module it stands in; read by parsing, nothing is imported."""
    modules = {}
    for path in sorted(Path(__file__).parent.glob("[!_]*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8"), filename=str(path)).body:
            if isinstance(node, ast.ClassDef) and node.name[0] != "_" and any("Mixin" in ast.unparse(base) for base in node.bases):
                modules[node.name] = f"{__name__}.{path.stem}"
    return modules


def __getattr__(name: str) -> Any:
    if name.startswith("_") or name not in homes():
        raise AttributeError(f"module 'sonde.estimators' has no attribute '{name}'")
    return registry.attribute(homes()[name], name)


def __dir__() -> list[str]:
    return sorted([*homes(), "homes"])
