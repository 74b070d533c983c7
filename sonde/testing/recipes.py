"""The contract of a recipe: options with type and help, a model that can be built on the meta device, and reproducible steps."""

from __future__ import annotations

import dataclasses
import inspect
import math
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from ..core.batch import Batch, Source
from ..core.options import options_of, resolve
from ..core.recipe import Recipe
from ._contract import Plugin, load, plugin_name, require, required_function, run

EVALUATED = 100
"""maximum number of examples of an evaluation"""


def check_recipe(plugin: Plugin, **options: Any) -> None:
    """Check a recipe, given by name, by the path of its file or as a module; `options` are those it has no default for."""
    module = load("recipes", plugin)
    run(plugin_name(module), [options_have_type_and_help], module)
    run(plugin_name(module), CHECKS, partial(build, module, **options))


def build(module: ModuleType, **options: Any) -> Recipe:
    """The recipe with its options checked."""
    make = required_function(module, "recipe")
    recipe = make(**resolve(make, options, f"recipe '{plugin_name(module)}'"))
    require(isinstance(recipe, Recipe), f"it returns {type(recipe).__name__}, not Recipe")
    return recipe


def options_have_type_and_help(module: ModuleType) -> None:
    """Every option has a type, a line of help and a default of that type."""
    make = required_function(module, "recipe")
    require(bool(module.__doc__) and bool(inspect.getdoc(make)), "the file or the function has no docstring")
    hints = inspect.get_annotations(make, eval_str=True)
    for option in options_of(make, plugin_name(module)).values():
        require(option.name in hints, f"option '{option.name}' has no type")
        require(bool(option.help) or option.name == "seed", f"option '{option.name}' has no help line")
        require(option.is_required or option.check(option.default) == option.default, f"the default of '{option.name}' is not of its type")


def its_model_builds_on_the_meta_device(make: Callable[[], Recipe]) -> None:
    """Its model can be built on the meta device, without allocating memory."""
    recipe = make()
    with torch.device("meta"):
        model = recipe.build_model()
    require(sum(p.numel() for p in model.parameters()) > 0, "the model has no parameters")


def two_steps_are_finite_and_reproducible(make: Callable[[], Recipe]) -> None:
    """Two training steps have finite losses and are reproducible."""
    with tempfile.TemporaryDirectory() as folder:
        first, second = (rows(make, Path(folder) / name) for name in ("first", "second"))
    losses = [row["loss"] for row in first if "loss" in row]
    require(len(losses) == 2 and all(math.isfinite(loss) for loss in losses), f"the losses are {losses}")
    require(second == first, "the same recipe with the same seed gave different metrics")


def rows(make: Callable[[], Recipe], directory: Path) -> list[dict[str, Any]]:
    """The metrics of two steps."""
    from ..api.training import train

    short = make().replace(steps=2, epochs=None, log_every=1, evaluate_every=2)
    data = short.build_data()
    splits: dict[str, Any] = {part: FirstExamples(source) for part, source in data.splits.items() if part != "train"}
    return train(short.replace(data=dataclasses.replace(data, **splits)), run=directory, seed=3, threads=1, quiet=True).metrics


class FirstExamples:
    """The first examples of a source."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def __len__(self) -> int:
        return min(EVALUATED, len(self.source))

    def __getitem__(self, indices: Any) -> Batch:
        return self.source[indices]

    def fingerprint(self) -> str:
        return self.source.fingerprint()


CHECKS: tuple[Callable[[Callable[[], Recipe]], None], ...] = (
    its_model_builds_on_the_meta_device,
    two_steps_are_finite_and_reproducible,
)
