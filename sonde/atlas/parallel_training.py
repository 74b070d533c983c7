"""Chapter 10, parallel training."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, distributed, nn
from torch.nn.utils import parameters_to_vector
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from ..core.batch import Batch, Data
from ..core.reading import Table
from ..core.recipe import Callback, Recipe
from ..core.seeds import generator
from ..data.order import Order
from ..data.tensors import TensorSource
from ..engine.launch import launch
from ..engine.world import World
from ..gradients import mean
from ..gradients.flat import Flat
from ..models.mlp import MLP
from ..objectives.categorical import Categorical
from ..objectives.gaussian import Gaussian
from ..optim.build import optimizer
from .exhibit import Exhibit

RATE = 0.1


def par_01(exhibit: Exhibit) -> str:
    """1, 2 and 4 real processes against a plain loop in one; and shards of 3 and 5 against the batch of 8."""
    steps, want = 20, _plain_training(20, exhibit.seed)
    ends, gap = {}, 0.0
    for processes in (1, 2, 4):
        folder = exhibit.folder / f"replicas-{processes}"
        folder.mkdir()
        run = exhibit.train(
            _small_task(steps, exhibit.seed, folder), f"processes-{processes}", seed=exhibit.seed, processes=processes, shards=4
        )
        ends[processes] = _weights(run.model())
        name = f"parameters after {steps} steps, K={processes}, against a plain loop"
        gap = max(gap, exhibit.expect(name, ends[processes], want, within=1e-6))
        replicas = [np.load(path, allow_pickle=False) for path in sorted(folder.iterdir())]
        exhibit.expect(f"replicas that reported, K={processes}", len(replicas), processes)
        exhibit.expect(f"largest difference between replicas, K={processes}", max(np.abs(r - replicas[0]).max() for r in replicas), 0.0)
    for processes in (2, 4):
        exhibit.expect(f"entries that differ between K={processes} and K=1", int((ends[processes] != ends[1]).sum()), 0)

    data = _clusters(8, exhibit.seed)
    batch = data[torch.arange(8)]
    shards = {0: batch[:3], 1: batch[3:]}
    whole, three, five = (_gradient(part, exhibit.seed) for part in (batch, shards[0], shards[1]))
    summed = _sharded_gradient(shards, exhibit.seed)
    unweighted = float(((three + five) / 2 - whole).abs().max() / whole.abs().max())
    exhibit.expect("shards of 3 and 5 by the library, against the batch of 8", summed, whole, within=1e-12)
    exhibit.expect("(3 g_3 + 5 g_5) / 8, against the batch of 8", (3 * three + 5 * five) / 8, whole, within=1e-12)
    exhibit.expect("unweighted mean (g_3 + g_5) / 2: off by (g_3 - g_5) / 8", (three + five) / 2 - whole, (three - five) / 8, within=1e-12)
    return f"K=1,2,4 equal bit for bit, {gap:.1e} from a plain loop after {steps} steps; unweighted mean of shards off by {unweighted:.0%}"


def par_02(exhibit: Exhibit) -> str:
    """Two halves of a network in two processes that send each other activations and their gradients, and nothing else."""
    launch(lambda world: _train_half(world, exhibit.folder, exhibit.seed), 2)
    halves = [np.load(exhibit.folder / f"half-{rank}.npz", allow_pickle=False) for rank in (0, 1)]
    model, data = nn.Sequential(*_halves(exhibit.seed)), _pairs(exhibit.seed)
    for step, batch in enumerate(data):
        model.zero_grad()
        output = model(batch.x)
        exhibit.expect(f"outputs of step {step}, split against whole", halves[1][f"output {step}"], output, within=1e-12)
        Gaussian().terms(output, batch).loss().backward()
        _descend(model)
    gap = 0.0
    for rank, half in enumerate(halves):
        for name, parameter in model[rank].named_parameters():
            exhibit.expect(f"half {rank}, gradient of {name} in the last step", half[f"gradient {name}"], parameter.grad, within=1e-12)
            gap = max(gap, exhibit.expect(f"half {rank}, {name} after the last step", half[f"weights {name}"], parameter, within=1e-12))
    sent = [half["sent"].tolist() for half in halves]
    exhibit.expect("bytes forward in each step: 5 examples of 7 hidden values of 8 bytes", sent[0], [280, 280, 280])
    exhibit.expect("bytes backward in each step", sent[1], [280, 280, 280])
    exhibit.show(Table("Bytes between the halves", {"step": list(range(len(data))), "forward": sent[0], "backward": sent[1]}))
    return f"largest difference {gap:.1e} after {len(data)} steps; {sent[0][0]} bytes forward and {sent[1][0]} back in each"


def par_03(exhibit: Exhibit) -> str:
    """A device that is not there, a batch cut into parts to save memory, and why devices like large matrix products."""
    missing = "mps" if torch.cuda.is_available() else "cuda"
    notice = io.StringIO()
    with contextlib.redirect_stderr(notice):
        elsewhere = exhibit.train(_small_task(5, exhibit.seed), "elsewhere", seed=exhibit.seed, device=missing)
    here = exhibit.train(_small_task(5, exhibit.seed), "here", seed=exhibit.seed)
    exhibit.expect(f"asking for {missing} gives a notice that names it", missing in notice.getvalue() and "CPU" in notice.getvalue(), True)
    exhibit.expect(f"parameters after asking for {missing}", _weights(elsewhere.model()), _weights(here.model()))

    task = _small_task(20, exhibit.seed, batch_size=32)
    whole = _weights(exhibit.train(task, "whole", seed=exhibit.seed).model())
    parts = _weights(exhibit.train(task.replace(accumulate=4), "parts", seed=exhibit.seed).model())
    gap = exhibit.expect("parameters after 20 steps, 4 parts of 8 against a batch of 32", parts, whole, within=1e-6)

    a = torch.randn(256, 16, 24, generator=exhibit.generator("a"))
    b = torch.randn(256, 24, 8, generator=exhibit.generator("b"))
    with Calls() as loop_calls, FlopCounterMode(display=False) as loop_work:
        loop = torch.stack([one @ other for one, other in zip(a, b, strict=True)])
    with Calls() as batched_calls, FlopCounterMode(display=False) as batched_work:
        batched = torch.bmm(a, b)
    exhibit.expect("one batched product against a loop of products", batched, loop, within=1e-5)
    exhibit.expect("floating-point operations of the loop", loop_work.get_total_flops(), 256 * 2 * 16 * 24 * 8)
    exhibit.expect("floating-point operations of the batched product", batched_work.get_total_flops(), 256 * 2 * 16 * 24 * 8)
    # What a device gains is calls saved, at the same work; seconds would depend on what else the machine does.
    exhibit.expect("matrix products called by the loop", loop_calls.products, 256)
    exhibit.expect("matrix products called by the batched one", batched_calls.products, 1)
    return f"no {missing}: CPU with a notice; 4x8 against 32 differs by {gap:.1e}; batched: {loop_calls.products} products in one call"


class Calls(TorchDispatchMode):
    """Counts the matrix products that torch is called for."""

    def __init__(self) -> None:
        super().__init__()
        self.products = 0

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.products += operator in (torch.ops.aten.mm.default, torch.ops.aten.bmm.default)
        return operator(*args, **(kwargs or {}))


class Replicas(Callback):
    """Writes the weights of this process's replica at the last step; every process has its own."""

    def __init__(self, models: list[nn.Module], folder: Path, last: int) -> None:
        self.output, self.folder, self.last = models, folder, last

    def step(self, run: Any, step: int, row: Any) -> None:
        if step == self.last:
            np.save(self.folder / f"rank-{run.world.rank}.npy", _weights(self.output[-1]).numpy())


