"""A run with everything that a data set does not have: batches that depend on the model and on a state, networks that take turns, copies
that follow, averaged weights, and an evaluation that is not a data set."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sonde.core.batch import Batch, Data
from sonde.core.recipe import Follower, Recipe
from sonde.core.seeds import generator
from sonde.core.segments import Segments
from sonde.core.stream import Measured, Stream
from sonde.core.terms import Terms
from sonde.optim.build import optimizer

WIDTH = 5


def label(x: Tensor) -> Tensor:
    return (x[:, :1] * x[:, 1:2] + torch.sin(x[:, 2:3])).float()


class Shard:
    """What one shard has seen: examples in a ring, and the error that each had when it was last used."""

    def __init__(self, capacity: int) -> None:
        rows = max(16, capacity // 250)
        self.examples, self.errors = Segments((capacity, WIDTH), rows=rows), Segments((capacity,), rows=rows)
        self.seen = 0
        self.used = torch.empty(0, dtype=torch.int64)
        """places of the examples of the last batch"""

    def add(self, x: Tensor) -> Tensor:
        places = (self.seen + torch.arange(len(x))) % len(self.examples)
        self.examples.write(places, x)
        self.errors.write(places, 1e9)  # until they are used
        self.seen += len(x)
        return places


class Mining(Stream):
    """Half of a part is new: of twice as many candidates those that the model gets most wrong.  The other half was hard before."""

    def __init__(self, data: Data, seed: int, size: int = 3, capacity: int = 40) -> None:
        self.seed, self.size, self.capacity = seed, size, capacity
        self.shards: dict[int, Shard] = {}

    def open(self, own: range, shards: int) -> None:
        self.shards = {shard: Shard(self.capacity) for shard in own}

    def batch(self, step: int, shard: int, shards: int, model: nn.Module) -> Batch:
        memory = self.shards[shard]
        x = torch.randn(2 * self.size, WIDTH, generator=generator(self.seed, "mine", step, shard)) + 0.01 * torch.randn(())
        wrong = (model(x) - label(x)).square().flatten()
        new = memory.add(x[wrong.topk(self.size).indices])
        memory.used = torch.cat([new, memory.errors.values.topk(self.size).indices])
        chosen = memory.examples[memory.used]
        return Batch(x=chosen, y=label(chosen))

    def example(self, n: int) -> Batch:
        x = torch.ones(n, WIDTH)
        return Batch(x=x, y=label(x))

    def observe(self, step: int, measured: Measured) -> None:
        for shard, notes in measured.notes.items():
            memory = self.shards[shard]
            memory.errors.write(memory.used, notes["error"] + 0.1 * measured.means["fit"])

    def state_dict(self) -> dict[str, Any]:
        return {
            f"shard-{number}": {"examples": one.examples, "errors": one.errors, "seen": one.seen} for number, one in self.shards.items()
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for number, one in self.shards.items():
            saved = state[f"shard-{number}"]
            one.examples, one.errors, one.seen = saved["examples"], saved["errors"], saved["seen"]


class Pair(nn.Module):
    """A network, a copy that follows it, and a scale that is trained in turns of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(WIDTH, 7), nn.Tanh(), nn.Dropout(0.2), nn.Linear(7, 1))
        self.target = copy.deepcopy(self.net).requires_grad_(False)
        self.log_scale = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x) * self.log_scale.exp()


class Fit:
    """Squared error, and a pull toward the copy."""

    phases = (("net",), ("net", "scale"))
    followers = (Follower("target", "net", decay=0.8, every=2),)
    has_scale = False
    phase: str | None = None

    def __init__(self) -> None:
        self.calls = torch.zeros((), dtype=torch.int64)

    def phase_of(self, name: str) -> str:
        return "scale" if name == "log_scale" else "net"

    def __call__(self, model: Pair, batch: Batch) -> Terms:
        error = (model(batch.x) - batch.y).square().flatten()
        pull = (model.net(batch.x) - model.target(batch.x)).square().sum()
        return Terms(fit=(error.sum(), len(batch)), pull=(pull, len(batch), 0.1)).note(error=error)

    def counts(self, batch: Batch) -> dict[str, float]:
        return {"fit": len(batch), "pull": len(batch)}


class Memory:
    """A callback that keeps a tensor."""

    def __init__(self) -> None:
        self.losses = torch.zeros(3, dtype=torch.float64)

    def start(self, run: Any) -> None: ...

    def evaluated(self, run: Any, step: int, row: Mapping[str, float]) -> None: ...

    def finish(self, run: Any, step: int, model: nn.Module) -> None: ...

    def state(self) -> dict[str, Any]:
        return {}

    def load(self, state: Mapping[str, Any]) -> None: ...

    def step(self, run: Any, step: int, row: Mapping[str, float]) -> None:
        self.losses[step % 3] += row["loss"]

    def state_dict(self) -> dict[str, Any]:
        return {"losses": self.losses, "sum": float(self.losses.sum())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.losses = state["losses"].clone()


def far(model: nn.Module, shard: int, shards: int) -> Terms:
    """The error on new examples of a shard, drawn from the global generator."""
    x = torch.randn(9, WIDTH) * 2
    return Terms(error=((model(x) - label(x)).square().sum(), len(x)))


def experience(steps: int = 23, decay: float = 0.9, capacity: int = 40) -> Recipe:
    return Recipe(
        model=Pair,
        data=Data(name="mined"),
        stream=partial(Mining, capacity=capacity),
        objective=Fit(),  # type: ignore[arg-type]
        optimizer={"net": optimizer("adamw", lr=0.02, weight_decay=0.01), "scale": optimizer("sgd", lr=0.05, momentum=0.9)},
        evaluations={"far": far},
        monitor="far/error",
        steps=steps,
        ema=decay,
        clip_norm=1.0,
        log_every=1,
        evaluate_every=6,
        callbacks=(Memory(),),  # type: ignore[arg-type]
    )
