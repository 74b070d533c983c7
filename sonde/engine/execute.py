"""One run from its first process to its last metric: claim the directory, start the workers, build, resume, train, finish."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from .. import __version__
from ..core import files
from ..core.errors import BadInput, DataUnusable
from ..core.recipe import Recipe
from ..runs import checkpoints, layout, rows
from ..runs.clock import now
from ..runs.layout import RunDirectory
from .fingerprint import blas_threads, differences, fingerprint, list_changes
from .job import Job, torch_settings
from .launch import launch, print_event
from .options import Options
from .plan import RunPlan, describe_source, jsonable, plan
from .progress import silence
from .record import Record
from .signals import StopAtOnce
from .state import random_states, restore_random_states, seed_everything
from .trainer import Trainer
from .world import World


def start(run_plan: RunPlan, run: str | Path | None, options: Options, explicit: Mapping[str, Any]) -> Path:
    """Train a plan in this process or in workers of its own; returns the run directory.

    Args:
        run: the directory; one that exists already is resumed; None for the next free one
        explicit: those of the options that were asked for, which win over what the run was started with
    """
    world = World.single()
    if World.under_torchrun():
        world = World.from_torchrun(options.device)
        explicit = {**explicit, "processes": world.size}
        options = replace(options, processes=world.size)
    with _claim(run, run_plan.name, world) as path:
        directory = RunDirectory(path)
        recorded, done = _from_rank_0(world, lambda: (_recorded_options(directory, run_plan, options, explicit), directory.is_done))
        if done:
            if not options.quiet and world.is_main:
                print(f"{directory.path.name} is already finished")
            return path
        settled = options.settle(os.cpu_count() or 1, recorded, set(explicit))
        if settled.processes > world.size:
            launch(
                lambda world: execute(run_plan, settled, path, world),
                settled.processes,
                progress=lambda: max(checkpoints.steps(directory.checkpoints), default=None),
                threads=settled.threads or 1,
                hang_timeout=settled.hang_timeout,
                restarts=settled.restarts,
                on_event=partial(_report_restart, directory),
            )
        else:
            execute(run_plan, settled, path, world)
    world.close()
    return path


def train_quietly(recipe: Recipe, path: str | Path, **options: Any) -> RunDirectory:
    """Train a recipe made in Python without any output, for code that needs the trained model only; returns the run directory."""
    return RunDirectory(start(plan(recipe, {}), path, Options.of({**options, "quiet": True}), options))


def _report_restart(directory: RunDirectory, event: Mapping[str, Any]) -> None:
    """Report a restart on the screen and in events.jsonl; no worker is alive, so the file is not in use."""
    print_event(event)
    if directory.exists:
        log = rows.Log(directory.path / "events.jsonl")
        log.open(None)
        log.add({**event, "time": now()})
        log.close()


def _from_rank_0(world: World, read: Callable[[], Any]) -> Any:
    """Broadcast what rank 0 reads from disk: under torchrun other ranks may not see the run directory."""
    return files.parse_json(world.broadcast_bytes(files.dump_json(read()) if world.is_main else None))


@contextmanager
def _claim(run: str | Path | None, name: str, world: World):
    """The directory of the run.  A new one is created; if an error leaves it empty, it is removed."""
    if not world.is_main:
        yield Path(_from_rank_0(world, str))
        return
    if run is not None:
        path, new_directories = Path(run), []
    else:
        new_directories = [] if layout.ROOT.exists() else [layout.ROOT]
        while True:
            path = layout.fresh(name)
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
    _from_rank_0(world, lambda: str(path))
    try:
        yield path
    except BaseException:
        for directory in new_directories:
            try:
                directory.rmdir()
            except OSError:
                break
        raise


def _recorded_options(directory: RunDirectory, run_plan: RunPlan, options: Options, explicit: Mapping[str, Any]) -> dict[str, Any] | None:
    """Options of the run that is already in the directory, after making sure it is the same run; None for a new one."""
    if not directory.exists:
        return None
    info = directory.info()
    here = f"run '{directory.path.name}'"
    fix = "use another --run for a new run, or --resume to continue this one unchanged"
    for part in ("name", "object"):
        if info["recipe"].get(part) != run_plan.source.get(part):
            raise BadInput(
                f"{here} was made with recipe {describe_source(info['recipe'])}, not {describe_source(run_plan.source)}", fix=fix
            )
    if info["recipe"].get("sha256") != run_plan.source.get("sha256"):
        raise BadInput(f"{here} was made with another version of {run_plan.name}.py", fix=fix)
    was, now = info["options"], jsonable(run_plan.options)
    for name in sorted({*was, *now}):
        if was.get(name) != now.get(name):
            raise BadInput(f"{here} was started with {name}={was.get(name)}, not {now.get(name)}", fix=fix)
    if "seed" in explicit and explicit["seed"] != info["seed"]:
        raise BadInput(f"{here} has seed {info['seed']}, not {explicit['seed']}", fix=fix)
    return {**info["run_options"], "precision": info["fingerprint"].get("precision")}  # what `auto` chose, not 'auto'


def execute(run_plan: RunPlan, options: Options, path: Path, world: World) -> None:
    """One process of a run, from building the recipe to the last metric."""
    caller = random_states()
    assert options.threads is not None
    # With several processes the launcher stops all of them at the same step.
    alone = StopAtOnce(str(path), "outside the training loop") if world.size == 1 else nullcontext()
    with torch_settings(options.threads, options.device), blas_threads(options.threads), alone, silence(options.quiet or not world.is_main):
        try:
            _execute(run_plan, options, path, world)
        finally:
            restore_random_states(caller)


def _execute(run_plan: RunPlan, options: Options, path: Path, world: World) -> None:
    world.beat(0, "start")
    directory = RunDirectory(path)
    job = Job(lambda: run_plan.make(options.seed), options, world)
    if world.is_main and not directory.exists:
        job.check()
    job.prepare_training()
    marks = fingerprint(
        threads=options.threads, shards=job.shards, precision=job.precision.chosen, device=job.device.type, parallel=options.parallel
    )
    if options.parallel == "fsdp":  # torch adds up over the processes in an order of its own
        marks["processes"] = world.size
    record = Record(directory, options, world, {"run": path.name, "fingerprint": marks})
    try:
        info: dict[str, Any] = {}
        warning = ""
        if world.is_main:
            directory.open_for_writing()
            info, warning = register(directory, run_plan, options, job, marks)
        record.open()
        if options.tensorboard and world.is_main:
            from .tensorboard import TensorBoard

            record.callbacks.append(TensorBoard(path / "tensorboard"))
        trainer = Trainer(job, record)
        seed_everything(options.seed, "rank", world.rank)
        resumed = record.restore(trainer)
        if world.is_main:
            update(directory, info)
        if warning:
            record.warn(warning, trainer.step)
        record.event("resume" if resumed else "start", trainer.step, processes=world.size, threads=options.threads, regime=job.regime)
        if job.precision.message:
            record.event("precision", trainer.step, **asdict(job.precision))
            record.say(job.precision.message)
        if resumed:
            record.say(f"resuming {path.name} at step {trainer.step} of {job.steps}")
        elif job.recipe.on_bad == "rollback":
            record.save(trainer)
        for callback in trainer.callbacks:
            callback.start(record)
        trainer.run()
        finish(job, trainer, record)
    finally:
        record.close()
        job.stream.close()
        directory.close()


def register(directory: RunDirectory, run_plan: RunPlan, options: Options, job: Job, marks: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Write run.json for a new run, or compare it with this one; returns its new content, and a warning."""
    hashes: dict[str, Any] = {name: {"n": len(source), "sha256": source.fingerprint()} for name, source in job.data.splits.items()}
    if job.recipe.stream is not None:
        hashes["stream"] = {"n": 0, "sha256": job.stream.fingerprint()}
    if not directory.exists:
        if run_plan.file is not None:
            files.replace_file(directory.path / "recipe.py", run_plan.file.read_bytes())
        directory.write("run.json", _run_info(run_plan, options, job, marks, hashes))
        return directory.info(), ""
    info = directory.info()
    changed = [name for name in sorted({*hashes, *info["data"]}) if hashes.get(name) != info["data"].get(name)]
    if changed and not options.accept_data_change:
        was, now = (side.get(changed[0], {"n": 0, "sha256": "none"}) for side in (info["data"], hashes))
        fix = "restore the data, or continue with the new data: --accept-data-change"
        if arithmetic := differences(
            info["fingerprint"], marks
        ):  # normal random numbers, for example, depend on the rounding of the processor
            fix = f"{fix}; data that are computed also change with the arithmetic ({list_changes(arithmetic)})"
        raise DataUnusable(
            f"the {changed[0]} data changed since the run began",
            where=f"{job.data.name}: {was['n']} examples, hash {was['sha256'][:12]} then; {now['n']}, {now['sha256'][:12]} now",
            last_good=f"the checkpoints in {directory.checkpoints}",
            fix=fix,
        )
    if changed or info["fingerprint"] != marks:
        info = {**info, "data": hashes, "fingerprint": marks, "run_options": options.record()}
    return info, f"the data changed ({', '.join(changed)}), as accepted" if changed else ""


