"""Recipe: everything a run needs, as one typed value.  Objective and Callback: the interfaces that the engine calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, Literal, Protocol

import torch
from torch import nn

from .batch import Batch, Data
from .errors import BadInput
from .options import Range, check_names, checked
from .stream import Stream
from .terms import Terms


class Objective(Protocol):
    """Model + batch -> named sums with counts.  Only `__call__` is needed; the engine uses the rest where it exists.

    counts(batch)           counts of the terms without running the model; they must not depend on it
    measures(output, batch) further sums to report, such as the number of correct predictions
    check(batch)            checks the targets once, before training, and raises BadInput if they are wrong
    predict(output)         the prediction that a user wants to see: class probabilities, a mean, a rate
    at(step)                called before every step with its number, from 0, so what changes during training depends on
                            the step alone: not on what is logged, how a batch is split or where a run was resumed
    phases, phase_of(name)  for networks that are updated in turn, such as a GAN: the cycle of phases, names or numbers from 0, one
                            per step, or a tuple of several that are updated one after another with the batch of that step;
                            and the phase in which a parameter is updated, all other parameters being frozen
    phase                   set to the phase of an update during the update, None after it
    followers               `Follower`s: parts of the model that slowly follow others, such as target networks
    state_dict(), load_state_dict(state)   what it must remember over a resume: tensors, numbers and text

    An objective declares what the rest of the system must know as attributes of its class:

    has_scale               False: its value says nothing about how training goes, such as that of a policy gradient; a step is then
                            never called an explosion because of its loss

    repeatable              True: its operations depend only on the shapes of a batch, so a step can be recorded and replayed
    tasks                   tasks whose targets it fits: 'binary', 'classes', 'counts', 'positive', 'real' (see `models.heads`)
    link                    inverse link on raw outputs: 'identity', 'sigmoid', 'softmax', 'exponential', or an increasing function
    """

    def __call__(self, model: nn.Module, batch: Batch) -> Terms: ...


@dataclass(frozen=True)
class Follower:
    """A part of a model that follows another: copy <- decay * copy + (1 - decay) * original, after every `every`-th step.

    Args:
        copy: name of the submodule that follows; its weights must not require a gradient.
        original: name of the submodule that it follows.
        decay: how much of the copy stays; 0 makes it equal.
        every: steps between two updates.
    """

    copy: str
    original: str
    decay: float = 0.995
    every: int = 1


class Callback:
    """Called by the engine after an event; keep state that must survive in `state`, plain numbers and text only.

    One that must keep tensors has the methods `state_dict()` and `load_state_dict(state)` besides.
    """

    def start(self, run: Any) -> None:
        """Before the first step; a resumed run has called `load` by then."""

    def step(self, run: Any, step: int, row: Mapping[str, float]) -> None:
        """After a logged step."""

    def evaluated(self, run: Any, step: int, row: Mapping[str, float]) -> None:
        """After an evaluation."""

    def finish(self, run: Any, step: int, model: nn.Module) -> None:
        """After the last step, with the trained model, before the report."""

    def state(self) -> dict[str, Any]:
        return {}

    def load(self, state: Mapping[str, Any]) -> None:
        """Given what `state` returned, continue from there."""


SIGNS = {"min": 1.0, "max": -1.0}
"""mode -> what a metric is multiplied by, so that smaller is better"""


@checked
@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One experiment, ready to run.  `model` and `data` may be functions that build them."""

    model: nn.Module | Callable[[], nn.Module]
    data: Data | Callable[[], Data]
    objective: Objective
    optimizer: Any
    """made by `sonde.optim.optimizer`, or any function from parameters to a torch optimizer; for phases also one for each, by phase"""
    stream: Callable[[Data, int], Stream] | None = None
    """(data, seed) -> where the training batches come from; by default the training part in a fresh order every epoch"""
    evaluations: Mapping[str, Callable[[nn.Module, int, int], Terms]] | None = None
    """name -> (model, shard, shards) -> Terms: what is measured besides the validation part, as `name/term`"""
    steps: Annotated[int | None, Range(1)] = None
    """how many updates; give this or `epochs`"""
    epochs: Annotated[float | None, Range(above=0)] = None
    """how many passes over the training data; give this or `steps`"""
    batch_size: Annotated[int, Range(1)] = 64
    """examples per update, over all processes"""
    drop_last: bool = False
    """leave out the last short batch of an epoch"""
    schedule: Callable[[int, int], float] | None = None
    """factor on the learning rate as a pure function of (step, steps)"""
    augment: Callable[[Batch, torch.Generator], Batch] | None = None
    """changes a training batch, drawing only from the generator it is given"""
    initialize: Callable[[nn.Module], None] | None = None
    """initializes the weights; by default each layer initializes its own"""
    accumulate: Annotated[int, Range(1)] = 1
    """micro-batches per batch, to save memory; the gradient is the same"""
    clip_norm: Annotated[float, Range(0)] = 0.0
    """largest global gradient norm; 0 turns clipping off"""
    ema: Annotated[float, Range(0, below=1)] = 0.0
    """decay of a moving average of the weights, which evaluation and the trained model then use; 0 turns it off"""
    precision: Literal["float32", "bf16", "auto"] = "float32"
    """bf16 runs the forward pass under autocast, weights stay float32; auto takes the faster one; the option --precision wins"""
    channels_last: bool = False
    """memory layout for image models; faster convolutions on a CPU"""
    log_every: Annotated[int | None, Range(1)] = None
    """steps between rows of metrics.jsonl; by default about 200 rows a run"""
    evaluate_every: Annotated[int | None, Range(1)] = None
    """steps between evaluations on the validation part; by default once an epoch, at most 50 times a run"""
    evaluate_batch_size: Annotated[int, Range(1)] = 512
    """examples per evaluation batch"""
    monitor: str = "valid/loss"
    """the metric that decides which checkpoint is best"""
    mode: Literal["min", "max"] = "min"
    """whether a smaller or a larger value of it is better"""
    patience: Annotated[int, Range(0)] = 0
    """stop after this many evaluations without improvement; 0 never stops early"""
    restore_best: bool | None = None
    """end with the best weights instead of the last; by default only where patience is set"""
    on_bad: Literal["stop", "skip", "rollback"] = "stop"
    """what to do with a step whose loss or gradient is not finite, or that explodes"""
    keep: Annotated[int, Range(1)] = 2
    """newest checkpoints to keep, besides the best one"""
    callbacks: Sequence[Callback] = ()

    def __new__(cls, **values: Any) -> Recipe:
        check_names(values, (field.name for field in fields(cls)), "a recipe", "field")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.epochs is None):
            raise BadInput("a recipe needs either steps or epochs", where="Recipe", fix="give exactly one of them")

    def replace(self, **changes: Any) -> Recipe:
        """A copy with some fields changed; a variant of a recipe is a small edit of another."""
        check_names(changes, (field.name for field in fields(self)), "a recipe", "field")
        return replace(self, **changes)

    def build_model(self) -> nn.Module:
        return self.model if isinstance(self.model, nn.Module) else self.model()

    def build_data(self) -> Data:
        return self.data if isinstance(self.data, Data) else self.data()
