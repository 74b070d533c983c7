"""Sweeps: one recipe with many settings, ranked by mean, with the standard deviation over seeds.

A sweep is a folder of ordinary runs and one sweep.json.  Started again in the same folder it skips finished runs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, stdev
from typing import Annotated, Any, Literal

from ..core import files
from ..core.errors import BadInput, NumericalStop
from ..core.options import Range, checked
from ..core.recipe import SIGNS
from ..core.seeds import key
from ..engine.options import Options
from ..engine.plan import jsonable, plan
from ..runs import layout
from ..runs.layout import RunDirectory
from .run import Run
from .training import train

Method = Literal["grid", "random", "tpe"]


@dataclass
class SweepRow:
    """One setting with the metrics of all its seeds."""

    setting: dict[str, Any]
    metrics: dict[str, list[float]] = field(default_factory=dict)
    runs: list[Path] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def mean(self, name: str) -> float:
        values = self.metrics.get(name, [])
        return mean(values) if values and not self.failures else math.inf

    def spread(self, name: str) -> float:
        values = self.metrics.get(name, [])
        return stdev(values) if len(values) > 1 else 0.0


@dataclass
class Sweep:
    """Results of a sweep: `rows`, best first by `monitor`, the metric that the recipe monitors."""

    folder: Path
    monitor: str
    mode: str
    rows: list[SweepRow]
    axes: dict[str, list[Any]]

    @property
    def best(self) -> SweepRow:
        return self.rows[0]

    def table(self) -> str:
        """Ranked plain-text table: mean and spread over seeds."""
        name = self.monitor
        others = [
            metric
            for metric in ("valid/accuracy", "test/accuracy", "test/loss")
            if metric != name and any(metric in row.metrics for row in self.rows)
        ]
        options = self._varied_options()
        head = ["rank", *options, f"{name} (mean ± spread)", *others, "seeds"]
        body = []
        for rank, row in enumerate(self.rows, 1):
            cells = [_format(row.setting[option]) for option in options]
            outcome = row.failures[0].split("\n")[0] if row.failures else _pm(row, name)
            body.append([str(rank), *cells, outcome, *(_pm(row, metric) for metric in others), str(len(row.runs))])
        widths = [max(len(line[column]) for line in [head, *body]) for column in range(len(head))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in [head, *body]]
        return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:], f"runs and figure: {self.folder}"])

    def plot(self) -> Path:
        """Metric against the swept options, with the spread over seeds, as a PNG."""
        from ..report.draw import draw

        path = self.folder / "sweep.png"
        draw(self.reading(), path)
        return path

    def reading(self) -> Any:
        from ..core.reading import Bars

        name = self.monitor
        good = [row for row in self.rows if not row.failures]
        varied = self._varied_options()
        labels = ["  ".join(f"{option} {_format(row.setting[option])}" for option in varied) or "all" for row in good]
        note = "Mean over seeds, best first; a dot is one seed."
        return Bars(
            self.folder.name,
            {name: [row.mean(name) for row in good]},
            ["setting"],
            note,
            labels=labels,
            dots={name: [row.metrics.get(name, []) for row in good]},
        )

    def _varied_options(self) -> list[str]:
        """Options that take more than one value."""
        options = list(self.rows[0].setting) if self.rows else []
        return [option for option in options if len({_format(row.setting[option]) for row in self.rows}) > 1]


@checked
def sweep(
    recipe: Any,
    axes: Mapping[str, Sequence[Any]],
    *,
    method: Method = "grid",
    trials: Annotated[int | None, Range(1)] = None,
    folder: str | Path | None = None,
    threads: int | None = None,
    quiet: bool = False,
    **fixed: Any,
) -> Sweep:
    """Train a recipe for many settings of its options; `seed` is an axis too, over which metrics are averaged.

    Args:
        recipe: a recipe by name, file or function
        axes: option -> values; for random and tpe, two numbers are the ends of a range, more are choices
        method: grid for all combinations; random for random samples; tpe for samples that learn from earlier ones
        trials: number of samples of random and tpe
        folder: directory of the runs; a sweep that it already contains is continued
        threads: of each run
        quiet: print no progress
        fixed: options with one value for all runs
    """
    values = {name: list(options) for name, options in axes.items()}
    _check(recipe, values, method, trials, fixed)
    seeds = [int(seed) for seed in values.pop("seed", [0])]
    name = plan(recipe, {**fixed, **{option: options[0] for option, options in values.items()}}).name
    directory = Path(folder) if folder is not None else layout.fresh(f"{name}-sweep")
    directory.mkdir(parents=True, exist_ok=True)
    _same_sweep(directory, {"recipe": name, "axes": values, "seeds": seeds, "method": method, "trials": trials, "fixed": jsonable(fixed)})
    runner = _Runner(recipe, fixed, seeds, directory, threads, quiet)
    settings = _grid(values) if method == "grid" else None
    rows = runner.all(list(settings)) if settings is not None else list(_search_settings(runner, values, method, trials or 1))
    rows.sort(key=lambda row: math.inf if row.failures else runner.score(row))
    result = Sweep(directory, runner.monitor, runner.mode, rows, values)
    listing = [
        {"setting": jsonable(r.setting), "metrics": r.metrics, "runs": [p.name for p in r.runs], "failures": r.failures} for r in rows
    ]
    files.replace_file(directory / "result.json", files.dump_json({"monitor": result.monitor, "mode": result.mode, "rows": listing}))
    return result


def _check(recipe: Any, values: dict[str, list[Any]], method: str, trials: int | None, fixed: Mapping[str, Any]) -> None:
    """Refuse a wrong axis before training: every value is checked as an option."""
    if method != "grid" and not trials:
        raise BadInput(f"method '{method}' needs a number of trials", fix="add --trials 20")
    for name, options in values.items():
        if not options:
            raise BadInput(f"axis '{name}' has no values", fix=f"give some: --{name} VALUE VALUE")
        for option in options if name != "seed" else ():
            plan(recipe, {**fixed, name: option})
    Options.of({"seed": values["seed"][0]} if "seed" in values else {})


def _same_sweep(directory: Path, config: dict[str, Any]) -> None:
    record = directory / "sweep.json"
    config = files.parse_json(files.dump_json({**config, "axes": {n: jsonable({"v": v})["v"] for n, v in config["axes"].items()}}))
    if record.is_file():
        earlier = files.read_json(record)
        for part in ("recipe", "method", "fixed"):
            if earlier.get(part) != config[part]:
                raise BadInput(
                    f"folder '{directory.name}' already contains a different sweep ({part} {earlier.get(part)})",
                    fix="choose another folder",
                )
    files.replace_file(record, files.dump_json(config))


def _grid(values: Mapping[str, list[Any]]) -> Iterator[dict[str, Any]]:
    for combination in itertools.product(*values.values()):
        yield dict(zip(values, combination, strict=True))


def _search_settings(runner: _Runner, values: dict[str, list[Any]], method: str, trials: int) -> Iterator[SweepRow]:
    """Settings sampled by optuna, one after another; its study is in memory and is replayed from the finished runs."""
    try:
        import optuna
    except ImportError as error:
        raise BadInput("optuna is not installed", fix="pip install sonde[tune], or use --method grid") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    seed = key(0, "sweep") % 2**32
    sampler = optuna.samplers.RandomSampler(seed=seed) if method == "random" else optuna.samplers.TPESampler(seed=seed)
    study = optuna.create_study(sampler=sampler)
    for _ in range(trials):
        trial = study.ask()
        row = runner.all([{name: _suggest(trial, name, options) for name, options in values.items()}])[0]
        score = runner.score(row)
        if math.isfinite(score):
            study.tell(trial, score)
        else:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
        yield row


def _suggest(trial: Any, name: str, options: list[Any]) -> Any:
    numbers = (
        len(options) == 2 and all(isinstance(o, (int, float)) and not isinstance(o, bool) for o in options) and options[0] < options[1]
    )
    if not numbers:
        labels = [_format(option) for option in options]
        return options[labels.index(trial.suggest_categorical(name, labels))]
    low, high = options
    wide = low > 0 and high / low >= 10
    if all(isinstance(option, int) for option in options):
        return trial.suggest_int(name, low, high, log=wide)
    return float(f"{trial.suggest_float(name, low, high, log=wide):.4g}")


class _Runner:
    """Trains settings over seeds and reads their metrics."""

    def __init__(self, recipe: Any, fixed: Mapping[str, Any], seeds: list[int], folder: Path, threads: int | None, quiet: bool) -> None:
        self.recipe, self.fixed, self.seeds, self.folder = recipe, dict(fixed), seeds, folder
        self.threads, self.quiet = threads, quiet
        self.monitor, self.mode = "valid/loss", "min"

    def all(self, settings: list[dict[str, Any]]) -> list[SweepRow]:
        members = [(setting, seed) for setting in settings for seed in self.seeds]
        todo = [member for member in members if not self._done(*member)]
        failures: dict[Path, str] = {}
        for count, (setting, seed) in enumerate(todo, 1):
            path = self._path(setting, seed)
            if not self.quiet:
                print(f"{count}/{len(todo)}  {path.name}")
            try:
                train(self.recipe, run=path, seed=seed, threads=self.threads, quiet=True, **self.fixed, **setting)
            except NumericalStop as stop:
                failures[path] = str(stop)
        rows = []
        for setting in settings:
            row = SweepRow(setting)
            for seed in self.seeds:
                self._read(row, self._path(setting, seed), failures)
            rows.append(row)
        if rows:
            first = plan(self.recipe, {**self.fixed, **settings[0]}).make(self.seeds[0])
            self.monitor, self.mode = first.monitor, first.mode
        return rows

    def score(self, row: SweepRow) -> float:
        """What is minimized: the mean of the monitored metric, or its negative."""
        return SIGNS[self.mode] * row.mean(self.monitor)

    def _read(self, row: SweepRow, path: Path, failures: Mapping[Path, str]) -> None:
        row.runs.append(path)
        if path in failures:
            row.failures.append(failures[path])
            return
        for name, value in RunDirectory(path).result().get("metrics", {}).items():
            if value is not None:
                row.metrics.setdefault(name, []).append(value)

    def _path(self, setting: Mapping[str, Any], seed: int) -> Path:
        label = ",".join(f"{name}={_format(value)}" for name, value in setting.items())
        return self.folder / f"{label + ',' if label else ''}seed={seed}".replace("/", "_")

    def _done(self, setting: Mapping[str, Any], seed: int) -> bool:
        return RunDirectory(self._path(setting, seed)).is_done


def _pm(row: SweepRow, name: str) -> str:
    if name not in row.metrics:
        return "-"
    return f"{row.mean(name):.4g}" + (f" ± {row.spread(name):.2g}" if len(row.metrics[name]) > 1 else "")


def _format(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return "-".join(map(_format, value)) if isinstance(value, (tuple, list)) else str(value)


__all__ = ["Run", "Sweep", "SweepRow", "sweep"]
