"""FSDP: every model and objective has the gradient of data parallel, gathers one block at a time, and survives what a run survives."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sonde.core import registry
from sonde.core.batch import Batch, call_model
from sonde.core.terms import Terms
from sonde.engine.launch import launch
from sonde.engine.strategies import units
from sonde.engine.strategies.ordered import Ordered
from sonde.engine.strategies.sharded import Sharded
from sonde.engine.weights import Weights, has_phases
from sonde.engine.world import World, shards_of
from sonde.optim.build import optimizer


class Squares:
    """The mean square of all that a model returns; it does not count by itself, so it is asked for its counts."""

    def __call__(self, model: Any, batch: Batch) -> Terms:
        outputs = call_model(model, batch)
        values = outputs if isinstance(outputs, tuple) else outputs.values() if isinstance(outputs, dict) else (outputs,)
        return Terms(squares=(sum(value.square().sum() for value in values if isinstance(value, Tensor)), float(len(batch))))


def tiny_cases() -> Iterator[tuple[str, nn.Module, Any, Batch]]:
    """Every objective with its model, and every model."""
    for name in registry.names("objectives"):
        torch.manual_seed(0)
        objective, model, batch = registry.load("objectives", name).tiny()
        if not has_phases(objective):
            yield f"objective {name}", model, objective, batch
    for name in registry.names("models"):
        torch.manual_seed(0)
        model, batch = registry.load("models", name).tiny()
        yield f"model {name}", model, Squares(), batch


def largest_differences(
    world: World, model: nn.Module, objective: Any, batch: Batch, shards: int = 2, steps: int = 2, **options: Any
) -> tuple[float, float, list[str]]:
    """After some steps of FSDP and of data parallel: largest difference of a gradient and of a weight, and the units."""
    rule = optimizer(**{"name": "adamw", "lr": 0.01, "weight_decay": 0.1, **options})
    model.train()
    twin = copy.deepcopy(model)
    cuts = [-(-part * len(batch) // shards) for part in range(shards + 1)]
    parts = {shard: batch[cuts[shard] : cuts[shard + 1]] for shard in shards_of(world.rank, world.size, shards)}
    names = {id(module): name for name, module in model.named_modules()}
    ordered = Ordered(twin, Weights(twin, rule), world, shards)
    sharded = Sharded(model, rule, objective, world, shards, batch[:2])
    worst = [0.0, 0.0]
    for step in range(steps):

        def seed(shard: int, step: int = step) -> None:
            torch.manual_seed(10 * step + shard)

        losses = [strategy.gradient(objective, parts, seed) for strategy in (ordered, sharded)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)
        norms = [strategy.weights.norm() for strategy in (ordered, sharded)]
        scale = max(float(norms[0]), 1.0)
        assert abs(float(norms[0]) - float(norms[1])) < 1e-5 * scale
        for slot in ordered.weights.flat.slots:
            mine = dict(model.named_parameters())[slot.name].grad
            assert mine is not None, slot.name
            mine = mine.full_tensor() if hasattr(mine, "full_tensor") else mine
            worst[0] = max(worst[0], float((mine - slot.parameter.grad).abs().max()) / scale)  # type: ignore[operator]
        for strategy, norm in zip((ordered, sharded), norms, strict=True):
            strategy.weights.clip(norm, 0.5)
            strategy.weights.update(1.0)
    whole, other = sharded.weights.tensors()["model"], ordered.weights.tensors()["model"]
    assert whole.keys() == (other.keys() if world.is_main else set())
    worst[1] = max((float((whole[name].double() - other[name].double()).abs().max()) for name in whole), default=0.0)
    return worst[0], worst[1], [names[id(part)] for part in sharded.parts[:-1]]


def on_two(check: Callable[[World], None]) -> None:
    """Run a check on two processes; its failed assertions are raised here."""
    launch(check, 2, restarts=0)


def test_every_model_and_objective_has_the_gradient_of_data_parallel(monkeypatch):
    """With every part that can be a unit made one, however small."""
    monkeypatch.setattr(units, "LEAST", 1)

    def check(world: World) -> None:
        count = 0
        for name, model, objective, batch in tiny_cases():
            gradient, weight, chosen = largest_differences(world, model, objective, batch, steps=1)
            print(name, gradient, weight, chosen, flush=True)
            assert gradient < 2e-6, f"{name}: gradients differ by {gradient}, units {chosen}"
            count += 1
        assert count > 30

    on_two(check)
