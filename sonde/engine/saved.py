"""Load a run from its directory: rebuild the recipe, its data and its trained model."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from pathlib import Path
from typing import Literal

from torch import Tensor, nn

from ..core.batch import Data
from ..core.errors import BadInput, DataUnusable, NoCheckpoint
from ..core.options import checked
from ..core.recipe import Recipe
from ..runs import checkpoints, layout
from ..runs.layout import RunDirectory
from . import checkpoint
from .plan import RunPlan, plan, plan_of
from .state import load_model_, misfit, model_tensors, random_states, restore_random_states, seed_everything

Which = Literal["final", "best", "last"] | int
"""a model of a run: as it ended, at its best, at its newest checkpoint, or at the step of one that is kept"""


def rebuild(directory: RunDirectory, run_plan: RunPlan | None = None) -> Recipe:
    """The recipe of a run, rebuilt from its record, or from `run_plan` where that is known."""
    run_plan = run_plan or plan_of(directory, None)
    caller, seed = random_states(), directory.info()["seed"]
    try:
        seed_everything(seed, "recipe")
        return run_plan.make(seed)
    finally:
        restore_random_states(caller)


def load_data(directory: RunDirectory, recipe: Recipe) -> Data:
    """The data of the recipe, refused where they are another set than the one the run was trained on."""
    info = directory.info()
    data, trained = recipe.build_data(), info.get("about_data", {}).get("name", "")
    if trained not in ("", data.name) and data.train.fingerprint() != info["data"]["train"]["sha256"]:
        raise DataUnusable(
            f"run '{directory.path.name}' was trained on '{trained}', and the data found now are '{data.name}'",
            where=str(directory.path),
            last_good="its checkpoints",
            fix=f"set SONDE_DATA to the folder that has '{trained}'; `sonde doctor` lists the data sets it finds",
        )
    return data


def load_model(directory: RunDirectory, recipe: Recipe, which: Which, data: Callable[[], Data]) -> nn.Module:
    """The trained model in evaluation mode: 'final', 'best', 'last', or the step of a kept checkpoint.

    Args:
        data: loads the data; called only where the weights do not fit the model
    """
    caller = random_states()
    try:
        model = recipe.build_model()
    finally:
        restore_random_states(caller)
    weights = load_weights(directory, which, model_tensors(model).keys())
    try:
        misfit(model_tensors(model), weights, "tensor")
    except DataUnusable:
        data()  # other data make a model of another size, which is the real reason of the error
        raise
    load_model_(model, weights)
    return model.eval()


@checked
def load_weights(directory: RunDirectory, which: Which, names: Container[str] = ()) -> Mapping[str, Tensor]:
    """The weights that `load_model` loads; `names` are those of the model's tensors."""
    name, kept = directory.path.name, checkpoints.steps(directory.checkpoints)
    if not kept:
        raise NoCheckpoint(f"run '{name}' has no checkpoint yet", where=str(directory.path), fix="train it first")
    if isinstance(which, int) and which not in kept:
        raise BadInput(f"run '{name}' keeps no checkpoint of step {which}", fix=f"it keeps {', '.join(map(str, kept))}")
    path = checkpoints.path_of(directory.checkpoints, which if isinstance(which, int) else kept[-1])
    snapshot = checkpoint.read(path, names, whole=False)
    final_is_best = directory.result().get("model_step", snapshot.step) != snapshot.step
    best = which == "best" or (which == "final" and final_is_best)
    return checkpoint.best_weights(snapshot) if best else checkpoint.last_weights(snapshot)


def open_model(path: str | Path, recipe: Recipe | None = None) -> nn.Module:
    """The final model of a run, by its directory or its name under runs/; `recipe` for one made in Python."""
    directory = layout.find(path)
    recipe = rebuild(directory, None if recipe is None else plan(recipe, {}))
    return load_model(directory, recipe, "final", lambda: load_data(directory, recipe))
