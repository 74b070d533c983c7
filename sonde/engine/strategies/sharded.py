"""A model sharded over processes (FSDP2): each holds a shard of every weight, gradient and moment.

For models that do not fit one process.  Checkpoints hold whole tensors under the same names as everywhere else, so a
run may change between this and `ordered` at a resume.  Bits are those of the reduction torch chooses; the promise that
the number of processes changes nothing is that of `ordered`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from ...core.batch import Batch
from ...gradients.flat import owner
from ...gradients.mean import global_counts
from ..average import Average
from ..state import misfit_model, model_tensors
from ..weights import build_optimizer
from ..world import World


class Sharded:
    """Each process computes its shards with weights that are gathered block by block, and keeps its part of the gradient."""

    def __init__(self, model: nn.Module, optimizer: Any, world: World, ema: float = 0.0) -> None:
        self.model, self.world = model, world
        self.evaluation_world = World.single()  # a forward pass needs all processes, so all see all batches
        self.memory: dict[str, Any] = {}
        self.weights = ShardedWeights(model, optimizer, world, ema)

    def gradient(self, objective: Any, batch: Mapping[int, Batch], seed: Callable[[int], None], phase: int = 0) -> float:
        """The gradient of the mean over all shards; torch averages over processes, so each loss is scaled up by their number."""
        counts = global_counts(self.model, objective, batch, self.world, seed, self.memory)
        self.weights.optimizer.zero_grad()
        sums, weights = dict.fromkeys(counts, 0.0), dict.fromkeys(counts, 1.0)
        for shard, part in batch.items():
            seed(shard)
            terms = objective(self.model, part)
            (terms.loss(counts) * self.world.size).backward()
            for name, term in terms.items():
                sums[name] += float(term.sum.detach())
                weights[name] = term.weight
        self.world.broadcast_([buffer for buffer in self.model.buffers() if buffer.is_floating_point()])
        added = self.world.sum_vector([sums[name] for name in sorted(sums)])
        return sum(weights[name] * value / counts[name] for name, value in zip(sorted(sums), added, strict=True))


class ShardedWeights:
    """The methods of `Weights`; every one of them is a collective."""

    def __init__(self, model: nn.Module, optimizer: Any, world: World, ema: float = 0.0) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        self.model, self.world = model, world
        self.whole = {name: tensor.to("meta") for name, tensor in model_tensors(model).items()}
        mesh = init_device_mesh(next(model.parameters()).device.type, (world.size,))
        for child in model.children():
            if any(True for _ in child.parameters()):
                fully_shard(child, mesh=mesh)
        fully_shard(model, mesh=mesh)
        decays = getattr(optimizer, "decays", lambda name, parameter, owner: True)
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        groups = []
        for group in (0, 1):
            own = [(name, p) for name, p in named if decays(name, p, owner(model, name)) == (group == 0)]
            if own:
                groups.append({"params": [p for _, p in own], "group": group, "names": [name for name, _ in own]})
        self.optimizer = build_optimizer(optimizer, groups)
        self.rates = [group["lr"] for group in self.optimizer.param_groups]
        buffers = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
        self.average = Average([*(_local(p.detach()) for _, p in named), *buffers], ema) if ema else None

    def norm(self) -> Tensor:
        grads = [p.grad for p in self.model.parameters() if p.grad is not None]
        return _full(torch.nn.utils.get_total_norm(grads))

    def finite(self) -> bool:
        parts = (_local(parameter) for parameter in self.model.parameters())
        return not self.world.any(not all(bool(torch.isfinite(part).all()) for part in parts))

    def clip(self, norm: Tensor, largest: float) -> None:
        torch.nn.utils.clip_grads_with_norm_(list(self.model.parameters()), largest, norm)

    def update(self, factor: float, phase: int = 0) -> float:
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * factor
        self.optimizer.step()
        return self.optimizer.param_groups[0]["lr"]

    def _moments(self) -> dict[str, Tensor]:
        moments = {}
        for group in self.optimizer.param_groups:
            for name, parameter in zip(group["names"], group["params"], strict=True):
                for moment, value in self.optimizer.state.get(parameter, {}).items():
                    if isinstance(value, Tensor):
                        moments[f"{name}.{moment}"] = value
        return moments

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """Full tensors, gathered from all processes."""
        parts = {"model": self._gather(), "optim": {name: _full(tensor) for name, tensor in self._moments().items()}}
        if self.average is not None:
            with self.average.swap():
                parts["average"] = {name: tensor.clone() for name, tensor in self._gather().items()}
        return parts

    def use_average(self) -> AbstractContextManager[None]:
        return self.average.swap() if self.average is not None else nullcontext()

    def _gather(self) -> dict[str, Tensor]:
        return {name: _full(tensor) for name, tensor in model_tensors(self.model).items()}

    def fits(self, parts: Mapping[str, Mapping[str, Tensor]]) -> None:
        misfit_model(self.whole, parts)

    def load(self, parts: Mapping[str, Mapping[str, Tensor]]) -> None:
        with torch.no_grad():
            for part in ("average", "model") if self.average is not None and parts.get("average") else ("model",):
                for name, tensor in model_tensors(self.model).items():
                    _copy_shard_(tensor, parts[part][name])
                if part == "average" and self.average is not None:
                    self.average.restart()
            if not parts["optim"]:
                self.optimizer.state.clear()
                return
            values = [parameter.detach().clone() for parameter in self.model.parameters()]
            for parameter in self.model.parameters():
                parameter.grad = torch.zeros_like(parameter)
            self.optimizer.step()  # an optimizer makes its state at its first update
            for parameter, value in zip(self.model.parameters(), values, strict=True):
                parameter.copy_(value)
            for name, moment in self._moments().items():
                _copy_shard_(moment, parts["optim"][name])


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _full(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def _copy_shard_(target: Any, value: Tensor) -> None:
    """Copy a full tensor into the local shard."""
    if hasattr(target, "device_mesh"):
        from torch.distributed.tensor import distribute_tensor

        value = distribute_tensor(value.to(target.device), target.device_mesh, target.placements)
    target.copy_(value)