def update(directory: RunDirectory, info: dict[str, Any]) -> None:
    """Write the new content of run.json."""
    if directory.info() != info:
        directory.write("run.json", info)


def _run_info(run_plan: RunPlan, options: Options, job: Job, marks: dict[str, Any], hashes: dict[str, Any]) -> dict[str, Any]:
    import platform

    trainable = sum(p.numel() for p in job.model.parameters() if p.requires_grad)
    return {
        "format": layout.FORMAT,
        "recipe": run_plan.source,
        "options": jsonable(run_plan.options),
        "seed": options.seed,
        "run_options": options.record(),
        "versions": {"sonde": __version__, "python": platform.python_version(), "torch": torch.__version__},
        "machine": {"system": platform.system(), "processor": platform.machine(), "cores": os.cpu_count()},
        "fingerprint": marks,
        **({"precision": asdict(job.precision)} if job.precision.requested == "auto" else {}),
        "data": hashes,
        "about_data": {"name": job.data.name, "task": job.data.task, "report": jsonable(dict(job.data.report))},
        "parameters": {"trainable": trainable, "all": sum(p.numel() for p in job.model.parameters())},
        "steps": job.steps,
        "steps_per_epoch": job.stream.steps_per_epoch,
    }


def finish(job: Job, trainer: Trainer, record: Record) -> None:
    """Restore the best weights if requested, compute the test metrics, and write result.json, which marks the run as done."""
    world = job.world
    restore = job.recipe.restore_best if job.recipe.restore_best is not None else bool(job.recipe.patience)
    step = trainer.step
    if restore and trainer.best.step and trainer.best.step != trainer.step:
        step = trainer.best.step
        job.weights.load({"model": trainer.best.weights, "optim": {}})
    elif job.recipe.ema:
        with job.weights.use_average():
            averaged = job.weights.copy()
        job.weights.load({"model": averaged, "optim": {}})
    if job.weights.average is not None:  # from here on the model has the weights that it keeps
        job.weights.average.restart()
    metrics: dict[str, float] = {}
    for name in ("valid", "test"):
        source = job.data.splits.get(name)
        if source is not None and len(source):
            world.beat(trainer.step, "evaluate")
            metrics |= {f"{name}/{metric}": value for metric, value in job.evaluate(source).items()}
    metrics |= job.run_evaluations()
    if world.is_main:
        tests = {name: value for name, value in metrics.items() if name.startswith("test/")}
        record.row({**trainer.time, **tests, "model_step": step})
        record.metrics.sync()
    with job.strategy.whole() if job.recipe.callbacks else nullcontext():
        for callback in trainer.callbacks if world.is_main else ():
            callback.finish(record, trainer.step, job.model)
    if world.is_main:
        record.event("finish", trainer.step)
        record.events.sync()
        record.directory.write("result.json", {"status": "done", "steps": trainer.step, "model_step": step, "metrics": _finite(metrics)})


def _finite(metrics: dict[str, float]) -> dict[str, float | None]:
    import math

    return {name: value if math.isfinite(value) else None for name, value in metrics.items()}
