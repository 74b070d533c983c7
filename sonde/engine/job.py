"""A job: a recipe built on one process, with the batch of a step, the gradient of a batch, and the state."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ..core import files
from ..core.batch import Batch, Data, Source
from ..core.errors import BadInput, DataUnusable, SondeError
from ..core.recipe import Recipe
from ..core.seeds import key
from ..core.terms import Terms
from ..data.streams import SourceStream
from . import heap, precision, strategies
from .evaluate import evaluate
from .guard import named_failure
from .options import Options
from .state import seed_everything
from .weights import has_phases
from .world import shards_of


class Job:
    """Model, data and optimizer of one run on one process."""

    def __init__(self, make: Callable[[], Recipe], options: Options, world: Any) -> None:
        self.options, self.world = options, world
        self.device = pick_device(options.device)
        heap.keep()
        seed_everything(options.seed, "recipe")
        self.recipe: Recipe = make()
        with report_build_errors("the data"):
            self.data: Data = self.recipe.build_data()
        if not len(self.data.train):
            raise DataUnusable("the training part is empty", where=self.data.name, fix="give more examples")
        seed_everything(options.seed, "model")
        with report_build_errors("the model"):
            self.model: nn.Module = self.recipe.build_model().to(self.device)
        if self.recipe.initialize is not None:
            self.recipe.initialize(self.model)
        if self.recipe.channels_last:
            self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.objective: Any = self.recipe.objective
        self.moves = hasattr(self.objective, "at")
        self.turns = has_phases(self.objective)
        self.phases: tuple[int, ...] = tuple(getattr(self.objective, "phases", ())) or (0,)
        self.stream = SourceStream(
            self.data.train, self.recipe.batch_size, options.seed, drop_last=self.recipe.drop_last, augment=self.recipe.augment
        )
        per_epoch = self.stream.steps_per_epoch
        self.steps = self.recipe.steps or max(1, math.ceil(min((self.recipe.epochs or 0) * per_epoch, 1e15)))
        if self.steps > 10**12:
            raise BadInput(f"{self.steps:.3g} steps are more than any run can do", where="steps or epochs", fix="use fewer epochs")
        self.log_every = self.recipe.log_every or max(1, self.steps // 200)
        while not self.recipe.log_every and math.gcd(self.log_every, len(self.phases)) > 1:
            self.log_every += 1  # else the rows would show the same phase every time
        self.evaluate_every = self.recipe.evaluate_every or max(per_epoch, math.ceil(self.steps / 50))
        assert options.shards is not None
        self.shards = options.shards * self.recipe.accumulate
        self.own = shards_of(world.rank, world.size, self.shards)
        self.generators = [torch.default_generator]
        if self.device.type == "cuda":
            self.generators.append(torch.cuda.default_generators[self.device.index or 0])
        self.precision = precision.choose(self)
        if self.precision.chosen == "bf16":
            self.objective = precision.Autocast(self.objective, self.device)

    def prepare_training(self) -> None:
        """Buffers and optimizer; after this the model's parameters live in the flat buffer."""
        self.model.train()
        self.strategy = strategies.build(
            self.model,
            self.recipe.optimizer,
            self.objective,
            world=self.world,
            shards=self.shards,
            parallel=self.options.parallel,
            steady=not self.recipe.callbacks,
        )
        self.weights = self.strategy.weights

    def check(self) -> None:
        """Check everything a user can get wrong, before a file is written: targets, shapes, sizes of model and data."""
        objective: Any = self.recipe.objective
        for name, source in self.data.splits.items() if hasattr(objective, "check") else ():
            for start in range(0, len(source), 8192):
                batch = source[torch.arange(start, min(start + 8192, len(source)))]
                if name == "train" and "y" not in batch:  # questions that an augmentation makes
                    batch = self.stream.augment_batch(batch, 0, 0)
                try:
                    objective.check(batch)
                except SondeError as error:
                    place = error.where or f"{self.data.name}, {name} part"
                    raise type(error)(error.what, where=place, last_good=error.last_good, fix=error.fix) from error
        self.model.eval()
        with torch.no_grad(), named_failure(self.model):
            # As in training: what an augmentation makes of an example may be all that the model can read.
            with report_build_errors("a training batch"):
                few = self.stream.example(2)
            terms = self.objective(self.model, self.ready(few))
            if not isinstance(terms, Terms):
                raise BadInput(f"the objective must return Terms, not {type(terms).__name__}", fix="return Terms(name=(sum, count))")
            terms.loss()
        self._check_training()

    def _check_training(self) -> None:
        """One forward pass as in training, with augmentation; all state is restored afterwards."""
        self.model.train()
        self.factor(0)
        kept = [(buffer, buffer.clone()) for buffer in self.model.buffers()]
        with torch.no_grad(), report_build_errors("a training batch"):
            batch = self.ready(self.stream.example(self.recipe.batch_size))
        with torch.no_grad(), named_failure(self.model):
            if self.moves:
                self.objective.at(0)  # another run may have left it at its end
            self.objective(self.model, batch)
        for buffer, value in kept:
            buffer.copy_(value)
        odd = [name for name, value in self.model.state_dict().items() if not isinstance(value, torch.Tensor)]
        if odd:
            raise BadInput(f"the model's state '{odd[0]}' is not a tensor, so it cannot be saved", fix="use register_buffer")
        for callback in self.recipe.callbacks:
            try:
                files.dump_json(callback.state())
            except (TypeError, ValueError) as error:
                name = type(callback).__name__
                raise BadInput(f"the state of callback {name} cannot be saved: {error}", fix="plain numbers and text only") from error

    def ready(self, batch: Batch) -> Batch:
        """A batch on the model's device, in its memory layout."""
        if self.device.type != "cpu":
            batch = batch.to(self.device)
        if self.recipe.channels_last and batch.x.dim() == 4:
            batch = batch.replace(x=batch.x.contiguous(memory_format=torch.channels_last))
        return batch

    def batch(self, step: int) -> dict[int, Batch]:
        """The parts of the batch of a step that this process computes, by shard."""
        return {shard: self.ready(self.stream.batch(step, shard, self.shards, self.model)) for shard in self.own}

    def seed(self, step: int, shard: int) -> None:
        """Set the random key of a shard: dropout in a resumed or sharded run draws the same numbers."""
        number = key(self.options.seed, "forward", step, shard)
        for generator in self.generators:
            generator.manual_seed(number)

    def begin_step(self, step: int) -> int:
        """Tell an objective that changes while training, or that has phases, which step it is; returns the phase."""
        objective: Any = self.recipe.objective
        if self.moves:
            objective.at(step)
        phase = self.phase(step)
        if self.turns:
            objective.phase = phase
        return phase

    def end_step(self) -> None:
        """Outside of a step an objective is in no phase."""
        if self.turns:
            objective: Any = self.recipe.objective
            objective.phase = None

    def phase(self, step: int) -> int:
        """Which weights move at a step, of an objective with phases; else all of them."""
        return self.phases[step % len(self.phases)]

    def factor(self, step: int) -> float:
        """The factor of the schedule on the learning rate at a step."""
        if self.recipe.schedule is None:
            return 1.0
        value = self.recipe.schedule(step, self.steps)
        if not isinstance(value, (int, float)) or not 0 <= value < math.inf:
            raise BadInput(f"the schedule gives {value!r} at step {step}", fix="a factor on the learning rate is a finite number >= 0")
        return float(value)

    def evaluate(self, source: Source) -> dict[str, float]:
        return evaluate(self.model, self.objective, source, self.recipe.evaluate_batch_size, self.ready, self.strategy.evaluation_world)

    @property
    def regime(self) -> str:
        """The name of gradient descent at this batch size."""
        size = self.stream.order.batch_size
        if size >= len(self.data.train):
            return "gradient descent on the full batch"
        return "stochastic gradient descent, one example a step" if size == 1 else f"minibatches of {size}"


