"""Run: a run on disk, to open, predict with, inspect and report on."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..core import registry
from ..core.batch import Batch, Data, call_model
from ..core.errors import BadInput, nearest
from ..core.options import check_values, options_of
from ..core.reading import Reading, Subject
from ..core.recipe import Recipe
from ..engine import saved
from ..engine.plan import RunPlan, plan_of
from ..runs import layout
from ..runs.layout import RunDirectory


def open_run(path: str | Path, recipe: Recipe | Callable[..., Recipe] | None = None) -> Run:
    """Open a run by its directory or its name under runs/; `recipe` is needed only if the run was started from Python with its own."""
    old = layout.find(path)
    return Run(old.path, None if recipe is None else plan_of(old, recipe))


class Run:
    """A run on disk: its configuration, metrics, events and trained model."""

    def __init__(self, path: str | Path, run_plan: RunPlan | None = None) -> None:
        self.directory = RunDirectory(path)
        self.path, self.name = self.directory.path, self.directory.path.name
        self._plan = run_plan

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
        return saved.rebuild(self.directory, self._plan)

    @cached_property
    def data(self) -> Data:
        """The data of the recipe; an error if they are not the data that the run was trained on."""
        return saved.load_data(self.directory, self.recipe)

    def model(self, which: saved.Which = "final") -> nn.Module:
        """The trained model in evaluation mode: 'final', 'best', 'last', or the step of a kept checkpoint."""
        return saved.load_model(self.directory, self.recipe, which, lambda: self.data)

    @torch.no_grad()
    def predict(self, batch: Batch, which: saved.Which = "final") -> Tensor:
        """Predictions for new examples: class probabilities, means or rates, as the objective defines them."""
        if not isinstance(batch, Batch):
            message = f"predict takes a Batch, not {type(batch).__name__}"
            raise BadInput(message, where="Run.predict", fix="pass Batch(x=tensor); for a file, run.data.reader(path)")
        model = self.model(which)
        n = self.recipe.evaluate_batch_size
        output = torch.cat([call_model(model, batch[start : start + n]) for start in range(0, len(batch), n)])
        predict = getattr(self.recipe.objective, "predict", None)
        return predict(output) if predict is not None else output

    def subject(self, split: str | None = None, n: int = 512) -> Subject:
        """Model and examples for a lens: the first `n` of a split, by default of `shown_split`."""
        split = split or self.shown_split
        if split not in self.data.splits:
            raise BadInput(f"the data of run '{self.name}' has no split '{split}'", fix=nearest(split, self.data.splits))
        source = self.data.splits[split]
        batch = source[torch.arange(min(n, len(source)))]
        return Subject(self.model(), batch, self.recipe.objective, self.data, self.metrics, self.name)

    @property
    def shown_split(self) -> str:
        """The split that reports and lenses show: test if there is one, else valid, else train."""
        return next(name for name in ("test", "valid", "train") if len(self.data.splits.get(name, ())))

    def look(self, lens: str, *, split: str | None = None, first: int = 512, **options: Any) -> list[Reading]:
        """Read a lens, given by name or by the path of a file, on the `first` examples of a split."""
        read = registry.function_of("lenses", lens, "read", "def read(subject: Subject) -> Reading")
        readings = read(self.subject(split, first), **resolve_lens(read, options, registry.label(lens)))
        return readings if isinstance(readings, list) else [readings]

    def report(self) -> Path:
        """Write report.html and its figures; returns its path."""
        from ..report.page import report

        return report(self)

    def plot(self) -> Path:
        """Draw the learning curves to a PNG; returns its path."""
        from ..report.draw import draw

        path = self.path / "figures" / "curves.png"
        path.parent.mkdir(exist_ok=True)
        draw(self.look("curves"), path)
        return path


def resolve_lens(read: Callable, options: dict[str, Any], lens: str) -> dict[str, Any]:
    """Options of a lens, checked."""
    owner = f"lens '{lens}'"
    return check_values(options_of(read, owner, skip=("subject",)), options, owner)
