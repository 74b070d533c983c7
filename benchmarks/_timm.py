"""timm, imported without torchvision, which it needs only for transforms and data sets that are not used here.

torchvision's package would replace torch's own, so timm is installed with `pip install -c constraints.txt --no-deps timm`.
"""

from __future__ import annotations

import importlib
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

ABSENT = "torchvision"


class _Names(type):
    """A class that has every public attribute: its name."""

    def __getattr__(cls, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class _Hollow(ModuleType):
    """A module that has every public name: an empty class."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Names(name, (), {})


class _Stand(MetaPathFinder, Loader):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.partition(".")[0] == ABSENT else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Hollow(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def timm() -> Any:
    """The package; ImportError where it is not installed.  No trace of the hollow modules stays behind."""
    if "timm" in sys.modules:
        return sys.modules["timm"]
    stand = _Stand()
    sys.meta_path.insert(0, stand)
    try:
        return importlib.import_module("timm")
    finally:
        sys.meta_path.remove(stand)
        for name in [name for name in sys.modules if name.partition(".")[0] == ABSENT]:
            del sys.modules[name]
