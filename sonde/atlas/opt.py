"""Chapter 7, optimisers and convergence."""

from __future__ import annotations

from collections import Counter

import numpy as np
import torch
from torch import Tensor

from ..core.batch import Data
from ..core.reading import Reading
from ..core.recipe import Recipe
from ..core.seeds import generator
from ..data.order import Order
from ..data.tensors import TensorSource
from ..gradients import mean
from ..gradients.flat import Flat
from ..models.mlp import MLP
from ..objectives.gaussian import Gaussian
from ..optim.build import optimiser
from ._exhibit import Exhibit


def opt_05(exhibit: Exhibit) -> str:
    """Batch gradients around the full one: right on average, with a variance that falls as 1/B; the run log names the regime."""
    n, sizes = 512, (1, 2, 4, 8, 16, 32)
    x = torch.randn(n, 3, generator=generator(0, "x")).double()
    data = TensorSource(x, x.sin().sum(1, keepdim=True))
    full = _gradients(data, [torch.arange(n)])[0]
    spread: dict[int, float] = {}
    worst = 0.0
    for size in sizes:
        order = Order(n, size, seed=0)
        # As many epochs as B, so that every size is judged by 512 batches: they tell a variance to about 5 %.
        found = _gradients(data, [order.at(step) for step in range(size * order.steps_per_epoch)])
        average = found[: order.steps_per_epoch].mean(0)
        worst = max(worst, exhibit.expect(f"mean of the batch gradients of an epoch, B={size}", average, full, within=1e-12))
        spread[size] = float((found - full).square().sum(1).mean())
    for size in sizes[1:]:
        # Drawing without replacement leaves a factor (N-B)/(N-1), which is 1 for small B and 0 for the full batch.
        scaled = spread[size] * size / spread[1] * (n - 1) / (n - size)
        exhibit.expect(f"variance at B={size} over variance at B=1, times B", scaled, 1.0, within=0.1)
    logs = {size: _regime(exhibit, data, size) for size in (1, 32, n)}
    for size, word in ((1, "stochastic"), (32, "minibatch"), (n, "full batch")):
        exhibit.expect(f"the run log at B={size} says '{word}'", word in logs[size], True)
    slope = float(np.polyfit(np.log(sizes), np.log(list(spread.values())), 1)[0])
    exhibit.expect("slope of log variance against log B", slope, -1.0, within=0.05)
    lines = {"measured": list(spread.values()), "1/B": [spread[1] / size for size in sizes]}
    exhibit.show(Reading("Variance of the batch gradient", "lines", lines, axes=["B"], extra={"x": list(sizes), "log": ["x", "y"]}))
    exhibit.show(Reading("What the run log says", "table", {"B": list(logs), "regime": list(logs.values())}))
    return f"mean off by at most {worst:.1e}; variance ~ B^{slope:.2f}; the log says {'; '.join(logs.values())}"


def _gradients(data: TensorSource, batches: list[Tensor]) -> Tensor:
    """Mean gradient of each batch, as the engine computes it, at the same weights.  (batches, parameters)"""
    model = MLP((3, 4, 1), activation="tanh").double()
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter.normal_(generator=generator(0, "weights", number))
    flat = Flat(model)
    found = []
    for indices in batches:
        mean.whole(model, Gaussian(), flat, data[indices])
        found.append(flat.grad.clone())
    return torch.stack(found)


def _regime(exhibit: Exhibit, data: TensorSource, batch: int) -> str:
    sgd = optimiser("sgd", lr=0.01)
    recipe = Recipe(model=lambda: MLP((3, 4, 1)).double(), data=Data(data), objective=Gaussian(), optimiser=sgd, batch=batch, steps=1)
    run = exhibit.train(recipe, f"batch-{batch}")
    return next(event["regime"] for event in run.events if event["event"] == "start")


def opt_06(exhibit: Exhibit) -> str:
    """An epoch draws every example once; the last short batch is kept or dropped."""
    n, batch, epochs = 10, 4, 5
    kept, dropped, even = Order(n, batch, seed=3), Order(n, batch, seed=3, drop_last=True), Order(n, 5, seed=3)
    passes = [[kept.at(epoch * 3 + step) for step in range(3)] for epoch in range(epochs)]
    draws = torch.stack([torch.cat(steps).bincount(minlength=n) for steps in passes])
    exhibit.expect("draws of each index in each epoch", draws, torch.ones(epochs, n))
    exhibit.expect("batch sizes, last one kept", [len(indices) for indices in passes[0]], [4, 4, 2])
    short = [torch.cat([dropped.at(epoch * 2 + step) for step in range(2)]).tolist() for epoch in range(epochs)]
    exhibit.expect("batch sizes, last one dropped", [len(dropped.at(step)) for step in range(4)], [4, 4, 4, 4])
    exhibit.expect("most draws of an index in an epoch, last one dropped", max(max(Counter(one).values()) for one in short), 1)
    exhibit.expect("batch sizes where B divides N", [len(even.at(step)) for step in range(4)], [5, 5, 5, 5])
    orders = {tuple(torch.cat(steps).tolist()) for steps in passes}
    exhibit.expect("different orders in 5 epochs", len(orders), epochs)
    again = Order(n, batch, seed=3)
    backwards = [again.at(step) for step in reversed(range(epochs * 3))][::-1]
    exhibit.expect("batches asked for backwards, by a fresh order", torch.cat(backwards), torch.cat([torch.cat(steps) for steps in passes]))
    index, batches = [torch.cat(steps) for steps in passes], ", ".join(str(len(indices)) for indices in passes[0])
    exhibit.show(Reading("Order of the examples, epoch by epoch", "heat", {"index": index}, axes=["epoch", "draw"]))
    return f"{draws.min()} to {draws.max()} draws of each of {n} indices in an epoch; batches of {batches}"