@contextmanager
def report_build_errors(what: str):
    """Turn an exception of a user's code while something is built into a one-line BadInput."""
    try:
        yield
    except (SondeError, OSError, MemoryError):
        raise
    except Exception as error:
        reason = str(error).strip().split("\n")[0]
        raise BadInput(
            f"{what} failed while being built: {type(error).__name__}: {reason}", fix="run again with --debug to see where"
        ) from error


def pick_device(name: str) -> torch.device:
    """The device of that name, or the CPU with a notice where the machine has no such device."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise BadInput(f"no device '{name}'", fix="use cpu, cuda, cuda:1 or mps") from None
    if device.type not in ("cpu", "cuda", "mps"):
        raise BadInput(f"no device '{name}'", fix="use cpu, cuda, cuda:1 or mps")
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}[device.type]
    if not there:
        print(f"notice: this machine has no {device.type} device; using the CPU", file=sys.stderr)
        return torch.device("cpu")
    return device


@contextmanager
def torch_settings(threads: int, device: str):
    """Thread count, deterministic kernels and gradients for one run, whatever the caller turned off; restored afterwards."""
    memory: Any = torch.utils.deterministic
    before = (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled(), memory.fill_uninitialized_memory)
    warn = torch.is_deterministic_algorithms_warn_only_enabled()
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    # Filling fresh memory with NaN is for debugging and costs a pass over every temporary.
    memory.fill_uninitialized_memory = False
    _deterministic(True, device != "cpu")
    try:
        with torch.inference_mode(False), torch.enable_grad():
            yield
    finally:
        torch.set_num_threads(before[0])
        _deterministic(before[1], warn)
        memory.fill_uninitialized_memory = before[2]


def _deterministic(mode: bool, warn_only: bool) -> None:
    """torch.use_deterministic_algorithms, which also imports torch's compiler (two seconds); only where it is imported already."""
    if "torch._inductor.config" in sys.modules:
        torch.use_deterministic_algorithms(mode, warn_only=warn_only)
    else:
        torch._C._set_deterministic_algorithms(mode, warn_only=warn_only)
