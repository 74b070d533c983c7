"""Whatever layer, model or objective declares a range or a list of words for an argument holds a caller to it."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil

import pytest

from sonde.core import registry
from sonde.core.errors import BadInput
from sonde.core.options import checked, options_of
from sonde.nn.mixers import Mixer

ROOMS = ("sonde.nn", "sonde.models", "sonde.objectives")
FUNCTION_ROOMS = ("sonde.objectives", "sonde.gradients", "sonde.optim")
BY_NAME = {"sonde.optim.schedules", "sonde.optim.initialize"}
"""their functions are called by name, through `options.resolve`"""
CHECKED = checked(lambda: None).__code__
"""what every checked function runs first"""


def constructors() -> dict[str, type]:
    """Classes of the rooms that write a constructor of their own."""
    by_name = {}
    for room in ROOMS:
        for entry in pkgutil.walk_packages(importlib.import_module(room).__path__, f"{room}."):
            members = vars(importlib.import_module(entry.name)).values()
            own = [one for one in members if inspect.isclass(one) and one.__module__ == entry.name and "__init__" in vars(one)]
            by_name |= {f"{entry.name}.{one.__name__}": one for one in own if not dataclasses.is_dataclass(one)}
    return by_name


def test_declared_ranges_are_checked():
    declaring, unchecked = 0, []
    for name, kind in constructors().items():
        if any(option.range or "Literal" in str(option.type) for option in options_of(kind.__init__).values()):
            declaring += 1
            if kind.__init__.__code__ is not CHECKED:
                unchecked.append(name)
    assert declaring >= 70 and not unchecked


def test_declared_ranges_of_functions_are_checked():
    declaring, unchecked = 0, []
    for entry in (entry for room in FUNCTION_ROOMS for entry in pkgutil.walk_packages(importlib.import_module(room).__path__, f"{room}.")):
        for name, one in vars(importlib.import_module(entry.name)).items():
            own = inspect.isfunction(one) and one.__module__ == entry.name and not name.startswith("_")
            if own and entry.name not in BY_NAME and any(each.range or "Literal" in str(each.type) for each in options_of(one).values()):
                declaring += 1
                if one.__code__ is not CHECKED:
                    unchecked.append(f"{entry.name}.{name}")
    assert declaring >= 10 and not unchecked


@pytest.mark.parametrize("name", registry.names("nn.mixers"))
def test_mixers_made_in_python_are_held_to_their_ranges(name):
    module = registry.load("nn.mixers", name)
    kind = next(
        one for one in vars(module).values() if inspect.isclass(one) and issubclass(one, Mixer) and one.__module__ == module.__name__
    )
    for wrong, reason in ((0, ">= 1, not 0"), (True, "a whole number, not True"), ("64", "a whole number, not '64'")):
        with pytest.raises(BadInput, match=f"^argument 'width' of {kind.__name__} must be {reason}$"):
            kind(width=wrong)
    assert kind(width=64.0).width == 64 and isinstance(kind(width=64.0).width, int)