def _small_task(steps: int, seed: int, folder: Path | None = None, batch_size: int = 8) -> Recipe:
    """Three clusters, a small MLP, plain SGD; 30 examples, so that the last batch of an epoch is short."""
    models: list[nn.Module] = []

    def model() -> nn.Module:
        models.append(_net(seed))
        return models[-1]

    return Recipe(
        model=model,
        data=Data(_clusters(30 if batch_size < 30 else 70, seed)),
        objective=Categorical(classes=3),
        optimizer=optimizer("sgd", lr=RATE),
        batch_size=batch_size,
        steps=steps,
        log_every=steps,
        callbacks=[Replicas(models, folder, steps)] if folder else [],
    )


def _plain_training(steps: int, seed: int) -> Tensor:
    """The same task in a loop anyone would write: whole batches, mean loss, torch's own SGD."""
    model, data, order = _net(seed), _clusters(30, seed), Order(30, 8, seed=seed)
    sgd = torch.optim.SGD(model.parameters(), lr=RATE)
    for step in range(steps):
        batch = data[order.at(step)]
        sgd.zero_grad()
        nn.functional.cross_entropy(model(batch.x), batch.y).backward()
        sgd.step()
    return _weights(model)


def _net(seed: int) -> nn.Module:
    model = MLP((2, 9, 3), activation="tanh")
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter.normal_(std=0.5, generator=generator(seed, "weights", number))
    return model


