"""train: a recipe by name, file, function or object, trained in a run directory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..core import registry
from ..core.errors import BadInput
from ..core.recipe import Recipe
from ..engine.execute import start
from ..engine.options import Options
from ..engine.plan import plan, plan_of
from ..runs import layout
from .run import Run


def train(
    recipe: str | Path | Recipe | Callable[..., Recipe] | None = None,
    *,
    run: str | Path | None = None,
    resume: bool | str | Path = False,
    seed: int | None = None,
    processes: int | None = None,
    threads: int | None = None,
    device: str | None = None,
    precision: str | None = None,
    shards: int | None = None,
    parallel: str | None = None,
    checkpoint_every: int | None = None,
    async_save: bool | None = None,
    ema: float | None = None,
    exact: bool = False,
    accept_data_change: bool = False,
    tensorboard: bool = False,
    hang_timeout: float | None = None,
    restarts: int | None = None,
    quiet: bool = False,
    **overrides: Any,
) -> Run:
    """Train a recipe, by name, file, function or object; other keyword arguments are its options.

    Args:
        recipe: name, path of a file, function or `Recipe`
        run: directory of the run; an existing one is resumed; default: the next free runs/NAME-001
        resume: continue a run: True for the latest one, or its directory; its recipe and options are read from it
        overrides: options of the recipe

    The other arguments are described in `sonde.engine.options.Options`.
    """
    loose: dict[str, Any] = {"seed": seed, "processes": processes, "threads": threads, "device": device, "precision": precision}
    loose |= {"shards": shards, "parallel": parallel, "checkpoint_every": checkpoint_every, "async_save": async_save, "ema": ema}
    loose |= {"hang_timeout": hang_timeout, "restarts": restarts}
    explicit = {name: value for name, value in loose.items() if value is not None}
    switches = {"exact": exact, "accept_data_change": accept_data_change, "tensorboard": tensorboard, "quiet": quiet}
    options = Options.of({**explicit, **switches})
    if resume:
        if overrides or (recipe is not None and not isinstance(recipe, Recipe) and not callable(recipe)):
            raise BadInput("a resumed run reads its recipe and options from its run.json", fix="leave them out, or start a new run")
        old = layout.latest() if resume is True else layout.find(resume)
        run = old.path
        run_plan = plan_of(old, recipe)
    elif recipe is None:
        raise BadInput("no recipe given", fix="choose from " + ", ".join(registry.names("recipes")))
    else:
        run_plan = plan(recipe, overrides)
    return Run(start(run_plan, run, options, explicit), run_plan)
