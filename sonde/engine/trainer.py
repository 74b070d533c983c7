"""The training loop.

for each step:   data -> forward -> loss -> backward -> update
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from torch import Tensor

from ..core.batch import Batch
from ..core.errors import BadInput, DataUnusable, NumericalStop, nearest
from ..core.recipe import SIGNS, Callback, Recipe
from .checkpoint import Checkpoint
from .guard import Fault, Guard, bad_gradient, bad_weights, diagnose
from .job import Job
from .parts import Stateful
from .progress import Progress
from .record import Record
from .signals import StopRequest, stop_error


class Best:
    """Which evaluation was best so far, its weights, and how many evaluations came since."""

    def __init__(self, recipe: Recipe) -> None:
        self.weights: dict[str, Tensor] = {}
        self.name, self.sign = recipe.monitor, SIGNS[recipe.mode]
        self.value, self.step, self.since = math.inf, 0, 0

    def see(self, step: int, row: dict[str, float]) -> bool:
        """True where this evaluation is the best yet."""
        if self.name not in row:
            raise BadInput(f"the recipe monitors '{self.name}', which no evaluation reports", fix=nearest(self.name, row))
        value = self.sign * row[self.name]
        if value < self.value:
            self.value, self.step, self.since = value, step, 0
            return True
        self.since += 1
        return False

    def older_weights(self, step: int) -> dict[str, Tensor]:
        """The best weights; empty where there are none yet or they are the current ones."""
        return {} if self.step in (0, step) else self.weights

    def state(self) -> dict[str, Any]:
        return {"value": self.value.hex(), "step": self.step, "since": self.since}

    def load(self, state: dict[str, Any]) -> None:
        self.value, self.step, self.since = float.fromhex(state["value"]), int(state["step"]), int(state["since"])


class Trainer:
    """Trains a job from the step its record has reached to the end, and leaves a record of every step."""

    def __init__(self, job: Job, record: Record) -> None:
        self.job, self.record = job, record
        self.guards = [Guard(getattr(job.recipe.objective, "has_scale", True)) for _ in job.phases.names]
        """one for each phase: each phase may have a loss of its own"""
        self.best = Best(job.recipe)
        self.callbacks: list[Callback] = [*job.recipe.callbacks, *record.callbacks]
        candidates = {"stream": job.stream, "objective": job.recipe.objective}
        candidates |= {f"callback-{number}": callback for number, callback in enumerate(job.recipe.callbacks)}
        self.parts: dict[str, Stateful] = {name: part for name, part in candidates.items() if isinstance(part, Stateful)}
        """what a checkpoint keeps besides weights, optimizers and the state of the trainer"""
        self.step = 0
        """updates done so far"""

    def state(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "best": self.best.state(),
            "guard": self.guard.state(),
            **({"guards": [guard.state() for guard in self.guards[1:]]} if len(self.guards) > 1 else {}),
            "callbacks": [callback.state() for callback in self.job.recipe.callbacks],
        }

    def fits(self, snapshot: Checkpoint) -> None:
        """Raise DataUnusable unless all of a checkpoint can be loaded; nothing is loaded yet."""
        self.job.weights.fits(snapshot.parts)
        try:
            Best(self.job.recipe).load(snapshot.state["best"])
            for _, saved in self._load_guards(snapshot.state):
                Guard().load(saved)
            for _ in zip(self.job.recipe.callbacks, snapshot.state["callbacks"], strict=True):
                continue
            if snapshot.manifest["format"] > 1 and not self.parts.keys() <= dict(snapshot.state["parts"]).keys():
                raise ValueError(f"it has states of {', '.join(snapshot.state['parts'])}, not of {', '.join(self.parts)}")
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise DataUnusable(f"state.json cannot be restored: {type(error).__name__}: {error}") from error

    def load(self, state: dict[str, Any]) -> None:
        self.step = int(state["step"])
        self.best.load(state["best"])
        for guard, saved in self._load_guards(state):
            guard.load(saved)
        for callback, saved in zip(self.job.recipe.callbacks, state["callbacks"], strict=True):
            callback.load(saved)

    @property
    def guard(self) -> Guard:
        """That of the first phase, which for most objectives is the only one."""
        return self.guards[0]

    def _load_guards(self, state: dict[str, Any]) -> list[tuple[Guard, dict[str, Any]]]:
        """Every guard with its state in a checkpoint."""
        return list(zip(self.guards, [state["guard"], *state.get("guards", [])], strict=True))

    def run(self) -> None:
        """Run all remaining steps; after a signal, save the state and raise Preempted or Interrupted."""
        job, record = self.job, self.record
        with StopRequest() as stop, Progress(record.name, job.steps, self.step, quiet=not record.prints) as progress:
            record.progress = progress
            while self.step < job.steps and not self._patience_spent():
                job.world.beat(self.step, "step")
                if self.step in record.skips:
                    self._skip_step()
                elif not self._take_step():
                    continue
                progress.tick(self.step)
                if self.boundary(stop):
                    break

    def _take_step(self) -> bool:
        """One step, done or skipped; False where bad numbers caused a rollback to a checkpoint."""
        job, step = self.job, self.step
        buffers = [buffer.clone() for buffer in job.model.buffers()] if job.recipe.on_bad == "skip" else []
        batch = job.batch(step)  # data: for a data set a pure function of (seed, step)
        job.begin_step(step)
        row: dict[str, Any] = {}
        for phase, number in job.updates[step % len(job.updates)]:  # one, but for networks that take turns
            job.begin_update(phase)
            try:
                loss = job.strategy.gradient(job.objective, batch, partial(job.seed, step), number)  # forward, loss, backward
            finally:
                job.begin_update(None)
            norm = job.weights.norm()
            size = float(norm)
            fault = self.guards[number].fault(loss, size)
            if fault:  # before the update, and the same on every process: sums and norms are equal everywhere
                return self._bad_step(fault, batch, buffers)
            if job.recipe.clip_norm:
                job.weights.clip(norm, job.recipe.clip_norm)
            rate = job.weights.update(job.factor(step), number)  # update
            row = {"lr": rate, "loss": loss, "grad_norm": size} if not row else {**row, f"{phase}/loss": loss, f"{phase}/grad_norm": size}
        self.step += 1
        self._follow(step, row["loss"])
        if self.step % job.log_every == 0 or self.step == job.steps:
            self.log(row)
        return True

    def _follow(self, step: int, loss: float) -> None:
        """What comes after an update: copies that follow the weights, and a stream that observes the step."""
        job = self.job
        if job.followers is not None:
            job.followers.update(step)
        if job.weights.average is not None:
            job.weights.average.update(step)
        if job.observed is not None:
            job.observe(step, loss)

    def _patience_spent(self) -> bool:
        return bool(self.job.recipe.patience) and self.best.since >= self.job.recipe.patience

    def log(self, row: dict[str, Any]) -> None:
        row = {**self.time, **row}
        if len(self.job.phases.cycle) > 1:
            row["phase"] = self.job.phases.cycle[(self.step - 1) % len(self.job.phases.cycle)][0]
        self.record.row(row)
        for callback in self.callbacks:
            callback.step(self.record, self.step, row)

    @property
    def time(self) -> dict[str, float]:
        """Steps so far, and epochs where the stream has any."""
        per_epoch = self.job.stream.steps_per_epoch
        return {"step": self.step} | ({"epoch": round(self.step / per_epoch, 6)} if per_epoch else {})

    def boundary(self, stop: StopRequest) -> bool:
        """Evaluate, save and stop where it is due; True ends the loop."""
        job = self.job
        finished = self.step == job.steps
        evaluates = job.data.valid is not None or bool(job.recipe.evaluations)
        valid = evaluates and (self.step % job.evaluate_every == 0 or finished)
        every = job.options.checkpoint_every
        due = self.step % every == 0 if every else self.record.save_is_due()
        stop_signal = stop.signal
        if job.world.size > 1:  # all processes stop, and save, at the same step
            agreed = job.world.max_vector([float(due), float(stop_signal)])
            due, stop_signal = bool(agreed[0]), int(agreed[1])
        if (valid or due or finished or stop_signal) and not job.weights.finite():
            return self._bad_step(Fault("the last update made weights that are not finite"), {}, [])
        if valid:
            self._evaluate()
            if self._patience_spent():
                self.record.event("early-stop", self.step, best=self.best.step, monitor=self.best.name)
                finished = True
        if due or finished or stop_signal:
            self.record.save(self, must=finished or bool(stop_signal))
        if stop_signal and not finished:
            path = self.record.path
            fix = f"the same command continues from there, or: sonde train --resume {path}"
            raise stop_error(stop_signal, f"after step {self.step} of {job.steps}", str(path), f"checkpoint at step {self.step}", fix)
        return finished

    def _evaluate(self) -> None:
        job = self.job
        job.world.beat(self.step, "evaluate")
        metrics = {f"valid/{name}": value for name, value in job.evaluate(job.data.valid).items()} if job.data.valid is not None else {}
        row = {**self.time, **metrics, **job.run_evaluations()}
        self.record.row(row)
        if self.best.see(self.step, row):
            with job.weights.use_average():
                self.best.weights = job.weights.copy()
        for callback in self.callbacks:
            callback.evaluated(self.record, self.step, row)

    def _skip_step(self) -> None:
        """Skip a step: its batch is not used, the weights do not change."""
        self.step += 1
        self.record.row({**self.time, "skipped": True})

    def _bad_step(self, fault: Fault, batch: dict[int, Batch], buffers: list[Tensor]) -> bool:
        """Stop, skip the step, or roll back to the last checkpoint and skip it from there: then False.

        Args:
            buffers: the model's, before the bad batch went through it
        """
        job, step = self.job, self.step
        where = f"step {step}, {self._cause(batch)}"
        self.record.keep_bad_batch(step, batch)
        broken = not job.weights.finite()  # the update before this step made them so: no batch is to blame, and skipping mends nothing
        saved = self.record.last_saved
        stop = NumericalStop(
            fault.what,
            where=where,
            last_good=f"checkpoint at step {saved}" if saved is not None else "no checkpoint yet",
            fix="lower the learning rate, set clip_norm, look at the saved batch, or use on_bad='skip' or 'rollback'",
        )
        if job.recipe.on_bad == "stop" or (job.recipe.on_bad == "skip" and broken):
            raise stop
        self.record.warn(f"{fault.what}; {where}; left out", step)
        if job.recipe.on_bad == "skip":
            for buffer, value in zip(job.model.buffers(), buffers, strict=True):
                buffer.copy_(value)
            self._skip_step()
            return True
        back = (fault.steps - 1) * len(job.phases.cycle) + 1  # a guard counts the steps of its own phase
        self.record.skip(range(step - back + 1 - broken, step + 1 - broken))
        if not self.record.restore(self):
            raise stop
        return False

    def _cause(self, batch: dict[int, Batch]) -> str:
        """The first rank that found the origin of a bad number, and the origin."""
        job = self.job
        with job.strategy.whole():
            cause = bad_weights(job.model)
            for shard, part in batch.items():
                if not cause and len(part):
                    cause = diagnose(job.model, job.objective, part, partial(job.seed, self.step, shard))
        own = f"rank {job.world.rank}: "
        causes = job.world.gather_texts(own + cause if cause else "")
        return next(filter(None, causes), own + (bad_gradient(job.model) or "every number is finite"))
