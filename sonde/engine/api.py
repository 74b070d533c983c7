"""train, open_run, Run: the whole of Sonde in three names."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .. import __version__
from ..core import files, registry
from ..core.batch import Batch, Data, ask
from ..core.errors import BadInput, DataUnusable, NoCheckpoint, nearest
from ..core.options import options_of, resolve
from ..core.reading import Reading, Subject
from ..core.recipe import Recipe
from . import checkpoint, rundir
from .fingerprint import blas_threads, differences, fingerprint, listed
from .job import Job, building, settled_torch
from .launch import launch, tell
from .loop import Loop
from .options import Options
from .progress import hushed, now
from .record import Record
from .rundir import RunDirectory
from .signals import StopAtOnce
from .state import load_model_, misfit, model_tensors, random_states, restore_random_states, seed_everything
from .world import World


@dataclass(frozen=True)
class Plan:
    """What was asked: where the recipe comes from, its options, and how to make it."""

    make: Callable[[int], Recipe]
    source: dict[str, Any]
    """{"name"} of a recipe in the registry, {"file", "sha256"} of a user's file, or {"object"} made in Python"""
    name: str
    options: dict[str, Any] = field(default_factory=dict)
    file: Path | None = None


def plan(recipe: str | Path | Recipe | Callable[..., Recipe], overrides: dict[str, Any]) -> Plan:
    """Find a recipe and check its options; nothing is built yet."""
    if isinstance(recipe, Recipe):
        if overrides:
            raise BadInput(f"a Recipe object has no option '{next(iter(overrides))}'", fix="change it with recipe.replace(...)")
        return Plan(lambda seed: recipe, {"object": "Recipe"}, "recipe")
    file = None
    function: Any
    if callable(recipe):
        function, name, source = recipe, recipe.__name__, {"object": f"{recipe.__module__}.{recipe.__qualname__}"}
    elif str(recipe).endswith(".py"):
        file = Path(recipe)
        function, name = getattr(registry.load_file(file), "recipe", None), file.stem
        if function is None:
            raise BadInput(f"{file.name} defines no function 'recipe'", fix="write: def recipe(...) -> Recipe")
        source = {"file": str(file.resolve()), "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}
    else:
        name = registry.check("recipes", str(recipe))
        function, source = registry.load("recipes", name).recipe, {"name": name}
    return Plan(_maker(function, overrides, f"recipe '{name}'"), source, name, _options(function, overrides, f"recipe '{name}'"), file)


def _options(function: Callable[..., Recipe], overrides: dict[str, Any], owner: str) -> dict[str, Any]:
    """All options but the seed, which is an option of the run."""
    if "seed" in overrides:
        raise BadInput(f"{owner} has no option 'seed'", fix="the seed is an option of the run: --seed")
    known = options_of(function, owner)
    values = resolve(function, {**({"seed": 0} if "seed" in known else {}), **overrides}, owner)
    return {name: value for name, value in values.items() if name != "seed"}


def _maker(function: Callable[..., Recipe], overrides: dict[str, Any], owner: str) -> Callable[[int], Recipe]:
    values = _options(function, overrides, owner)
    seeded = "seed" in options_of(function, owner)

    def make(seed: int) -> Recipe:
        with building(owner):
            recipe = function(**values, **({"seed": seed} if seeded else {}))
        if not isinstance(recipe, Recipe):
            raise BadInput(f"{owner} returned {type(recipe).__name__}", fix="return a sonde.Recipe")
        return recipe

    return make


def train(
    recipe: str | Path | Recipe | Callable[..., Recipe] | None = None,
    *,
    run: str | Path | None = None,
    resume: bool | str | Path = False,
    seed: int | None = None,
    processes: int | None = None,
    threads: int | None = None,
    device: str | None = None,
    shards: int | None = None,
    parallel: str | None = None,
    checkpoint_every: int | None = None,
    exact: bool = False,
    accept_data_change: bool = False,
    tensorboard: bool = False,
    hang_timeout: float | None = None,
    restarts: int | None = None,
    quiet: bool = False,
    **overrides: Any,
) -> Run:
    """Train a recipe, by name, file, function or object; other keyword arguments are its options.

    run        directory of the run; one that exists already is resumed; default: the next free runs/NAME-001
    resume     go on with a run: True for the latest one, or its directory; its recipe and options are read from it
    The rest is described in `sonde.engine.options.Options`.
    """
    loose: dict[str, Any] = {"seed": seed, "processes": processes, "threads": threads, "device": device, "shards": shards}
    loose |= {"parallel": parallel, "checkpoint_every": checkpoint_every, "hang_timeout": hang_timeout, "restarts": restarts}
    explicit = {name: value for name, value in loose.items() if value is not None}
    switches = {"exact": exact, "accept_data_change": accept_data_change, "tensorboard": tensorboard, "quiet": quiet}
    options = Options.of({**explicit, **switches})
    if resume:
        if overrides or (recipe is not None and not isinstance(recipe, Recipe) and not callable(recipe)):
            raise BadInput("a resumed run keeps its recipe and options", fix="leave them out, or start a new run")
        old = rundir.latest() if resume is True else rundir.find(resume)
        run = old.path
        run_plan = _plan_of(old, recipe)
    elif recipe is None:
        raise BadInput("no recipe given", fix="choose from " + ", ".join(registry.names("recipes")))
    else:
        run_plan = plan(recipe, overrides)
    world = World.alone()
    if World.under_torchrun():
        world = World.from_torchrun(options.device)
        explicit["processes"] = world.size
        options = replace(options, processes=world.size)
    with _claimed(run, run_plan.name, world) as path:
        directory = RunDirectory(path)
        recorded, done = _shared(world, lambda: (_recorded(directory, run_plan, options, explicit), directory.is_done))
        if done:
            if not quiet and world.is_main:
                print(f"{directory.path.name} is already finished")
            return Run(path, run_plan)
        settled = options.settle(os.cpu_count() or 1, recorded, set(explicit))
        if settled.processes > world.size:
            launch(
                lambda world: execute(run_plan, settled, path, world),
                settled.processes,
                progress=lambda: max(checkpoint.steps(directory.checkpoints), default=None),
                threads=settled.threads or 1,
                hang_timeout=settled.hang_timeout,
                restarts=settled.restarts,
                on_event=partial(_lost_worker, directory),
            )
        else:
            execute(run_plan, settled, path, world)
    world.close()
    return Run(path, run_plan)


def _lost_worker(directory: RunDirectory, event: Mapping[str, Any]) -> None:
    """Tell of a restart, on the screen and in events.jsonl; no worker is alive meanwhile, so the file is free."""
    tell(event)
    if directory.exists:
        log = rundir.Log(directory.path / "events.jsonl")
        log.open(None)
        log.add({**event, "time": now()})
        log.close()


def _shared(world: World, read: Callable[[], Any]) -> Any:
    """What rank 0 finds on its disk, on every rank: under torchrun the others may not see the run directory."""
    return files.parse_json(world.broadcast_bytes(files.dump_json(read()) if world.is_main else None))


@contextmanager
def _claimed(run: str | Path | None, name: str, world: World):
    """The directory of the run.  A fresh one is reserved by making it; left empty by an error, it is removed again."""
    if not world.is_main:
        yield Path(_shared(world, str))
        return
    if run is not None:
        path, new_directories = Path(run), []
    else:
        new_directories = [] if rundir.ROOT.exists() else [rundir.ROOT]
        while True:
            path = rundir.fresh(name)
            try:
                path.mkdir(parents=True)
                new_directories.insert(0, path)
                break
            except FileExistsError:
                continue
            except OSError as error:
                from ..core.errors import ResourceFault

                raise ResourceFault(
                    f"no run directory can be made: {error.strerror}", where=str(path), fix="choose one with --run DIR"
                ) from error
    _shared(world, lambda: str(path))
    try:
        yield path
    except BaseException:
        for directory in new_directories:
            try:
                directory.rmdir()
            except OSError:
                break
        raise


def _recorded(directory: RunDirectory, run_plan: Plan, options: Options, explicit: dict[str, Any]) -> dict[str, Any] | None:
    """Options of the run that is already in the directory, after making sure it is the same run; None for a new one."""
    if not directory.exists:
        return None
    info = directory.info()
    here = f"run '{directory.path.name}'"
    fix = "use another --run for a new run, or --resume to go on with this one as it was"
    for part in ("name", "object"):
        if info["recipe"].get(part) != run_plan.source.get(part):
            raise BadInput(f"{here} was made with recipe {_say_source(info['recipe'])}, not {_say_source(run_plan.source)}", fix=fix)
    if info["recipe"].get("sha256") != run_plan.source.get("sha256"):
        raise BadInput(f"{here} was made with another version of {run_plan.name}.py", fix=fix)
    was, now = info["options"], _jsonable(run_plan.options)
    for name in sorted({*was, *now}):
        if was.get(name) != now.get(name):
            raise BadInput(f"{here} has {name}={was.get(name)}, not {now.get(name)}", fix=fix)
    if "seed" in explicit and explicit["seed"] != info["seed"]:
        raise BadInput(f"{here} has seed {info['seed']}, not {explicit['seed']}", fix=fix)
    return info["run_options"]


def _say_source(source: dict[str, Any]) -> str:
    return f"'{source.get('name') or source.get('file') or source.get('object')}'"


def _plan_of(old: RunDirectory, recipe: Any) -> Plan:
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


def execute(run_plan: Plan, options: Options, path: Path, world: World) -> None:
    """One process of a run, from building the recipe to the last metric."""
    caller = random_states()
    assert options.threads is not None
    # Several processes are told to stop by their launcher, all at one step.
    alone = StopAtOnce(str(path), "outside the training loop") if world.size == 1 else nullcontext()
    with settled_torch(options.threads, options.device), blas_threads(options.threads), alone, hushed(options.quiet or not world.is_main):
        try:
            _execute(run_plan, options, path, world)
        finally:
            restore_random_states(caller)


def _execute(run_plan: Plan, options: Options, path: Path, world: World) -> None:
    world.beat(0, "start")
    directory = RunDirectory(path)
    job = Job(lambda: run_plan.make(options.seed), options, world)
    if world.is_main and not directory.exists:
        job.check()
    job.prepare_training()
    marks = fingerprint(
        threads=options.threads, shards=job.shards, precision=job.recipe.precision, device=job.device.type, parallel=options.parallel
    )
    if options.parallel == "fsdp":  # torch adds up over the processes in an order of its own
        marks["processes"] = world.size
    record = Record(directory, options, world, {"run": path.name, "fingerprint": marks})
    try:
        info: dict[str, Any] = {}
        warning = ""
        if world.is_main:
            directory.open_for_writing()
            info, warning = _register(directory, run_plan, options, job, marks)
        record.open()
        if options.tensorboard and world.is_main:
            from .tensorboard import TensorBoard

            record.callbacks.append(TensorBoard(path / "tensorboard"))
        loop = Loop(job, record)
        seed_everything(options.seed, "rank", world.rank)
        resumed = record.restore(loop)
        if world.is_main:
            _update(directory, info)
        if warning:
            record.warn(warning, loop.step)
        record.event("resume" if resumed else "start", loop.step, processes=world.size, threads=options.threads, regime=job.regime)
        if resumed:
            record.say(f"resuming {path.name} at step {loop.step} of {job.steps}")
        elif job.recipe.on_bad == "rollback":
            record.save(loop)
        for callback in loop.callbacks:
            callback.start(record)
        loop.run()
        _finish(job, loop, record)
    finally:
        record.close()
        directory.close()


def _register(directory: RunDirectory, run_plan: Plan, options: Options, job: Job, marks: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Write run.json for a new run, or compare it with this one; returns what it is to hold from now on, and what to warn of."""
    hashes: dict[str, Any] = {name: {"n": len(source), "sha256": source.fingerprint()} for name, source in job.data.splits.items()}
    if not directory.exists:
        if run_plan.file is not None:
            files.replace_file(directory.path / "recipe.py", run_plan.file.read_bytes())
        directory.write("run.json", _about(run_plan, options, job, marks, hashes))
        return directory.info(), ""
    info = directory.info()
    changed = [name for name in sorted({*hashes, *info["data"]}) if hashes.get(name) != info["data"].get(name)]
    if changed and not options.accept_data_change:
        was, now = (side.get(changed[0], {"n": 0, "sha256": "none"}) for side in (info["data"], hashes))
        fix = "restore the data, or go on with the new ones: --accept-data-change"
        if arithmetic := differences(info["fingerprint"], marks):  # a normal draw, say, rounds as the processor does
            fix = f"{fix}; data that are computed also change with the arithmetic ({listed(arithmetic)})"
        raise DataUnusable(
            f"the {changed[0]} data changed since the run began",
            where=f"{job.data.name}: {was['n']} examples, hash {was['sha256'][:12]} then; {now['n']}, {now['sha256'][:12]} now",
            last_good=f"the checkpoints in {directory.checkpoints}",
            fix=fix,
        )
    if changed or info["fingerprint"] != marks:
        info = {**info, "data": hashes, "fingerprint": marks, "run_options": options.record()}
    return info, f"the data changed ({', '.join(changed)}), as accepted" if changed else ""


def _update(directory: RunDirectory, info: dict[str, Any]) -> None:
    """Put into run.json what it is to hold from now on."""
    if directory.info() != info:
        directory.write("run.json", info)


def _about(run_plan: Plan, options: Options, job: Job, marks: dict[str, Any], hashes: dict[str, Any]) -> dict[str, Any]:
    import platform

    trainable = sum(p.numel() for p in job.model.parameters() if p.requires_grad)
    return {
        "format": rundir.FORMAT,
        "recipe": run_plan.source,
        "options": _jsonable(run_plan.options),
        "seed": options.seed,
        "run_options": options.record(),
        "versions": {"sonde": __version__, "python": platform.python_version(), "torch": torch.__version__},
        "machine": {"system": platform.system(), "processor": platform.machine(), "cores": os.cpu_count()},
        "fingerprint": marks,
        "data": hashes,
        "about_data": {"name": job.data.name, "task": job.data.task, "report": _jsonable(dict(job.data.report))},
        "parameters": {"trainable": trainable, "all": sum(p.numel() for p in job.model.parameters())},
        "steps": job.steps,
        "steps_per_epoch": job.order.steps_per_epoch,
    }


def _jsonable(values: dict[str, Any]) -> dict[str, Any]:
    def plain(value: Any) -> Any:
        if isinstance(value, Path):
            return str(value)
        return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value

    return {name: plain(value) for name, value in values.items()}


def _finish(job: Job, loop: Loop, record: Record) -> None:
    """Best weights back if asked, the test metrics once, and result.json as the sign that the run is done."""
    world = job.world
    restore = job.recipe.restore_best if job.recipe.restore_best is not None else bool(job.recipe.patience)
    step = loop.step
    if restore and loop.best.step and loop.best.step != loop.step:
        step = loop.best.step
        job.replica.load({"model": loop.best.weights, "optim": {}})
    metrics: dict[str, float] = {}
    for name in ("valid", "test"):
        source = job.data.splits.get(name)
        if source is not None and len(source):
            world.beat(loop.step, "evaluate")
            metrics |= {f"{name}/{metric}": value for metric, value in job.evaluate(source).items()}
    if world.is_main:
        tests = {name: value for name, value in metrics.items() if name.startswith("test/")}
        record.row({"step": loop.step, "epoch": loop.epoch, **tests, "model_step": step})
        record.metrics.sync()
        for callback in loop.callbacks:
            callback.finish(record, loop.step, job.model)
        record.event("finish", loop.step)
        record.events.sync()
        record.directory.write("result.json", {"status": "done", "steps": loop.step, "model_step": step, "metrics": _finite(metrics)})


def _finite(metrics: dict[str, float]) -> dict[str, float | None]:
    import math

    return {name: value if math.isfinite(value) else None for name, value in metrics.items()}


def open_run(path: str | Path, recipe: Recipe | Callable[..., Recipe] | None = None) -> Run:
    """A run by its directory or its name under runs/; `recipe` only for one started from Python with its own."""
    old = rundir.find(path)
    return Run(old.path, None if recipe is None else _plan_of(old, recipe))


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
        run_plan = self._asked or _plan_of(self.directory, None)
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
        kept = checkpoint.steps(self.directory.checkpoints)
        if not kept:
            raise NoCheckpoint(f"run '{self.name}' has no checkpoint yet", where=str(self.path), fix="train it first")
        if isinstance(which, int) and which not in kept:
            raise BadInput(f"run '{self.name}' keeps no checkpoint of step {which}", fix=f"it keeps {', '.join(map(str, kept))}")
        if isinstance(which, str) and which not in ("final", "best", "last"):
            raise BadInput(f"no model '{which}' of a run", fix=nearest(which, ("final", "best", "last")))
        snapshot = checkpoint.read(checkpoint.path_of(self.directory.checkpoints, which if isinstance(which, int) else kept[-1]))
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

        return import_module("sonde.lenses._report").report(self)

    def plot(self) -> Path:
        """Draw the learning curves to a PNG; returns its path."""
        from importlib import import_module

        path = self.path / "figures" / "curves.png"
        path.parent.mkdir(exist_ok=True)
        import_module("sonde.lenses._draw").draw(self.look("curves"), path)
        return path


def resolve_lens(read: Callable, options: dict[str, Any], lens: str) -> dict[str, Any]:
    """Options of a lens, checked."""
    known = options_of(read, f"lens '{lens}'", skip=("subject",))
    for name in options:
        if name not in known:
            raise BadInput(f"lens '{lens}' has no option '{name}'", fix=nearest(name, known))
    return {name: known[name].check(value) for name, value in options.items()}
