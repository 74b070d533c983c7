"""A model sharded over processes (FSDP2): each holds a shard of every weight, gradient and moment.

For models that do not fit one process.  A step gathers one unit of the model at a time (see `units`).  Checkpoints hold whole
tensors under the same names as everywhere else, so a run may change between this and `ordered` at a resume.  Bits are those of the
reduction torch chooses; the promise that the number of processes changes nothing is that of `ordered`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from ...core.batch import Batch
from ...core.errors import BadInput, SondeError
from ...gradients import mean
from ...gradients.flat import owner, trainable_parameters
from ...gradients.mean import long_norm
from ..average import Average
from ..evaluate import record_outputs, sums
from ..state import misfit, misfit_model, model_tensors, seed_everything
from ..weights import build_optimizer
from ..world import World
from .units import choose_units, replicated_parameters


class Sharded:
    """Each process computes its shards with weights that are gathered unit by unit, and keeps its part of the gradient.

    Every process must call the model equally often.  One with fewer or with empty shards calls it on examples that do not count.

    Args:
        shards: parts of a batch over all processes
        example: a few examples, the same on every process
        ema: decay of the moving average of the weights; 0 for none
    """

    def __init__(
        self, model: nn.Module, optimizer: Any, objective: Any, world: World, shards: int, example: Batch, ema: float = 0.0
    ) -> None:
        self.model, self.world, self.shards, self.example = model, world, shards, example
        self.evaluation_world = World.single()  # a forward pass needs all processes, so all see all batches
        self.memory: dict[str, Any] = {}
        trainable_parameters(model)  # raises where there are none
        replicated = replicated_parameters(model)

        def agree(flags: list[bool]) -> list[bool]:
            return [flag > 0 for flag in world.max_vector([float(flag) for flag in flags])]

        units = choose_units(model, lambda: _run_trial(model, objective, example), replicated, agree)
        self.root: Any = Root(model)
        self.parts = _shard([*units, self.root], replicated, world)
        self.apply(lambda model: None)  # torch takes the first module that runs for the outermost one
        self.weights = ShardedWeights(model, optimizer, world, ema)

    def apply(self, function: Callable[[nn.Module], Any]) -> Any:
        """Call `function(model)` with the weights that belong to no unit gathered; units gather theirs when they run."""
        try:
            return self.root(function)
        finally:
            self.root.reshard()

    @contextmanager
    def whole(self) -> Iterator[None]:
        """All weights gathered, so that each process may use the model as it likes."""
        self._reshard_units(False)
        for part in self.parts:
            part.unshard()
        try:
            yield
        finally:
            self._reshard_units(True)
            for part in self.parts:
                part.reshard()

    def _reshard_units(self, flag: bool) -> None:
        for unit in self.parts[:-1]:
            unit.set_reshard_after_forward(flag, recurse=False)

    def gradient(self, objective: Any, batch: Mapping[int, Batch], seed: Callable[[int], None], phase: int = 0) -> float:
        """The gradient of the mean over all shards, of which each process keeps its part."""
        passes = self._passes(batch)
        counts = self._counts(objective, passes, seed)
        self.weights.zero_grad()
        moving = mean.Moving(self.model)
        names = sorted(counts)
        weights = dict.fromkeys(names, 1.0)
        totals = dict.fromkeys([*names, ""], 0.0)  # '' counts shards with examples
        for shard, part, counts_in in passes:
            moving.rewind()
            seed(shard)
            loss, terms = self._forward(objective, part, counts)
            (loss if counts_in else loss * 0).backward()
            if counts_in:
                moving.note(shard)
                totals[""] += 1
                for name, term in terms.items():
                    totals[name] += float(term.sum.detach())
                    weights[name] = term.weight
        self.weights.add_small_gradients()
        totals = dict(zip(totals, self.world.sum_vector(list(totals.values())), strict=True))
        moving.rewind()
        moving.settle(self.world, batch, self.shards, totals[""])
        return sum(weights[name] * totals[name] / max(counts[name], 1e-30) for name in names)

    def _passes(self, batch: Mapping[int, Batch]) -> list[tuple[int, Batch, bool]]:
        """(shard, examples, whether they count), equally many on every process."""
        passes = [(shard, part, True) if len(part) else (shard, self.example, False) for shard, part in batch.items()]
        most = -(-self.shards // self.world.size)
        return passes + [(self.shards, self.example, False)] * (most - len(passes))

    def _counts(self, objective: Any, passes: list[tuple[int, Batch, bool]], seed: Callable[[int], None]) -> dict[str, float]:
        """Counts of each term over all shards; an objective that does not count by itself is called, on all processes."""
        own: dict[str, float] = {}
        gathered = objective if hasattr(objective, "counts") else lambda model, part: self.apply(lambda model: objective(model, part))
        for shard, part, counts_in in passes:
            if counts_in or gathered is not objective:
                counts = mean.count_part(self.model, gathered, shard, part, seed)
                own |= {name: own.get(name, 0.0) + count for name, count in counts.items() if counts_in}
        return mean.sum_counts(own, self.world, self.memory)

    def _forward(self, objective: Any, part: Batch, counts: Mapping[str, float]) -> tuple[Tensor, Any]:
        kept: list[Any] = []

        def compute_loss(model: nn.Module) -> Tensor:
            kept.append(objective(model, part))
            return kept[0].loss(counts)

        return self.root(compute_loss), kept[0]


class Root(nn.Module):
    """The outermost module of FSDP.  Its forward pass is any function of the model, so that weights which belong to no unit are
    there whichever methods of the model are called, by an objective for example."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, function: Callable[[nn.Module], Any]) -> Any:
        return function(self.model)


