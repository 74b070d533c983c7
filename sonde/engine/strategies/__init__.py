"""Strategies: how the gradient of a batch is computed on the processes of a run, and where the weights are.

    single     one process, the batch undivided
    ordered    every process holds all weights; gradients of shards are added in shard order, so the number of processes changes no bit
    sharded    each process holds a part of every weight (FSDP): for models that do not fit one process
    ./mine.py  a file of your own; docs/how-to/streams.md has an example

All have the methods of `Strategy`; where there are several processes, each of them must make the same calls in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, nn

from ...core import registry
from ...core.batch import Batch
from ...core.errors import BadInput
from ..phases import Phases
from ..weights import Weights


class AnyWeights(Protocol):
    """Weights with their gradient and their optimizers, wherever they are."""

    def norm(self) -> Tensor:
        """Global 2-norm of the gradient."""
        ...

    def clip(self, norm: Tensor, largest: float) -> None:
        """Scale the gradient so that its norm is at most `largest`."""
        ...

    def finite(self) -> bool:
        """Whether all weights are finite numbers."""
        ...

    def update(self, factor: float, phase: int = 0) -> float:
        """One optimizer step at `factor` times the base rate; returns the rate used."""
        ...

    def use_average(self) -> AbstractContextManager[None]:
        """The averaged weights in the model for a while, where there are any."""
        ...

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """Whole tensors by part of a checkpoint: 'model', 'optim' and, where weights are averaged, 'average'."""
        ...

    def fits(self, parts: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Raise DataUnusable where the parts of a checkpoint cannot be loaded."""
        ...

    def load(self, parts: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Load the parts of a checkpoint."""
        ...


class Strategy(Protocol):
    """What a step asks of the processes of a run."""

    weights: Any
    """an `AnyWeights`"""
    evaluation_world: Any
    """processes that share the work of an evaluation"""

    def gradient(self, objective: Any, batch: Mapping[int, Batch], seed: Callable[[int], None], phase: int = 0) -> float:
        """Compute the gradient of the mean loss over the whole batch; returns that loss.

        Args:
            objective: model and batch -> terms.
            batch: the parts of the batch that this process computes, by shard.
            seed: sets the random key of a shard; called before its forward pass.
            phase: which weights the step moves.
        """
        ...


def build(
    model: nn.Module, optimizer: Any, phases: Phases, world: Any, shards: int, parallel: str, steady: bool, ema: float = 0.0
) -> Strategy:
    """The strategy of a run.

    Args:
        phases: which weights each update moves.
        shards: parts of a batch over all processes.
        parallel: 'ddp', 'fsdp', or the path of a file that has a function `build` with these arguments, but for this one.
        steady: only the optimizer changes the model, so a step may be replayed.
        ema: decay of the moving average of the weights; 0 for none.
    """
    if parallel.endswith(".py"):
        return build_own(Path(parallel), model, optimizer, phases, world, shards, steady, ema)
    if parallel == "fsdp" and world.size > 1:
        from .sharded import Sharded

        if phases.declared:
            message = "FSDP does not support objectives with phases, such as GAN training"
            raise BadInput(message, where="parallel", fix="leave --parallel fsdp out")
        return Sharded(model, optimizer, world, ema)
    weights = Weights(model, optimizer, phases, ema)
    if shards == 1:
        from .single import Single

        return Single(model, weights, world, steady)
    from .ordered import Ordered

    return Ordered(model, weights, world, shards)


def build_own(path: Path, *parts: Any) -> Strategy:
    """The strategy of a user's file."""
    module = registry.load_file(path)
    if not callable(getattr(module, "build", None)):
        raise BadInput(f"{path.name} has no function 'build'", where=str(path), fix="define build(model, optimizer, phases, ...)")
    strategy = module.build(*parts)
    missing = [name for name in ("weights", "evaluation_world", "gradient") if not hasattr(strategy, name)]
    if missing:
        message = f"the strategy has no '{missing[0]}'"
        raise BadInput(message, where=str(path), fix="give it what sonde.engine.strategies.Strategy lists")
    return strategy
