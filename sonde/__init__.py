"""Sonde: build a network, train it, look inside it, compare it, scale it, serve it.

Nothing heavy is imported until it is used: `import sonde` costs milliseconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "train": "sonde.api.training",
    "open_run": "sonde.api.run",
    "Run": "sonde.api.run",
    "sweep": "sonde.api.sweeps",
    "Recipe": "sonde.core.recipe",
    "Callback": "sonde.core.recipe",
    "Data": "sonde.core.batch",
    "Batch": "sonde.core.batch",
    "Terms": "sonde.core.terms",
    "Reading": "sonde.core.reading",
    "Range": "sonde.core.options",
}
__all__ = ["Batch", "Callback", "Data", "Range", "Reading", "Recipe", "Run", "Terms", "open_run", "sweep", "train"]

if TYPE_CHECKING:
    from .api.run import Run, open_run
    from .api.sweeps import sweep
    from .api.training import train
    from .core.batch import Batch, Data
    from .core.options import Range
    from .core.reading import Reading
    from .core.recipe import Callback, Recipe
    from .core.terms import Terms


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'sonde' has no attribute '{name}'")
    from .core import registry

    return registry.attribute(_HOMES[name], name)


def __dir__() -> list[str]:
    return sorted({*__all__, "__version__"})
