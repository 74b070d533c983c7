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
        """Whole tensors by part of a checkpoint: 'model', 'optim' and, where weights are averaged, 'average'; only rank 0 needs them."""
        ...

    def copy(self) -> dict[str, Tensor]:
        """A copy of the model's tensors as this process holds them; `load` takes it too."""
        ...

    def gather(self, held: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The whole tensors of such a copy; only rank 0 needs them."""
        ...

    def hold(self, whole: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Such a copy, of whole tensors."""
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

    def apply(self, function: Callable[[nn.Module], Any]) -> Any:
        """Call `function(model)`, which may call the model and its methods; every process must call the same ones."""
        ...

    def whole(self) -> AbstractContextManager[None]:
        """Inside this context every process has all weights and may use the model on its own."""
        ...


def build(  # noqa: PLR0913  everything that a strategy may need
    model: nn.Module,
    optimizer: Any,
    phases: Phases,
    world: Any,
    shards: int,
    parallel: str,
    steady: bool,
    ema: float = 0.0,
    example: Callable[[], Batch] | None = None,
) -> Strategy:
    """The strategy of a run.

    Args:
        phases: which weights each update moves, and the objective.
        shards: parts of a batch over all processes.
        parallel: 'ddp', 'fsdp', or the path of a file that has a function `build` that takes the arguments up to `ema`, but for this one.
        steady: only the optimizer changes the model, so a step may be replayed.
        ema: decay of the moving average of the weights; 0 for none.
        example: gives a few examples, the same on every process; FSDP needs them.
    """
    if parallel.endswith(".py"):
        return build_own(Path(parallel), model, optimizer, phases, world, shards, steady, ema)
    if parallel == "fsdp" and world.size > 1:
        from .sharded import Sharded

        if phases.declared:
            message = "FSDP does not support objectives with phases, such as GAN training"
            raise BadInput(message, where="parallel", fix="leave --parallel fsdp out")
        assert example is not None
        return Sharded(model, optimizer, phases.objective, world, shards, example(), ema)
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
    missing = [name for name in ("weights", "evaluation_world", "gradient", "apply", "whole") if not hasattr(strategy, name)]
    if missing:
        message = f"the strategy has no '{missing[0]}'"
        raise BadInput(message, where=str(path), fix="give it what sonde.engine.strategies.Strategy lists")
    return strategy
