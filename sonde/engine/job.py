"""A job: a recipe built on one process, with the batch of a step, the gradient of a batch, and the state."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from ..core import files
from ..core.batch import Batch, Data, Source
from ..core.errors import BadInput, DataUnusable, SondeError
from ..core.recipe import Recipe
from ..core.seeds import key
from ..core.stream import Stream
from ..core.terms import Terms
from ..data.streams import SourceStream
from ..data.torch_data import adopt, own_randomness
from . import heap, precision, strategies
from .average import followers_of
from .evaluate import evaluate, evaluate_shards
from .guard import named_failure
from .observed import Observed
from .options import Options
from .phases import Phase, Phases
from .state import seed_everything
from .world import shards_of


class Job:
    """Model, data and optimizer of one run on one process."""

    def __init__(self, make: Callable[[], Recipe], options: Options, world: Any) -> None:
        self.options, self.world = options, world
        self.device = pick_device(options.device)
        if options.parallel == "fsdp" and world.size > 1:
            heap.give_back()
        else:
            heap.keep()
        seed_everything(options.seed, "recipe")
        self.recipe: Recipe = make()
        if options.ema is not None:
            self.recipe = self.recipe.replace(ema=options.ema)
        with report_build_errors("the data"):
            self.data: Data = adopt(self.recipe.build_data())
        seed_everything(options.seed, "model")
        with report_build_errors("the model"):
            self.model: nn.Module = self.recipe.build_model().to(self.device)
        if self.recipe.initialize is not None:
            self.recipe.initialize(self.model)
        if self.recipe.channels_last:
            self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.objective: Any = self.recipe.objective
        self.moves = hasattr(self.objective, "at")
        self.phases = Phases(self.objective)
        self.updates = self.phases.updates
        self.stream = self._build_stream()
        per_epoch = self.stream.steps_per_epoch
        if per_epoch is None and not self.recipe.steps:
            raise BadInput(
                "a stream without epochs needs a number of steps", where=type(self.stream).__name__, fix="give steps, not epochs"
            )
        self.steps = self.recipe.steps or max(1, math.ceil(min((self.recipe.epochs or 0) * (per_epoch or 0), 1e15)))
        if self.steps > 10**12:
            raise BadInput(f"{self.steps:.3g} steps are more than any run can do", where="steps or epochs", fix="use fewer epochs")
        self.log_every = self.recipe.log_every or max(1, self.steps // 200)
        while not self.recipe.log_every and math.gcd(self.log_every, len(self.phases.cycle)) > 1:
            self.log_every += 1  # else the rows would show the same phase every time
        self.evaluate_every = self.recipe.evaluate_every or max(per_epoch or 1, math.ceil(self.steps / 50))
        assert options.shards is not None
        self.shards = options.shards * self.recipe.accumulate
        self.own = shards_of(world.rank, world.size, self.shards)
        self.stream.open(self.own, self.shards)
        self.generators = [torch.default_generator]
        if self.device.type == "cuda":
            self.generators.append(torch.cuda.default_generators[self.device.index or 0])
        self.precision = precision.choose(self)
        if self.precision.chosen == "bf16":
            self.objective = precision.Autocast(self.objective, self.device)
        self.observed = Observed(self.objective) if self.stream.observes else None
        self.objective = self.observed or self.objective

    def prepare_training(self) -> None:
        """Buffers and optimizer; after this the model's parameters live in the flat buffer."""
        self.model.train()
        self.strategy = strategies.build(
            self.model,
            self.recipe.optimizer,
            self.phases,
            world=self.world,
            shards=self.shards,
            parallel=self.options.parallel,
            steady=not self.recipe.callbacks,
            ema=self.recipe.ema,
            example=lambda: self.ready(self.stream.example(2)),
        )
        self.weights = self.strategy.weights
        self.followers = followers_of(self.recipe.objective, self.model)

    def _build_stream(self) -> Stream:
        """The recipe's own stream, or that of its training part."""
        recipe, seed, train = self.recipe, self.options.seed, self.data.train
        with report_build_errors("the stream"):
            if recipe.stream is not None:
                return recipe.stream(self.data, seed)
            if hasattr(train, "stream"):
                return train.stream(recipe.batch_size, seed, recipe.drop_last, recipe.augment)
        if not len(train):
            raise DataUnusable("the training part is empty", where=self.data.name, fix="give more examples")
        return SourceStream(train, recipe.batch_size, seed, drop_last=recipe.drop_last, augment=recipe.augment)

    def check(self) -> None:
        """Check everything a user can get wrong, before a file is written: targets, shapes, sizes of model and data."""
        objective: Any = self.recipe.objective
        for name, source in self.data.splits.items() if hasattr(objective, "check") else ():
            examples = min(len(source), 64) if getattr(source, "lazy", False) else len(source)  # a few where they are dear
            for start in range(0, examples, 8192):
                batch = source[torch.arange(start, min(start + 8192, examples))]
                if name == "train" and "y" not in batch and isinstance(self.stream, SourceStream):  # questions that an augmentation makes
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
        if not self.stream.uses_model:
            return {shard: self.ready(self.stream.batch(step, shard, self.shards, self.model)) for shard in self.own}
        self.model.eval()
        try:
            with torch.no_grad():
                return {shard: self._batch_of_model(step, shard) for shard in self.own}
        finally:
            self.model.train()
            self.world.beat(step, "step")

    def _batch_of_model(self, step: int, shard: int) -> Batch:
        """A part of a batch for which the stream may use the model and draw random numbers, with keys of the shard."""
        self.world.beat(step, "batch")
        with own_randomness(self.options.seed, "batch", step, shard):
            return self.ready(self.strategy.apply(partial(self.stream.batch, step, shard, self.shards)))

    def observe(self, step: int, loss: float) -> None:
        """Tell the stream what a step measured."""
        if self.observed is not None:
            self.stream.observe(step, self.observed.take(loss, self.own, self.shards, self.world))

    def seed(self, step: int, shard: int) -> None:
        """Set the random key of a shard: dropout in a resumed or sharded run draws the same numbers."""
        if self.observed is not None:
            self.observed.shard = shard
        number = key(self.options.seed, "forward", step, shard)
        for generator in self.generators:
            generator.manual_seed(number)

    def begin_step(self, step: int) -> None:
        """Tell an objective that changes while training which step it is."""
        if self.moves:
            objective: Any = self.recipe.objective
            objective.at(step)

    def begin_update(self, phase: Phase | None) -> None:
        """Tell an objective with phases which one it is; None outside of an update."""
        if self.phases.declared:
            objective: Any = self.recipe.objective
            objective.phase = phase

    def factor(self, step: int) -> float:
        """The factor of the schedule on the learning rate at a step."""
        if self.recipe.schedule is None:
            return 1.0
        value = self.recipe.schedule(step, self.steps)
        if not isinstance(value, (int, float)) or not 0 <= value < math.inf:
            raise BadInput(f"the schedule gives {value!r} at step {step}", fix="a factor on the learning rate is a finite number >= 0")
        return float(value)

    def evaluate(self, source: Source) -> dict[str, float]:
        """Metrics of a source, with the averaged weights where there are any."""
        size, world = self.recipe.evaluate_batch_size, self.strategy.evaluation_world
        objective = self.observed.objective if self.observed is not None else self.objective
        with self.weights.use_average():
            return self.strategy.apply(lambda model: evaluate(model, objective, source, size, self.ready, world))

    def run_evaluations(self) -> dict[str, float]:
        """Metrics of the recipe's own evaluations, as `name/term`."""
        metrics: dict[str, float] = {}
        world = self.strategy.evaluation_world
        for name, function in (self.recipe.evaluations or {}).items():
            around = partial(own_randomness, self.options.seed, "evaluate", name)
            run = partial(evaluate_shards, function=function, shards=self.shards, around=around, world=world)
            with self.weights.use_average():
                metrics |= {f"{name}/{term}": value for term, value in self.strategy.apply(run).items()}
        return metrics

    @property
    def regime(self) -> str:
        """The name of gradient descent at this batch size."""
        if not isinstance(self.stream, SourceStream):
            return f"batches of {type(self.stream).__name__}"
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