def _clusters(n: int, seed: int) -> TensorSource:
    y = torch.arange(n) % 3
    centers = torch.tensor([[0.0, 1.0], [1.0, -1.0], [-1.0, -1.0]])
    return TensorSource(centers[y] + 0.5 * torch.randn(n, 2, generator=generator(seed, "clusters")), y)


def _weights(model: nn.Module) -> Tensor:
    return parameters_to_vector(model.parameters()).detach().clone()


def _gradient(batch: Batch, seed: int) -> Tensor:
    """Gradient of the mean loss of a batch alone, by autograd."""
    model = _net(seed).double()
    nn.functional.cross_entropy(model(batch.x.double()), batch.y).backward()
    return parameters_to_vector([parameter.grad for parameter in model.parameters() if parameter.grad is not None])


def _sharded_gradient(shards: dict[int, Batch], seed: int) -> Tensor:
    """Gradient of a batch in parts of any size, by the library."""
    model = _net(seed).double()
    flat = Flat(model)
    parts = {shard: batch.replace(x=batch.x.double()) for shard, batch in shards.items()}
    mean.accumulate_shards(model, Categorical(classes=3), flat, parts, len(parts), World.single(), lambda shard: None, {})
    return parameters_to_vector([parameter.grad for parameter in model.parameters() if parameter.grad is not None]).clone()


def _halves(seed: int) -> tuple[nn.Module, nn.Module]:
    halves = nn.Sequential(nn.Linear(3, 7), nn.Tanh()).double(), nn.Sequential(nn.Linear(7, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    with torch.no_grad():
        for half, module in enumerate(halves):
            for number, parameter in enumerate(module.parameters()):
                parameter.normal_(generator=generator(seed, "half", half, number))
    return halves


def _pairs(seed: int) -> list[Batch]:
    """Three batches of 5 examples."""
    x = torch.randn(15, 3, generator=generator(seed, "pairs")).double()
    return [Batch(x=part, y=part[:, :2].sin()) for part in x.split(5)]


def _train_half(world: World, folder: Path, seed: int) -> None:
    """One process: rank 0 has the inputs and the first half, rank 1 the second half and the targets."""
    half = _halves(seed)[world.rank]
    sent, arrays = [], {}
    for step, batch in enumerate(_pairs(seed)):
        half.zero_grad()
        if world.rank == 0:
            hidden = half(batch.x)
            sent.append(_send(hidden, to=1))
            slope = torch.empty_like(hidden)
            distributed.recv(slope, 1)
            hidden.backward(slope)
        else:
            hidden = torch.empty(5, 7, dtype=torch.float64)
            distributed.recv(hidden, 0)
            hidden.requires_grad_()
            output = half(hidden)
            Gaussian().terms(output, batch).loss().backward()
            assert hidden.grad is not None
            sent.append(_send(hidden.grad, to=0))
            arrays[f"output {step}"] = output.detach().numpy()
        _descend(half)
    for name, parameter in half.named_parameters():
        assert parameter.grad is not None
        arrays |= {f"weights {name}": parameter.detach().numpy(), f"gradient {name}": parameter.grad.numpy()}
    np.savez(folder / f"half-{world.rank}.npz", sent=np.array(sent), **arrays)


def _send(tensor: Tensor, to: int) -> int:
    """Send the numbers to a rank; returns how many bytes they are."""
    distributed.send(tensor.detach().contiguous(), to)
    return tensor.numel() * tensor.element_size()


def _descend(module: nn.Module) -> None:
    with torch.no_grad():
        for parameter in module.parameters():
            assert parameter.grad is not None
            parameter.sub_(RATE * parameter.grad)