def _run_trial(model: nn.Module, objective: Any, batch: Batch) -> None:
    """Use the model on a few examples as training and evaluation do; its buffers are restored."""
    seed_everything(0, "trial")
    if hasattr(objective, "at"):
        objective.at(0)
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    objective(model, batch)
    model.eval()
    with torch.no_grad(), record_outputs(model) as outputs:
        sums(model, objective, batch, outputs)
    model.train()
    for buffer, value in buffers:
        buffer.copy_(value)


def _shard(modules: list[nn.Module], replicated: set[nn.Parameter], world: World) -> list[Any]:
    """Divide the parameters of each module that none before it holds over the processes; the last module contains all others."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    # No unit returns a view that is changed in place: the trial would have seen it.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    parameters = list(modules[-1].parameters())
    mesh = init_device_mesh(parameters[0].device.type, (world.size,))
    for parameter in parameters:
        if not parameter.is_contiguous():  # torch divides row-major memory only
            parameter.data = parameter.data.contiguous()
    parts: list[Any] = [fully_shard(module, mesh=mesh, ignored_params=replicated) for module in modules]
    for part in parts:
        part.set_gradient_divide_factor(1.0)  # terms are divided by the counts of all processes already
        part.set_force_sum_reduction_for_comms(True)
        if world.device.type == "cpu":
            part.set_modules_to_backward_prefetch([part])  # nothing overlaps there: the next unit early would only take memory
    parts[-1].set_reshard_after_forward(False, recurse=False)
    parts[-1].set_reduce_scatter_unused_params(True)
    return parts


class ShardedWeights:
    """The methods of `Weights`; every one of them but `fits` is a collective."""

    def __init__(self, model: nn.Module, optimizer: Any, world: World, ema: float = 0.0) -> None:
        self.model, self.world = model, world
        self.layout = {name: tensor.to("meta") for name, tensor in model_tensors(model).items()}
        self.parameters = list(model.parameters())
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        self.divided = [p for _, p in named if _has_mesh(p)]
        self.replicated = [p for _, p in named if not _has_mesh(p)]
        elementwise = getattr(optimizer, "elementwise", None)
        if elementwise is False:
            message = f"optimizer '{optimizer.name}' updates a matrix as a whole, and FSDP divides its rows among processes"
            raise BadInput(message, where="parallel", fix="use another optimizer, such as adamw, or leave --parallel fsdp out")
        # An elementwise rule works on what this process holds.  A rule that is not known to be one sees whole tensors.
        self.targets = {p: nn.Parameter(_local(p.detach())) if elementwise else p for _, p in named}
        decays = getattr(optimizer, "decays", lambda name, parameter, owner: True)
        groups = []
        for divided in (True, False):  # torch updates a group at once, which must be of one kind
            for group in (0, 1):
                own = [(name, p) for name, p in named if decays(name, p, owner(model, name)) == (group == 0) and _has_mesh(p) == divided]
                if own:
                    groups.append({"params": [self.targets[p] for _, p in own], "group": group, "names": [name for name, _ in own]})
        self.optimizer = build_optimizer(optimizer, groups)
        self.rates = [group["lr"] for group in self.optimizer.param_groups]
        self._check_optimizer()
        buffers = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
        self.average = Average([*(_local(p.detach()) for _, p in named), *buffers], ema) if ema else None

    def _check_optimizer(self) -> None:
        """Raise BadInput unless the optimizer can update shards; keeps the layout of its state."""
        try:
            self._prime()
        except SondeError:
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {error}".split("\n")[0]
            message = f"{type(self.optimizer).__name__} cannot update weights that are spread over processes: {reason}"
            raise BadInput(message, where="parallel", fix="use another optimizer, such as adamw, or leave --parallel fsdp out") from error
        self.moments = {name: value.to("meta") for name, value in self._moments().items()}
        self.optimizer.state.clear()
        self.zero_grad()

    def zero_grad(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def add_small_gradients(self) -> None:
        """Add up what torch does not: gradients of parameters that every process holds as a whole.  Unused ones have gradient 0."""
        for parameter in (*self.divided, *self.replicated):
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        if self.replicated:
            own = torch.cat([p.grad.reshape(-1) for p in self.replicated])  # type: ignore[union-attr]
            total = self.world.ordered_sum({self.world.rank: own}, self.world.size)
            for parameter, part in zip(self.replicated, total.split([p.numel() for p in self.replicated]), strict=True):
                parameter.grad.copy_(part.view_as(parameter))  # type: ignore[union-attr]

    def norm(self) -> Tensor:
        own, shared = (sum(float(long_norm(_local(p.grad).reshape(-1))) ** 2 for p in parts) for parts in (self.divided, self.replicated))
        return torch.tensor(math.sqrt(self.world.sum_vector([own])[0] + shared), dtype=self.parameters[0].dtype)

    def finite(self) -> bool:
        parts = (_local(parameter) for parameter in self.parameters)
        return not self.world.any(not all(bool(torch.isfinite(part).all()) for part in parts))

    def clip(self, norm: Tensor, largest: float) -> None:
        factor = mean.clip_factor(norm, largest)
        for parameter in (*self.divided, *self.replicated):
            _local(parameter.grad).mul_(factor)

    def update(self, factor: float, phase: int = 0) -> float:
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * factor
        self._step()
        return self.optimizer.param_groups[0]["lr"]

    def _step(self) -> None:
        apart = [(parameter, target) for parameter, target in self.targets.items() if target is not parameter]
        for parameter, target in apart:
            target.grad = _local(parameter.grad)
        self.optimizer.step()
        for _, target in apart:
            target.grad = None  # else it would outlive the next backward pass

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        parts = {"model": self.gather(self._tensors_by_name()), "optim": self.gather(self._moments())}
        if self.average is not None:
            with self.average.swap():
                parts["average"] = {name: tensor.clone() for name, tensor in self.gather(self._tensors_by_name()).items()}
        return parts

    def use_average(self) -> AbstractContextManager[None]:
        return self.average.swap() if self.average is not None else nullcontext()

    def copy(self) -> dict[str, Tensor]:
        copies: dict[int, Tensor] = {}
        return {name: copies.setdefault(id(tensor), tensor.detach().clone()) for name, tensor in self._tensors_by_name().items()}

    def gather(self, held: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Tied weights are gathered once; ranks other than 0 have no use for the whole and keep nothing."""
        whole: dict[int, Tensor] = {}
        for tensor in held.values():
            if id(tensor) not in whole:
                full = _full(tensor.detach())
                whole[id(tensor)] = full if self.world.is_main else full.new_empty(0)
        return {name: whole[id(tensor)] for name, tensor in held.items()} if self.world.is_main else {}

    def hold(self, whole: Mapping[str, Tensor]) -> dict[str, Tensor]:
        parts: dict[int, Tensor] = {}
        held = self._tensors_by_name()
        for name, tensor in held.items():
            if id(tensor) not in parts:
                parts[id(tensor)] = torch.empty_like(tensor.detach())
                _copy_shard_(parts[id(tensor)], whole[name])
        return {name: parts[id(tensor)] for name, tensor in held.items()}

    def _tensors_by_name(self) -> dict[str, Tensor]:
        """Parameters and buffers by name, in shards; tied names have the same tensor."""
        tensors = model_tensors(self.model)  # first: it leaves the model with its shards
        parameters = dict(self.model.named_parameters(remove_duplicate=False))
        return {name: parameters.get(name, tensor) for name, tensor in tensors.items()}

    def fits(self, parts: Mapping[str, Mapping[str, Tensor]]) -> None:
        misfit_model(self.layout, parts)
        if parts["optim"]:
            misfit(self.moments, parts["optim"], "moment")

    def load(self, parts: Mapping[str, Mapping[str, Tensor]]) -> None:
        if self.average is not None and parts.get("average"):
            self._load_model(parts["average"])
            self.average.restart()
        self._load_model(parts["model"])
        if not parts["optim"]:
            self.optimizer.state.clear()
            return
        self._prime()
        with torch.no_grad():
            for name, value in self._moments().items():
                _copy_shard_(value, parts["optim"][name])
        for state, moment, name, _ in self._states():
            if isinstance(state[moment], int | float):
                state[moment] = type(state[moment])(parts["optim"][name].item())

    @torch.no_grad()
    def _load_model(self, saved: Mapping[str, Tensor]) -> None:
        for name, tensor in model_tensors(self.model).items():
            _copy_shard_(tensor, saved[name])

    def _prime(self) -> None:
        """Create the state that an optimizer makes at its first update, without a change of the weights."""
        values = [_local(parameter).detach().clone() for parameter in self.parameters]
        for parameter in (*self.divided, *self.replicated):
            parameter.grad = torch.zeros_like(parameter)
        self._step()
        with torch.no_grad():
            for parameter, value in zip(self.parameters, values, strict=True):
                _local(parameter).copy_(value)

    def _states(self) -> Iterator[tuple[dict[str, Any], str, str, nn.Parameter]]:
        """(state of a parameter, name of a moment in it, name in a checkpoint, the parameter)."""
        parameters = dict(self.model.named_parameters())
        for group in self.optimizer.param_groups:
            for name, target in zip(group["names"], group["params"], strict=True):
                state = self.optimizer.state.get(target, {})
                yield from ((state, moment, f"{name}.{moment}", parameters[name]) for moment in state)

    def _moments(self) -> dict[str, Tensor]:
        """Every moment by `<parameter>.<moment>`, divided where it is like its parameter; a plain number becomes a tensor."""
        moments: dict[str, Tensor] = {}
        for state, moment, name, parameter in self._states():
            value = state[moment]
            if isinstance(value, int | float):
                value = torch.tensor(float(value), dtype=torch.float64)
            if value is None:
                continue
            if not isinstance(value, Tensor):
                kind = type(value).__name__
                raise BadInput(f"state '{moment}' of the optimizer is a {kind}, which cannot be saved", fix="use tensors or numbers")
            moments[name] = _shard_like(parameter, value)
        return moments


def _has_mesh(tensor: Tensor) -> bool:
    return hasattr(tensor, "device_mesh")


def _local(tensor: Any) -> Tensor:
    return tensor.to_local() if _has_mesh(tensor) else tensor


def _full(tensor: Any) -> Tensor:
    return tensor.full_tensor() if _has_mesh(tensor) else tensor


def _shard_like(parameter: Any, value: Tensor) -> Tensor:
    """A tensor of the shape of this process's shard as its shard of a whole, in the same memory; any other as it is."""
    if not _has_mesh(parameter) or _has_mesh(value) or value.shape != _local(parameter).shape:
        return value
    from torch.distributed.tensor import DTensor

    layout = {"shape": parameter.shape, "stride": parameter.stride(), "run_check": False}
    return DTensor.from_local(value, parameter.device_mesh, parameter.placements, **layout)


def _copy_shard_(target: Any, value: Tensor) -> None:
    """Copy a full tensor, or the shards of one, into the local shard."""
    if _has_mesh(target) and not _has_mesh(value):
        from torch.distributed.tensor import distribute_tensor

        value = distribute_tensor(value.to(target.device), target.device_mesh, target.placements, src_data_rank=None)
    target.copy_(value)
