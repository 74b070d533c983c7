"""What to train: a recipe found by name, file, function or object, and its options, checked before anything is built."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..core import files, registry
from ..core.errors import BadInput, DataUnusable
from ..core.options import options_of, resolve
from ..core.recipe import Recipe
from ..runs.layout import RunDirectory
from .job import report_build_errors


@dataclass(frozen=True)
class RunPlan:
    """A request: the source of the recipe, its options, and how to build it."""

    make: Callable[[int], Recipe]
    source: dict[str, Any]
    """{"name"} of a recipe in the registry, {"file", "sha256"} of a user's file, or {"object"} made in Python"""
    name: str
    options: dict[str, Any] = field(default_factory=dict)
    file: Path | None = None


def plan(recipe: str | Path | Recipe | Callable[..., Recipe], overrides: dict[str, Any]) -> RunPlan:
    """Find a recipe and check its options; nothing is built yet."""
    if isinstance(recipe, Recipe):
        if overrides:
            raise BadInput(f"a Recipe object has no option '{next(iter(overrides))}'", fix="change it with recipe.replace(...)")
        return RunPlan(lambda seed: recipe, {"object": "Recipe"}, "recipe")
    file = None
    function: Any
    if callable(recipe):
        function, name, source = recipe, recipe.__name__, {"object": f"{recipe.__module__}.{recipe.__qualname__}"}
    elif str(recipe).endswith(".py"):
        file = Path(recipe)
        function, name = registry.function_of("recipes", str(recipe), "recipe", "def recipe(...) -> Recipe"), file.stem
        source = {"file": str(file.resolve()), "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}
    else:
        name = registry.check("recipes", str(recipe))
        function, source = registry.load("recipes", name).recipe, {"name": name}
    return RunPlan(_maker(function, overrides, f"recipe '{name}'"), source, name, _options(function, overrides, f"recipe '{name}'"), file)


def _options(function: Callable[..., Recipe], overrides: dict[str, Any], owner: str) -> dict[str, Any]:
    """All options but the seed, which is an option of the run."""
    if "seed" in overrides:
        raise BadInput(f"{owner} has no option 'seed'", fix="the seed is an option of the run: --seed")
    known = options_of(function, owner)
    values = resolve(function, {**({"seed": 0} if "seed" in known else {}), **overrides}, owner)
    # a plug-in in a user's file is found again from another folder
    return {name: registry.absolute(value) for name, value in values.items() if name != "seed"}


def _maker(function: Callable[..., Recipe], overrides: dict[str, Any], owner: str) -> Callable[[int], Recipe]:
    values = _options(function, overrides, owner)
    seeded = "seed" in options_of(function, owner)

    def make(seed: int) -> Recipe:
        with report_build_errors(owner):
            recipe = function(**values, **({"seed": seed} if seeded else {}))
        if not isinstance(recipe, Recipe):
            raise BadInput(f"{owner} returned {type(recipe).__name__}", fix="return a sonde.Recipe")
        return recipe

    return make


def describe_source(source: dict[str, Any]) -> str:
    return f"'{source.get('name') or source.get('file') or source.get('object')}'"


def plan_of(old: RunDirectory, recipe: Any) -> RunPlan:
    """The plan recorded in a run directory; a user's file is taken from the copy kept there."""
    info = old.info()
    source = info["recipe"]
    if "object" in source:
        if recipe is None:
            raise BadInput(
                f"run '{old.path.name}' was started from Python with its own recipe", fix="resume it there: sonde.train(recipe, run=...)"
            )
        return plan(recipe, {} if isinstance(recipe, Recipe) else info["options"])
    if "file" in source:
        import sys

        sys.path.append(str(Path(source["file"]).parent))
        copy = old.path / "recipe.py"
        if not copy.is_file() or files.sha256_file(copy) != source.get("sha256"):
            raise DataUnusable(
                "the recipe kept in this run is not the one it was started with",
                where=str(copy),
                last_good="its checkpoints",
                fix="restore the file; it is code, and only the recorded one is run",
            )
        run_plan = plan(copy, info["options"])
        return replace(run_plan, source=source, name=Path(source["file"]).stem)
    return plan(registry.check("recipes", str(source["name"])), info["options"])


def jsonable(values: dict[str, Any]) -> dict[str, Any]:
    def plain(value: Any) -> Any:
        if isinstance(value, Path):
            return str(value)
        return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value

    return {name: plain(value) for name, value in values.items()}
