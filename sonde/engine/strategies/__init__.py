"""Strategies: how the gradient of a batch is computed on the processes of a run, and where the weights are.

    single     one process, the batch undivided
    ordered    every process holds all weights; gradients of shards are added in shard order, so the number of processes changes no bit
    sharded    each process holds a part of every weight (FSDP): for models that do not fit one process

All have the methods of `Strategy`; where there are several processes, each of them must make the same calls in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from torch import Tensor, nn

from ...core.batch import Batch
from ...core.errors import BadInput
from ..weights import Weights, has_phases


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

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """Whole tensors by part of a checkpoint: 'model' and 'optim'; only rank 0 needs them."""
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


def build(
    model: nn.Module,
    optimizer: Any,
    objective: Any,
    world: Any,
    shards: int,
    parallel: str,
    steady: bool,
    example: Callable[[], Batch] | None = None,
) -> Strategy:
    """The strategy of a run.

    Args:
        shards: parts of a batch over all processes.
        parallel: 'ddp' or 'fsdp'.
        steady: only the optimizer changes the model, so a step may be replayed.
        example: gives a few examples, the same on every process; FSDP needs them.
    """
    if parallel == "fsdp" and world.size > 1:
        from .sharded import Sharded

        if has_phases(objective):
            message = "FSDP does not support objectives with phases, such as GAN training"
            raise BadInput(message, where="parallel", fix="leave --parallel fsdp out")
        assert example is not None
        return Sharded(model, optimizer, objective, world, shards, example())
    weights = Weights(model, optimizer, objective)
    if shards == 1:
        from .single import Single

        return Single(model, weights, world, steady)
    from .ordered import Ordered

    return Ordered(model, weights, world, shards)
