"""What all checks share: a subject made by `tiny()`, comparisons that say by how much they fail, and the name of the broken promise."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from ..core import registry

Plugin = str | Path | ModuleType


def load(kind: str, plugin: Plugin) -> ModuleType:
    """The module of a plug-in, given by name, by path or as it is."""
    return plugin if isinstance(plugin, ModuleType) else registry.load(kind, str(plugin))


def stem(module: ModuleType) -> str:
    """The name of a plug-in: that of its file."""
    return Path(str(module.__file__)).stem


def function(module: ModuleType, name: str) -> Callable[..., Any]:
    """A function that a plug-in must define."""
    value = getattr(module, name, None)
    require(callable(value), f"{stem(module)}.py defines no function '{name}'")
    assert value is not None
    return value


def run(name: str, checks: Iterable[Callable[[Any], None]], subject: Any) -> None:
    """All checks on a subject; the first that fails is named by what it promises, the first line of its docstring."""
    for check in checks:
        promise = (inspect.getdoc(check) or check.__name__).split("\n")[0].rstrip(".")
        try:
            check(subject)
        except AssertionError as failure:
            raise AssertionError(f"{name} breaks a promise: {promise}: {failure}") from failure
        except Exception as error:  # whatever a plug-in raises on an input it must take
            raise AssertionError(f"{name} breaks a promise: {promise}: {type(error).__name__}: {error}") from error


def require(holds: bool, message: str) -> None:
    """Stop with a message unless something holds; also where Python runs without assertions."""
    if not holds:
        raise AssertionError(message)


def smooth(x: Tensor) -> bool:
    """Whether a tensor holds numbers that can be nearly equal."""
    return x.is_floating_point() or x.is_complex()


def agree(actual: Mapping[str, Tensor], wanted: Mapping[str, Tensor], tolerance: float, label: object) -> None:
    """Tensors by name, equal up to a tolerance relative to the largest number of each."""
    require(actual.keys() == wanted.keys(), f"{label}: there are {', '.join(actual)}, not {', '.join(wanted)}")
    for name, right in wanted.items():
        left = actual[name]
        require(left.shape == right.shape, f"{label}: '{name}' is {tuple(left.shape)}, not {tuple(right.shape)}")
        if not right.numel():
            continue
        if not smooth(right):
            require(torch.equal(left, right), f"{label}: '{name}' differs")
            continue
        wide = torch.complex128 if right.is_complex() else torch.float64
        error = float((left.detach().to(wide) - right.to(wide)).abs().max()) / max(float(right.abs().max()), 1e-2)
        require(error < tolerance, f"{label}: '{name}' differs by {error:.2g} of its largest number, more than {tolerance:g}")


def draw(*shape: int, seed: int = 3) -> Tensor:
    """Normal numbers in float64 that touch no random state."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
