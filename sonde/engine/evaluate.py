"""Metrics on held-out data: every batch gives sums and counts, added in batch order, whichever process computed them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import nn

from ..core.batch import Batch, Source, call_model
from ..core.terms import Term, Terms

MEASURE = "measure:"


@torch.no_grad()
def evaluate(model: nn.Module, objective: Any, source: Source, batch_size: int, prepare: Any, world: Any) -> dict[str, float]:
    """Name -> mean over the source: `loss`, its terms where there are several, and each measure of the objective.

    prepare(batch) moves a batch to the model's device and layout.  The model is left in the mode it was in.
    """
    training = model.training
    model.eval()
    try:
        rows: list[Terms] = []
        starts = range(0, len(source), batch_size)
        with record_outputs(model) as outputs:
            for index in range(world.rank, len(starts), world.size):
                world.beat(world.step, "evaluate")
                examples = prepare(source[torch.arange(starts[index], min(starts[index] + batch_size, len(source)))])
                rows.append(sums(model, objective, examples, outputs))
    finally:
        model.train(training)
    return mean_metrics(_gather(rows, len(starts), world))


@torch.no_grad()
def evaluate_shards(
    model: nn.Module, function: Any, shards: int, around: Callable[[int], AbstractContextManager], world: Any
) -> dict[str, float]:
    """Name of each term -> its mean over all shards.

    Args:
        function: (model, shard, shards) -> Terms.
        around: the context in which a shard is evaluated, with random numbers of its own.
    """
    training = model.training
    model.eval()
    try:
        rows = []
        for shard in range(world.rank, shards, world.size):
            world.beat(world.step, "evaluate")
            with around(shard):
                rows.append(function(model, shard, shards))
    finally:
        model.train(training)
    return _gather(rows, shards, world).means()


@contextmanager
def record_outputs(model: nn.Module) -> Iterator[list[Any]]:
    """A list that collects the model's outputs inside the context."""
    outputs: list[Any] = []
    handle = model.register_forward_hook(lambda module, inputs, output: outputs.append(output))
    try:
        yield outputs
    finally:
        handle.remove()


def sums(model: Callable, objective: Any, batch: Batch, outputs: list[Any]) -> Terms:
    """The objective's terms and measures of one batch, under separate names; `outputs` are those of the observed model.

    Measures are of the output the objective saw.  One that asks for parts of the model alone, such as its code, saw none: the
    model is then asked once more.
    """
    outputs.clear()
    terms = objective(model, batch)
    if not hasattr(objective, "measures"):
        return terms
    measures = objective.measures(outputs[-1] if outputs else call_model(model, batch), batch)
    return terms + Terms(**{f"{MEASURE}{name}": term for name, term in measures.items()})


def mean_metrics(total: Terms) -> dict[str, float]:
    """The metrics of all sums together."""
    losses = Terms(**{name: term for name, term in total.items() if not name.startswith(MEASURE)})
    means = total.means() if len(losses) > 1 else {name: value for name, value in total.means().items() if name not in losses}
    return {"loss": float(losses.loss()), **{name.removeprefix(MEASURE): value for name, value in means.items()}}


def _gather(rows: list[Terms], batches: int, world: Any) -> Terms:
    """Sum of all batches' terms in batch order, in float64."""
    names = list(rows[0]) if rows else []
    if world.size > 1:  # rank 0 has the first batch, so it knows all names
        names = world.broadcast_bytes("\n".join(names).encode()).decode().split("\n")
    flat = [number for row in rows for name in names for number in (float(row[name].sum), float(row[name].count), row[name].weight)]
    width, per_rank = 3 * len(names), -(-batches // world.size)
    flat += [0.0] * (width * per_rank - len(flat))
    by_rank = world.gather_floats(flat) if world.size > 1 else [flat]
    total: dict[str, Term] = {}
    for index in range(batches):
        row = by_rank[index % world.size][(index // world.size) * width :]
        for position, name in enumerate(names):
            value, count, weight = row[3 * position : 3 * position + 3]
            before = total.get(name, Term(torch.zeros((), dtype=torch.float64), 0.0))
            total[name] = Term(before.sum + value, before.count + count, weight)
    return Terms(**total)
