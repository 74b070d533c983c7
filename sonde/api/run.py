"""Run: a run on disk, to open, predict with, look into and report on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..core import registry
from ..core.batch import Batch, Data, ask
from ..core.errors import BadInput, DataUnusable, NoCheckpoint, nearest
from ..core.options import options_of
from ..core.reading import Reading, Subject
from ..core.recipe import Recipe
from ..engine import checkpoint
from ..engine.plan import Plan, plan_of
from ..engine.state import load_model_, misfit, model_tensors, random_states, restore_random_states, seed_everything
from ..runs import checkpoints, layout
from ..runs.layout import RunDirectory


def open_run(path: str | Path, recipe: Recipe | Callable[..., Recipe] | None = None) -> Run:
    """A run by its directory or its name under runs/; `recipe` only for one started from Python with its own."""
    old = layout.find(path)
    return Run(old.path, None if recipe is None else plan_of(old, recipe))


class Run:
    """A run on disk: what was asked, what happened, what was learned."""

    def __init__(self, path: str | Path, run_plan: Plan | None = None) -> None:
        self.directory = RunDirectory(path)
        self.path, self.name = self.directory.path, self.directory.path.name
        self._asked = run_plan

    def __repr__(self) -> str:
        summary = ", ".join(f"{name} {value:.4g}" for name, value in self.result.get("metrics", {}).items() if value is not None)
        return f"Run({str(self.path)!r}: {summary or 'unfinished'})"

    @property
    def info(self) -> dict[str, Any]:
        """run.json"""
        return self.directory.info()

    @property
    def result(self) -> dict[str, Any]:
        """result.json, or {} while the run is not done"""
        return self.directory.result()

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """Rows of metrics.jsonl."""
        return list(self.directory.rows("metrics.jsonl"))

    @property
    def events(self) -> list[dict[str, Any]]:
        """Rows of events.jsonl."""
        return list(self.directory.rows("events.jsonl"))

    @cached_property
    def recipe(self) -> Recipe:
        """The recipe, rebuilt from its record."""
        run_plan = self._asked or plan_of(self.directory, None)
        caller = random_states()
        try:
            seed_everything(self.info["seed"], "recipe")
            return run_plan.make(self.info["seed"])
        finally:
            restore_random_states(caller)

    @cached_property
    def data(self) -> Data:
        """The data of the recipe, refused where they are another set than the one the run was trained on."""
        data, trained = self.recipe.build_data(), self.info.get("about_data", {}).get("name", "")
        if trained not in ("", data.name) and data.train.fingerprint() != self.info["data"]["train"]["sha256"]:
            raise DataUnusable(
                f"run '{self.name}' was trained on '{trained}', and the data found now are '{data.name}'",
                where=str(self.path),
                last_good="its checkpoints",
                fix=f"set SONDE_DATA to the folder that has '{trained}'; `sonde doctor` tells which data sets are found",
            )
        return data

    def model(self, which: str | int = "final") -> nn.Module:
        """The trained model in evaluation mode: 'final', 'best', 'last', or the step of a kept checkpoint."""
        caller = random_states()
        try:
            model = self.recipe.build_model()
        finally:
            restore_random_states(caller)
        weights = self._weights(which)
        try:
            misfit(model_tensors(model), weights, "tensor")
        except DataUnusable:
            _ = self.data  # other data make a model of another size, which is the reason to tell
            raise
        load_model_(model, weights)
        return model.eval()

    def _weights(self, which: str | int) -> Mapping[str, Tensor]:
        kept = checkpoints.steps(self.directory.checkpoints)
        if not kept:
            raise NoCheckpoint(f"run '{self.name}' has no checkpoint yet", where=str(self.path), fix="train it first")
        if isinstance(which, int) and which not in kept:
            raise BadInput(f"run '{self.name}' keeps no checkpoint of step {which}", fix=f"it keeps {', '.join(map(str, kept))}")
        if isinstance(which, str) and which not in ("final", "best", "last"):
            raise BadInput(f"no model '{which}' of a run", fix=nearest(which, ("final", "best", "last")))
        snapshot = checkpoint.read(checkpoints.path_of(self.directory.checkpoints, which if isinstance(which, int) else kept[-1]))
        final_is_best = self.result.get("model_step", snapshot.step) != snapshot.step
        return checkpoint.best_weights(snapshot) if which == "best" or (which == "final" and final_is_best) else snapshot.parts["model"]

    @torch.no_grad()
    def predict(self, batch: Batch, which: str | int = "final") -> Tensor:
        """What the model says of new examples: class probabilities, means or rates, as the objective defines them."""
        if not isinstance(batch, Batch):
            message = f"predict takes a Batch, not {type(batch).__name__}"
            raise BadInput(message, where="Run.predict", fix="a file is read by run.data.reader(path), a tensor goes in as Batch(x=tensor)")
        model = self.model(which)
        n = self.recipe.evaluate_batch_size
        output = torch.cat([ask(model, batch[start : start + n]) for start in range(0, len(batch), n)])
        predict = getattr(self.recipe.objective, "predict", None)
        return predict(output) if predict is not None else output

    def subject(self, split: str | None = None, n: int = 512) -> Subject:
        """Model and examples for a lens: the first `n` of a part of the data, by default of the part nobody trained on."""
        split = split or self.shown_split
        if split not in self.data.splits:
            raise BadInput(f"the data of run '{self.name}' has no part '{split}'", fix=nearest(split, self.data.splits))
        source = self.data.splits[split]
        batch = source[torch.arange(min(n, len(source)))]
        return Subject(self.model(), batch, self.recipe.objective, self.data, self.metrics, self.name)

    @property
    def shown_split(self) -> str:
        """The part of the data that reports and lenses show: test where there is one, else valid, else train."""
        return next(name for name in ("test", "valid", "train") if len(self.data.splits.get(name, ())))

    def look(self, lens: str, *, split: str | None = None, first: int = 512, **options: Any) -> list[Reading]:
        """Look through a lens at the `first` so many examples of a part of the data."""
        module = registry.load("lenses", lens)
        readings = module.read(self.subject(split, first), **resolve_lens(module.read, options, lens))
        return readings if isinstance(readings, list) else [readings]

    def report(self) -> Path:
        """Write report.html and its figures; returns its path."""
        from importlib import import_module

        return import_module("sonde.report.page").report(self)

    def plot(self) -> Path:
        """Draw the learning curves to a PNG; returns its path."""
        from importlib import import_module

        path = self.path / "figures" / "curves.png"
        path.parent.mkdir(exist_ok=True)
        import_module("sonde.report.draw").draw(self.look("curves"), path)
        return path


def resolve_lens(read: Callable, options: dict[str, Any], lens: str) -> dict[str, Any]:
    """Options of a lens, checked."""
    known = options_of(read, f"lens '{lens}'", skip=("subject",))
    for name in options:
        if name not in known:
            raise BadInput(f"lens '{lens}' has no option '{name}'", fix=nearest(name, known))
    return {name: known[name].check(value) for name, value in options.items()}
