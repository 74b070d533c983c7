"""Chapter 7, optimizers and convergence."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ..api.sweeps import sweep
from ..core.batch import Batch, Data
from ..core.errors import NumericalStop
from ..core.reading import Heat, Lines, Reading, Table
from ..core.recipe import Recipe
from ..core.seeds import generator
from ..data.order import Order
from ..data.surfaces import GABOR_TRUTH, Surface, gabor, gabor_data, gabor_loss, gabor_model, quadratic, rosenbrock, saddle
from ..data.tensors import TensorSource
from ..gradients import mean
from ..gradients.flat import Flat
from ..lenses.race import trajectories
from ..models.mlp import MLP
from ..objectives.gaussian import Gaussian
from ..optim import schedules
from ..optim.build import optimizer
from ..optim.line_search import Descent
from ..optim.newton import Newton
from ..optim.race import EVERYONE, Track, columns, entrant, follow, race
from .exhibit import Exhibit, spread


def opt_01(exhibit: Exhibit) -> str:
    """Gradient descent converges exactly where the rate lies below 2 / lambda_max."""
    a = _definite(exhibit, 5, 30.0)
    limit = 2 / float(torch.linalg.eigvalsh(a)[-1])
    start = _corner(a)
    fates = {}
    for fraction in (0.02, 0.5, 0.97, 0.99, 1.01, 1.03, 2.0):
        track = _descend(a, start, fraction * limit, 500)
        falls = track.losses[-1] < track.losses[-2] < track.losses[0]
        fates[fraction] = "converges" if falls else track.fate
    expected = ["converges" if fraction < 1 else "diverged" for fraction in fates]
    exhibit.expect("what happens at 0.02, 0.5, 0.97, 0.99, 1.01, 1.03 and 2 times 2 / lambda_max", list(fates.values()), expected)
    low, high = 0.0, 4 * limit  # search the rate at which the last loss is above the first
    for _ in range(14):
        middle = (low + high) / 2
        losses = _descend(a, start, middle, 250).losses
        low, high = (low, middle) if losses[-1] > losses[0] else (middle, high)
    exhibit.expect("rate at which descent turns into ascent, over 2 / lambda_max", low / limit, 1.0, within=5e-3)  # 250 steps tell no finer
    first = _descend(a, start, 0.5 * limit, 1).path[1]
    exhibit.expect("one step is theta - eta A theta", first, start - 0.5 * limit * a @ start, within=1e-14)

    fractions = {"too small": 0.01, "good": 0.5, "too large": 1.05}
    curves = {word: _descend(a, start, fraction * limit, 60).losses for word, fraction in fractions.items()}
    slow, good, wild = (line[-1] / line[0] for line in curves.values())
    exhibit.above("share of the loss left after 60 steps, rate too small, over that of a good rate", slow / good, 10)
    exhibit.above("share of the loss left after 60 steps, rate too large", wild, 10)
    note = "Rates over 2 / lambda_max: " + ", ".join(f"{word} {fraction:g}" for word, fraction in fractions.items()) + "."
    exhibit.show(Lines("Three learning rates", curves, axes=["step", "loss"], note=note, log=["y"]))
    ground = quadratic(10.0)
    paths = {
        f"eta = {rate:g}": _descend(torch.diag(_vector(1.0, 10.0)), _vector(*ground.start), rate, 25).path for rate in (0.02, 0.1, 0.19)
    }
    exhibit.show(_plot_paths("Below the limit 0.2, small steps crawl and large ones zigzag", ground, paths))
    return f"descent turns into ascent at {low / limit:.4f} * 2 / lambda_max"


def opt_02(exhibit: Exhibit) -> str:
    """The best rate along the gradient, found numerically, is g.g / g.A g; the next gradient is then orthogonal."""
    worst = turn = 0.0
    rates: list[float] = []
    for n, condition in ((2, 10.0), (3, 4.0), (6, 200.0)):
        a = _definite(exhibit, n, condition)
        theta = torch.linspace(-1, 2, n, dtype=torch.float64).requires_grad_()
        search = Descent([theta], search="exact")
        step_sizes, formula, gradients = [], [], []
        for _ in range(8):
            g = (a @ theta).detach()
            gradients.append(g)
            formula.append(float(g @ g / (g @ a @ g)))
            search.step(_closure(theta, _form(a)))
            step_sizes.append(search.rate)
        worst = max(worst, exhibit.expect(f"searched rates of 8 steps, {n} weights, k={condition:g}", step_sizes, formula, within=1e-8))
        cosines = torch.stack([g @ h / (g.norm() * h.norm()) for g, h in zip(gradients, gradients[1:], strict=False)])
        turn = max(turn, exhibit.expect(f"cosine of successive gradients, {n} weights", cosines, torch.zeros(7), within=1e-8))
        rates = step_sizes
    exhibit.above("different rates in 8 steps: a line search gives a new one every time", len({round(rate, 9) for rate in rates}), 7)
    ground = rosenbrock()
    numbers = {"step": list(range(1, 9)), "rate": rates}
    exhibit.show(Table("A new rate at every step", numbers, note="Six weights, condition number 200."))
    paths = {}
    for name in ("exact", "armijo", "wolfe"):
        track = _descend_path(ground.loss, _vector(*ground.start), partial(Descent, search=name), 60)
        exhibit.expect(f"steps of 60 on which {name} raised the loss", _rises(track), 0)
        paths[name] = track.path
    exhibit.show(_plot_paths("60 steps with three line searches", ground, paths))
    return f"rates off by at most {worst:.1e}, successive gradients orthogonal to {turn:.1e}"


def opt_03(exhibit: Exhibit) -> str:
    """With exact line search the loss contracts by at most ((k-1)/(k+1))^2 per step, and by just that from the worst start."""
    a, start = torch.diag(_vector(1.0, 10.0)), _vector(10.0, 1.0)
    ratios = _contractions(a, start, 12)
    exhibit.expect("ratio at each of 12 steps, diag(1, 10) from (10, 1)", ratios, [0.669421] * 12, within=5e-7)  # six printed digits
    worst: dict[float, float] = {}
    highest: dict[float, float] = {}
    for condition in (2.0, 10.0, 100.0):
        bound = ((condition - 1) / (condition + 1)) ** 2
        draw = exhibit.generator("starts", int(condition))
        contractions = [
            ratio
            for n in (2, 3, 5)
            for _ in range(8)
            for ratio in _contractions(_definite(exhibit, n, condition), torch.randn(n, generator=draw).double(), 4)
        ]
        highest[condition] = max(contractions)
        beyond = sum(ratio > bound * (1 + 1e-9) for ratio in contractions)
        exhibit.expect(f"of {len(contractions)} ratios from random starts, k={condition:g}, beyond the bound", beyond, 0)
        hard = _contractions(torch.diag(_vector(1.0, condition)), _vector(condition, 1.0), 4)
        worst[condition] = hard[-1]
        exhibit.expect(f"ratio from the worst start, k={condition:g}", hard, [bound] * 4, within=1e-9)
    table = {
        "k": list(worst),
        "((k-1)/(k+1))^2": [((k - 1) / (k + 1)) ** 2 for k in worst],
        "worst start": list(worst.values()),
        "highest of random starts": list(highest.values()),
    }
    exhibit.show(Table("Contraction of the loss per step", table))
    ground = quadratic(10.0)
    track = _descend_path(ground.loss, start, partial(Descent, search="exact"), 15)
    exhibit.show(_plot_paths("Exact line search from the worst start", ground, {"descent": track.path}))
    closest = max(highest[k] / ((k - 1) / (k + 1)) ** 2 for k in highest)
    return f"ratio {ratios[0]:.6f} at every step; from random starts at most {closest:.4f} of the bound"


def opt_04(exhibit: Exhibit) -> str:
    """Steps grow with the condition number, and near a minimum the rate is set by that of the local Hessian."""
    counts = {}
    for condition in (2.0, 5.0, 20.0, 100.0):
        a = torch.diag(_vector(1.0, condition))
        track = _descend(a, _vector(1.0, 1.0), 2 / (1 + condition), 4000, target=1e-6 * 0.5 * (1 + condition))
        mu = ((condition - 1) / (condition + 1)) ** 2
        counts[condition] = track.steps
        exhibit.expect(f"steps to 1e-6 of the loss, k={condition:g}", track.steps, math.ceil(math.log(1e-6) / math.log(mu) - 1e-9))
    exhibit.expect("steps grow with k", sorted(counts.values()), list(counts.values()))

    x = torch.randn(40, 2, generator=exhibit.generator("logistic")).double() * torch.tensor([1.0, 2.0]) + torch.tensor([0.5, -0.3])
    label = (x @ _vector(1.0, -1.0) + torch.randn(40, generator=generator(exhibit.seed + 1, "logistic")) > 0).double()

    def loss(theta: Tensor) -> Tensor:
        return torch.nn.functional.softplus(-(2 * label - 1) * (theta @ x.T)).mean(-1) + 0.02 * theta.square().sum(-1)

    theta = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    for _ in range(12):
        Newton([theta]).step(lambda: loss(theta))
    best = theta.detach().clone()
    curvatures = torch.linalg.eigvalsh(torch.func.hessian(loss)(best))
    low, high = curvatures.tolist()
    mu = ((high - low) / (high + low)) ** 2
    track = _descend_path(loss, _vector(3.0, 2.0), partial(_sgd, rate=2 / (low + high)), 60)
    above = [value - float(loss(best)) for value in track.losses]
    tail = [b / a for a, b in zip(above, above[1:], strict=False) if a > 1e-12][-5:]  # the last that rounding leaves alone
    measured = math.exp(sum(map(math.log, tail)) / len(tail))
    # the row's 5 %
    exhibit.expect("logistic loss: contraction near its minimum over mu of the local Hessian", measured / mu, 1.0, within=0.05)
    for name, condition in (("round", 2.0), ("narrow", 50.0)):
        ground = quadratic(condition)
        path = _descend(torch.diag(_vector(1.0, condition)), _vector(*ground.start), 2 / (1 + condition), 20).path
        exhibit.show(_plot_paths(f"A {name} bowl, condition number {condition:g}: 20 steps", ground, {"descent": path}))
    exhibit.show(Table("Steps to a millionth of the loss", {"k": list(counts), "steps": list(counts.values())}))
    return f"{', '.join(f'{steps} steps at k={k:g}' for k, steps in counts.items())}; near a minimum {measured:.4f} for mu {mu:.4f}"


def opt_05(exhibit: Exhibit) -> str:
    """Batch gradients around the full one: right on average, with a variance that falls as 1/B; the run log names the regime."""
    n, sizes = 512, (1, 2, 4, 8, 16, 32)
    x = torch.randn(n, 3, generator=exhibit.generator("x")).double()
    data = TensorSource(x, x.sin().sum(1, keepdim=True))
    full = _gradients(exhibit, data, [torch.arange(n)])[0]
    variances: dict[int, float] = {}
    worst = 0.0
    for size in sizes:
        order = Order(n, size, seed=exhibit.seed)
        # As many epochs as B, so that every size is measured with 512 batches: they estimate a variance to about 3 %.
        gradients = _gradients(exhibit, data, [order.at(step) for step in range(size * order.steps_per_epoch)])
        average = gradients[: order.steps_per_epoch].mean(0)
        worst = max(worst, exhibit.expect(f"mean of the batch gradients of an epoch, B={size}", average, full, within=1e-12))
        variances[size] = float((gradients - full).square().sum(1).mean())
    # Drawing without replacement leaves a factor (N-B)/(N-1), which is 1 for small B and 0 for the full batch.
    scaled = {size: variances[size] * (n - 1) / (n - size) for size in sizes}
    for size in sizes[1:]:
        exhibit.expect(f"variance at B={size} over variance at B=1, times B", scaled[size] * size / scaled[1], 1.0, within=0.15)
    logs = {size: _regime(exhibit, data, size) for size in (1, 32, n)}
    for size, word in ((1, "stochastic"), (32, "minibatch"), (n, "full batch")):
        exhibit.expect(f"the run log at B={size} says '{word}'", word in logs[size], True)
    slope = float(np.polyfit(np.log(sizes), np.log(list(scaled.values())), 1)[0])
    exhibit.expect("slope of log variance against log B", slope, -1.0, within=0.05)
    lines = {"measured": list(variances.values()), "1/B": [variances[1] / size for size in sizes]}
    exhibit.show(Lines("Variance of the batch gradient", lines, axes=["B"], x=list(sizes), log=["x", "y"]))
    exhibit.show(Table("What the run log says", {"B": list(logs), "regime": list(logs.values())}))
    return f"mean off by at most {worst:.1e}; variance ~ B^{slope:.2f}; the log says {'; '.join(logs.values())}"


def _gradients(exhibit: Exhibit, data: TensorSource, batches: list[Tensor]) -> Tensor:
    """Mean gradient of each batch, as the engine computes it, at the same weights.  (batches, parameters)"""
    model = MLP((3, 4, 1), activation="tanh").double()
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter.normal_(generator=exhibit.generator("weights", number))
    flat = Flat(model)
    gradients = []
    for indices in batches:
        mean.full_batch(model, Gaussian(), flat, data[indices])
        gradients.append(flat.grad.clone())
    return torch.stack(gradients)


def _regime(exhibit: Exhibit, data: TensorSource, batch_size: int) -> str:
    sgd = optimizer("sgd", lr=0.01)
    recipe = Recipe(
        model=lambda: MLP((3, 4, 1)).double(), data=Data(data), objective=Gaussian(), optimizer=sgd, batch_size=batch_size, steps=1
    )
    run = exhibit.train(recipe, f"batch-{batch_size}", seed=exhibit.seed)
    return next(event["regime"] for event in run.events if event["event"] == "start")


def opt_06(exhibit: Exhibit) -> str:
    """An epoch draws every example once; the last short batch is kept or dropped."""
    n, batch, epochs = 10, 4, 5
    seed = exhibit.seed + 3
    kept, dropped, even = Order(n, batch, seed=seed), Order(n, batch, seed=seed, drop_last=True), Order(n, 5, seed=seed)
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
    again = Order(n, batch, seed=seed)
    backwards = [again.at(step) for step in reversed(range(epochs * 3))][::-1]
    exhibit.expect("batches asked for backwards, by a fresh order", torch.cat(backwards), torch.cat([torch.cat(steps) for steps in passes]))
    index, batches = [torch.cat(steps) for steps in passes], ", ".join(str(len(indices)) for indices in passes[0])
    exhibit.show(Heat("Order of the examples, epoch by epoch", {"index": index}, axes=["epoch", "draw"]))
    return f"{draws.min()} to {draws.max()} draws of each of {n} indices in an epoch; batches of {batches}"


def opt_07(exhibit: Exhibit) -> str:
    """On the loss of the Gabor model, with its many minima, noisy steps find the best basin more often than exact ones.

    One data set shows anything, with a gain or without: it is counted over two hundred of them.
    """
    one, two = _vector(0.3, 2.0), _vector(-0.7, 5.0)
    near = torch.linspace(-1, 1, 41).double()[:, None]
    kinds: tuple[Literal["notes", "textbook"], ...] = ("notes", "textbook")
    for kind in kinds:
        gap = gabor_model(one + two, near, kind) - gabor_model(one, near, kind) - gabor_model(two, near, kind)
        exhibit.above(f"superposition fails in the weights, {kind} form: largest gap", gap.abs().max(), 0.05)
    at = torch.tensor([[2.0]]).double()
    worked = math.sin(0.3 + 2 * 2) * math.exp(-((2 * 2) ** 2)), math.sin(0.54) * math.exp(-(0.54**2) / 32)
    for kind, value in zip(kinds, worked, strict=True):
        exhibit.expect(f"value at weights (0.3, 2) and x = 2, {kind} form", float(gabor_model(one, at, kind)), value, within=1e-12)

    sets, starts_each = 200, 20
    data = [gabor_data(seed=seed) for seed in range(sets * exhibit.seed, sets * (exhibit.seed + 1))]
    x, y = torch.stack([x for x, _ in data]), torch.stack([y for _, y in data])
    batches = exhibit.generator("batches")
    best = 1.15 * _gabor_walk(x, y, GABOR_TRUTH.expand(sets, 1, 2), None, batches)[1]
    draw = exhibit.generator("starts")
    starts = _vector(20.0, 20.0) * torch.rand(sets, starts_each, 2, generator=draw).double() + _vector(-10.0, 2.5)
    paths, arrived = {}, {}
    for name, batch in (("full batch", None), ("batches of 8", 8)):
        paths[name], losses = _gabor_walk(x, y, starts, batch, batches)
        arrived[name] = losses < best
    counts = {name: int(there.sum()) for name, there in arrived.items()}
    exhibit.exceeds(
        f"starts of {arrived['full batch'].numel():,} that reach the best basin: batches of 8, less the full batch",
        counts["batches of 8"],
        counts["full batch"],
    )
    ends = [len({tuple(point) for point in points}) for points in paths["full batch"][-1].round().int().tolist()]
    exhibit.above(f"different ends of {starts_each} starts, to whole numbers: minima and plateaus, mean over data sets", np.mean(ends), 10)
    pick = int((arrived["batches of 8"] & ~arrived["full batch"]).flatten().int().argmax())
    ground = replace(gabor(), loss=lambda weights: gabor_loss(weights, *data[pick // starts_each]))
    selected = {name: path.flatten(1, 2)[:, pick] for name, path in paths.items()}
    exhibit.show(_plot_paths("From one start: the full batch stays in the nearest minimum", ground, selected))
    fractions = [f"{count} with {name}" for name, count in counts.items()]
    return f"{sets} data sets, {starts_each} starts each: the best basin is reached from {', '.join(fractions)}"


def _gabor_walk(x: Tensor, y: Tensor, starts: Tensor, batch_size: int | None, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Paths (steps + 1, D, S, 2) of S starts on each of D data sets, each with its own batches, and their last losses (D, S).

    The rate falls to 0.
    """
    steps, rate = 200, 4.0
    theta = starts.clone().requires_grad_()
    descent = _sgd([theta], rate)
    errors = torch.func.vmap(lambda w, x, y: (gabor_model(w, x) - y).square())
    path = [starts]
    for step in range(steps):
        squares = errors(theta, x, y)
        if batch_size is not None:
            chosen = torch.rand(squares.shape, generator=rng).argsort(-1) < batch_size
            squares = squares * chosen * (y.shape[1] / batch_size)
        theta.grad = torch.autograd.grad(squares.mean(-1).sum(), theta)[0]
        descent.param_groups[0]["lr"] = rate * (1 - step / steps)
        descent.step()
        path.append(theta.detach().clone())
    return torch.stack(path), torch.func.vmap(gabor_loss)(path[-1], x, y)


def opt_08(exhibit: Exhibit) -> str:
    """With noisy gradients a constant rate hovers at a floor; a falling one goes below it."""
    seeds, steps, rate, noise = 4000, 400, 0.5, 1.0
    factors = {
        "constant": schedules.constant(),
        "1/t": schedules.inverse_time(half=2.0),
        "step decay": schedules.step_decay(every=80, factor=0.4),
    }
    curves = {name: _noisy_bowl(exhibit, factor, seeds, steps, rate, noise) for name, factor in factors.items()}
    level = {name: float(losses[-50:].mean()) for name, losses in curves.items()}
    # Half the variance of  w <- (1 - eta) w - eta xi  in its steady state.
    exhibit.expect("floor of a constant rate: eta s^2 / (2 (2 - eta))", level["constant"], rate * noise**2 / (2 * (2 - rate)), within=0.005)
    halves = [float(curves["constant"][start : start + 100].mean()) for start in (200, 300)]
    exhibit.expect("it hovers: mean loss of steps 300-400 over that of 200-300", halves[1] / halves[0], 1.0, within=0.03)  # 4000 seeds
    for name, least in (("1/t", 100), ("step decay", 30)):
        exhibit.above(f"floor of the constant rate over the last loss with {name}", level["constant"] / float(curves[name][-1]), least)
    # At eta_t = 1/(t+1) on curvature 1 the weight is minus the mean of all noise so far: E loss = s^2 / (2 T).
    mean = _noisy_bowl(exhibit, schedules.inverse_time(half=1.0), seeds, steps, 1.0, noise)
    last = float(mean[-1]) * 2 * steps / noise**2
    exhibit.expect("1/t from rate 1: loss times 2 T / s^2 after 400 steps", last, 1.0, within=5 * math.sqrt(2 / seeds))  # standard errors
    shown = [0, 1, 2, 10, 79, 80, 200, 399]
    exhibit.show(Lines("Loss on a noisy bowl, mean over 4000 seeds", curves, axes=["step", "loss"], log=["y"]))
    table = {"step": shown, **{name: [rate * factor(step, steps) for step in shown] for name, factor in factors.items()}}
    exhibit.show(Table("Learning rate", table))
    ends = ", ".join(f"{float(curves[name][-1]):.4f} with {name}" for name in ("1/t", "step decay"))
    return f"a constant rate hovers at {level['constant']:.4f}; {ends}"


def _noisy_bowl(exhibit: Exhibit, factor: schedules.Schedule, seeds: int, steps: int, rate: float, noise: float) -> Tensor:
    """Mean loss w^2/2 after each step over many seeds side by side."""
    rng = exhibit.generator("noise")
    w = torch.full((seeds,), 3.0, dtype=torch.float64)
    descent = _sgd([w.requires_grad_()], rate)
    losses = []
    for step in range(steps):
        w.grad = w.detach() + noise * torch.randn(seeds, generator=rng, dtype=torch.float64)
        descent.param_groups[0]["lr"] = rate * factor(step, steps)
        descent.step()
        losses.append(0.5 * w.detach().square().mean())
    return torch.stack(losses)


def opt_09(exhibit: Exhibit) -> str:
    """Momentum adds up the gradients with weights beta^tau; it needs about the square root of the steps."""
    beta, g = 0.8, _vector(1.0, -2.0, 0.5)
    w = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    optimizer = _sgd([w], 0.1, momentum=beta)
    sums = []
    for _ in range(20):
        w.grad = g.clone()
        optimizer.step()
        sums.append(optimizer.state[w]["momentum_buffer"].clone())
    formula = torch.stack([g * (1 - beta**t) / (1 - beta) for t in range(1, 21)])
    exhibit.expect("constant g: m_t = g (1 - beta^t)/(1 - beta)", torch.stack(sums), formula, within=1e-12)

    plain, slope = _walk("sgd", 0.02, momentum=0.0), _slope
    theirs = {"momentum": _walk("sgd", 0.02, momentum=0.9), "nesterov": _walk("sgd", 0.02, momentum=0.9, nesterov=True)}
    theta, m, path, slopes = START.clone(), torch.zeros_like(START), [START], []
    ahead, n = START.clone(), torch.zeros_like(START)
    jumps = [START]
    for step in range(100):
        slopes.append(slope(theta, step))
        m = 0.9 * m + slopes[-1]
        theta = theta - 0.02 * m
        path.append(theta)
        g = slope(ahead, step)
        n = 0.9 * n + g
        ahead = ahead - 0.02 * (g + 0.9 * n)
        jumps.append(ahead)
    worst = exhibit.expect("100 steps of momentum against the framework", theirs["momentum"], torch.stack(path), within=1e-12)
    exhibit.expect("100 steps of Nesterov against the framework", theirs["nesterov"], torch.stack(jumps), within=1e-12)
    unrolled = sum(0.9**tau * slopes[99 - tau] for tau in range(100))
    exhibit.expect("m_100 as a sum of beta^tau g_(99 - tau)", m, unrolled, within=1e-12)
    descent = [START]
    for step in range(100):
        descent.append(descent[-1] - 0.02 * slope(descent[-1], step))
    exhibit.expect("beta = 0 is gradient descent", plain, torch.stack(descent), within=1e-12)
    exhibit.above("beta > 0 is not: largest difference of the paths", (theirs["momentum"] - plain).abs().max(), 0.1)
    average, rescaled = _walk("sgd", 0.02, momentum=0.9, ema=True), _walk("sgd", 0.02 * (1 - 0.9), momentum=0.9)
    exhibit.expect("ema=True is the sum at a rate (1 - beta) times as large", average, rescaled, within=1e-12)
    exhibit.above("ema=True at the same rate is another path", (average - theirs["momentum"]).abs().max(), 0.1)

    ground, k = quadratic(100.0), 100.0
    root = math.sqrt(k)
    settings: dict[str, dict[str, Any]] = {
        "descent": {"rate": 2 / (1 + k)},
        "momentum": {"rate": 4 / (1 + root) ** 2, "momentum": ((root - 1) / (root + 1)) ** 2},
        "nesterov": {"rate": 1 / k, "momentum": (root - 1) / (root + 1), "nesterov": True},
    }
    steps, paths = {}, {}
    for name, options in settings.items():
        track = _descend_path(ground.loss, _vector(1.0, 1.0), partial(_sgd, **options), 3000, target=1e-6)
        steps[name], paths[name] = track.steps or 10**9, track.path[:40]
    for name in ("momentum", "nesterov"):
        exhibit.below(f"steps to 1e-6 at k=100, {name} over descent", steps[name] / steps["descent"], 0.4)
    close = replace(ground, start=(1.0, 1.0), box=(-0.6, 1.2, -2.0, 2.0))
    exhibit.show(_plot_paths("Condition number 100, the first 40 steps of each", close, paths))
    exhibit.show(Table("Steps to 1e-6", {"rule": list(steps), "steps": list(steps.values())}))
    summary = ", ".join(f"{name} {count}" for name, count in steps.items())
    return f"paths equal to {worst:.1e} over 100 steps; steps at k=100: {summary}"


def opt_10(exhibit: Exhibit) -> str:
    """One Newton step solves any positive definite quadratic; an indefinite Hessian is refused or damped."""
    worst, wrong = 0.0, []
    for n, condition in ((2, 3.0), (3, 50.0), (5, 1e3), (8, 1e5)):
        a, b = _definite(exhibit, n, condition), torch.linspace(1, 2, n).double()
        solution = torch.linalg.solve(a, b)
        start = solution + _corner(a)
        theta = _descend_path(_form(a, b), start, Newton, 1).path[1]
        rounding = 200 * torch.finfo(torch.float64).eps * condition
        worst = max(worst, exhibit.expect(f"one step, {n} weights, k={condition:g}", theta, solution, within=rounding))
        printed = start - a @ (a @ start - b)  # -H g, an erratum of the notes
        wrong.append(float((printed - solution).norm()))
    exhibit.above("smallest distance that the direction -H g leaves", min(wrong), 1.0)

    ground = saddle()
    beside = _vector(*ground.start)
    theta = beside.clone().requires_grad_()
    exhibit.refuses("a step where the Hessian is indefinite", lambda: Newton([theta]).step(lambda: ground.loss(theta)), NumericalStop)
    undamped = beside - torch.linalg.solve(torch.func.hessian(ground.loss)(beside), torch.func.grad(ground.loss)(beside))
    exhibit.below("where the undamped step would go: distance to the saddle", undamped.norm(), 1e-2)
    track = _descend_path(ground.loss, beside, partial(Newton, indefinite="damp"), 40, target=-0.25 + 1e-12)
    exhibit.expect("damped, from the same start: what became of it", track.fate, "reached")
    exhibit.expect("loss at its end", track.losses[-1], -0.25, within=1e-11)
    exhibit.expect("steps that raised the loss", _rises(track), 0)
    slow = _descend_path(ground.loss, beside, partial(_sgd, rate=0.1), 200, target=-0.25 + 1e-9)
    exhibit.show(_plot_paths("Away from a saddle", ground, {"Newton, damped": track.path, "gradient descent": slow.path}))
    bent = rosenbrock()
    valley = _descend_path(bent.loss, _vector(*bent.start), partial(Newton, indefinite="damp"), 60, target=1e-12)
    exhibit.below("steps of damped Newton on Rosenbrock's valley to 1e-12", valley.steps or 10**9, 40)
    exhibit.show(_plot_paths("Damped Newton in Rosenbrock's valley", bent, {"Newton, damped": valley.path}))
    return f"one step ends {worst:.1e} from the solution; damped, {track.steps} steps from beside a saddle to the minimum"


def opt_11(exhibit: Exhibit) -> str:
    """A step M^-1 g is gradient descent for M = I and Newton's for M = H; AdaGrad, RMSProp and AdaDelta take a diagonal M."""
    a, b = _definite(exhibit, 4, 20.0), torch.linspace(-1, 1, 4).double()
    start = torch.linspace(2, 3, 4).double()
    g = a @ start - b
    one = _descend_path(_form(a, b), start, partial(_sgd, rate=0.1), 1).path[1]
    exhibit.expect("M = I is gradient descent", start - 0.1 * torch.linalg.solve(torch.eye(4).double(), g), one, within=1e-14)
    newton = _descend_path(_form(a, b), start, partial(Newton, lr=0.7), 1).path[1]
    exhibit.expect("M = H is Newton", start - 0.7 * torch.linalg.solve(a, g), newton, within=1e-12)

    w = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    adagrad = _build("adagrad", [w], 0.1)
    moves = []
    for _ in range(30):
        w.grad = torch.ones(1).double()
        before = float(w.detach())
        adagrad.step()
        moves.append(before - float(w.detach()))
    exhibit.expect("constant g = 1: AdaGrad's step t is eta / sqrt(t)", moves, [0.1 / math.sqrt(t) for t in range(1, 31)], within=1e-9)

    gaps = {}
    for name, rule, rate, options in (
        ("adagrad", _adagrad, 0.1, {"eps": 1e-10}),
        ("rmsprop", _rmsprop, 0.01, {"alpha": 0.99, "eps": 1e-8}),
        ("adadelta", _adadelta, 1.0, {"rho": 0.9, "eps": 1e-6}),
    ):
        state: dict[str, Tensor] = {}
        path = [START]
        for step in range(100):
            path.append(path[-1] - rate * rule(_slope(path[-1], step), state))
        gaps[name] = exhibit.expect(
            f"100 steps of {name} against the framework", _walk(name, rate, **options), torch.stack(path), within=1e-6
        )
        exhibit.above(f"way of {name} in 100 steps", (path[-1] - START).abs().max(), 0.05)
    ground, paths = quadratic(10.0), {}
    for name, rate in (("sgd", 0.1), ("adagrad", 3.0), ("rmsprop", 0.3), ("adadelta", 30.0)):
        paths[name] = _descend_path(ground.loss, _vector(*ground.start), partial(_build, name, rate=rate), 40).path
    exhibit.show(_plot_paths("40 steps with four diagonal preconditioners", ground, paths))
    exhibit.show(Lines("AdaGrad under a constant gradient", {"step": moves}, axes=["t", "size"], x=list(range(1, 31))))
    return "largest difference over 100 steps: " + ", ".join(f"{name} {gap:.1e}" for name, gap in gaps.items())


def _adagrad(g: Tensor, state: dict[str, Tensor]) -> Tensor:
    """s = sum of g^2;  g / (sqrt(s) + e)"""
    state["s"] = state.get("s", torch.zeros_like(g)) + g * g
    return g / (state["s"].sqrt() + 1e-10)


def _rmsprop(g: Tensor, state: dict[str, Tensor]) -> Tensor:
    """s = rolling mean of g^2;  g / (sqrt(s) + e)"""
    state["s"] = 0.99 * state.get("s", torch.zeros_like(g)) + 0.01 * g * g
    return g / (state["s"].sqrt() + 1e-8)


def _adadelta(g: Tensor, state: dict[str, Tensor]) -> Tensor:
    """RMS(dx) / RMS(g) g, both rolling"""
    state["s"] = 0.9 * state.get("s", torch.zeros_like(g)) + 0.1 * g * g
    move = ((state.get("d", torch.zeros_like(g)) + 1e-6) / (state["s"] + 1e-6)).sqrt() * g
    state["d"] = 0.9 * state.get("d", torch.zeros_like(g)) + 0.1 * move * move
    return move


def opt_12(exhibit: Exhibit) -> str:
    """Adam's first step has size alpha; without bias correction it is sqrt(10) alpha."""
    alpha, b1, b2 = 1e-2, 0.9, 0.999
    first = (_walk("adam", alpha)[1] - START).abs()
    raw = (_walk("adam", alpha, bias_correction=False)[1] - START).abs()
    exhibit.expect("first step over alpha, every weight", first / alpha, torch.ones(len(START)), within=1e-6)  # eps / |g|
    exhibit.expect("the same without bias correction", raw / alpha, torch.full((len(START),), 3.1623), within=5e-5)  # four printed decimals
    paths: dict[str, list[Tensor]] = {"adam": [START], "raw": [START], "printed": [START]}
    for name, path in paths.items():
        v, s = torch.zeros_like(START), torch.zeros_like(START)
        for t in range(1, 101):
            g = _slope(path[-1], t - 1)
            v, s = b1 * v + (1 - b1) * g, b2 * s + (1 - b2) * g * g
            if name == "adam":
                move = (v / (1 - b1**t)) / ((s / (1 - b2**t)).sqrt() + 1e-8)
            else:  # the erratum's form multiplies by the gradient once more
                move = v / (s.sqrt() + 1e-8) * (g if name == "printed" else 1.0)
            path.append(path[-1] - alpha * move)
    theirs, uncorrected = _walk("adam", alpha), _walk("adam", alpha, bias_correction=False)
    worst = exhibit.expect("100 steps against the framework", theirs, torch.stack(paths["adam"]), within=1e-10)
    exhibit.expect("100 steps without bias correction, library against formula", uncorrected, torch.stack(paths["raw"]), within=1e-10)
    exhibit.above(
        "distance of the printed form, with a further factor g, after 100 steps", (theirs[-1] - paths["printed"][-1]).abs().max(), 1e-2
    )
    sizes = {
        name: [float(step.abs().mean()) / alpha for step in path.diff(dim=0)[:60]]
        for name, path in (("corrected", theirs), ("not corrected", uncorrected))
    }
    exhibit.show(Lines("Mean size of a step over alpha", sizes, axes=["step", "size"], x=list(range(1, 61))))
    summary = f"first step {float(first.mean()) / alpha:.6f} alpha, uncorrected {float(raw.mean()) / alpha:.4f} alpha"
    return f"{summary}; 100 steps equal to {worst:.1e}"


def opt_13(exhibit: Exhibit) -> str:
    """Lion moves every weight by exactly the rate, along the sign of an average of its gradients."""
    gradients = ([2.0, -1.0], [-0.1, 0.05], [-1.0, 0.2])
    traced = {
        # worked by hand with betas 0.9 and 0.99:  sign(0.9 m + 0.1 g) is (+,-), (+,-), (-,+)
        0.0: ([[0.9, -0.9], [0.8, -0.8], [0.9, -0.9]], [[0.02, -0.01], [0.0188, -0.0094], [0.008612, -0.007306]]),
        0.5: ([[0.85, -0.85], [0.7075, -0.7075], [0.772125, -0.772125]], [[0.02, -0.01], [0.0188, -0.0094], [0.008612, -0.007306]]),
    }
    rows = {}
    for decay, (points, momenta) in traced.items():
        w = _vector(1.0, -1.0).requires_grad_()
        lion = optimizer("lion", lr=0.1, weight_decay=decay).build([{"params": [w], "weight_decay": decay, "names": ["w"]}])
        seen, averages = [], []
        for g in gradients:
            w.grad = _vector(*g)
            lion.step()
            seen.append(w.detach().clone())
            averages.append(lion.state[w]["momentum"].clone())
        exhibit.expect(f"weights after 3 steps, traced by hand, decay {decay:g}", torch.stack(seen), points, within=1e-12)
        exhibit.expect(f"momenta after 3 steps, traced by hand, decay {decay:g}", torch.stack(averages), momenta, within=1e-12)
        rows[f"weights, decay {decay:g}"] = [f"{a:.6g}, {b:.6g}" for a, b in torch.stack(seen).tolist()]
    moves = _walk("lion", 0.003).diff(dim=0).abs()
    worst = exhibit.expect(
        "size of all moves of 100 steps over the rate, without decay", moves / 0.003, torch.ones_like(moves), within=1e-9
    )
    exhibit.show(Table("Three steps by hand", {"gradient": [f"{a:g}, {b:g}" for a, b in gradients], **rows}))
    ground, paths = quadratic(10.0), {}
    for name, rate in (("lion", 0.3), ("sgd", 0.1), ("adam", 0.3)):
        paths[name] = _descend_path(ground.loss, _vector(*ground.start), partial(_build, name, rate=rate), 45).path
    exhibit.show(_plot_paths("45 steps: every weight moves by the rate", ground, paths))
    return f"{moves.numel()} moves of exactly the rate, to {worst:.1e} of it; 3 steps as traced by hand"


def opt_14(exhibit: Exhibit) -> str:
    """Minima are rare among flat points; noise and momentum leave saddles; noisy steps end in the wide well."""
    probability = 0.5**20
    exhibit.expect("all of 20 directions concave up at p = 0.5", probability, 9.5e-7, within=5e-8)  # two printed digits
    trials, rng = 40_000, exhibit.generator("signs")
    ups = (torch.rand(trials, 4, generator=rng) < 0.5).all(1).double().mean()
    exhibit.expect("all of 4 directions, simulated, against p^4", ups, 0.5**4, within=0.006)  # five standard errors
    sizes = (1, 2, 3, 4, 5)
    fractions = []
    for n in sizes:
        square = torch.randn(trials, n, n, generator=exhibit.generator("hessians", n))
        fractions.append(float((torch.linalg.eigvalsh((square + square.mT) / 2)[:, 0] > 0).double().mean()))
    # exact for the Gaussian orthogonal ensemble
    for n, exact in ((1, 0.5), (2, (2 - math.sqrt(2)) / 4), (3, (math.pi - 2 * math.sqrt(2)) / (4 * math.pi))):
        exhibit.expect(f"share of positive definite random Hessians, N={n}", fractions[n - 1], exact, within=5 * math.sqrt(exact / trials))
    exhibit.exceeds("the share falls with N", min(a - b for a, b in zip(fractions, fractions[1:])), 0.0)
    exhibit.below("share at N=5", fractions[-1], 1e-3)

    rng = exhibit.generator("noise")

    def ridge(theta: Tensor, noise: float = 0.0) -> Tensor:
        return theta[..., 0].square() - theta[..., 1].square() + noise * theta @ torch.randn(2, generator=rng).double()

    tracks = {
        "on the ridge": _descend_path(ridge, _vector(1.0, 0.0), partial(_sgd, rate=0.05), 120, target=-1.0),
        "with noise": _descend_path(partial(ridge, noise=1e-3), _vector(1.0, 0.0), partial(_sgd, rate=0.05), 120, target=-1.0),
        "beside it": _descend_path(ridge, _vector(1.0, 1e-6), partial(_sgd, rate=0.05), 120, target=-1.0),
        "momentum": _descend_path(ridge, _vector(1.0, 1e-6), partial(_sgd, rate=0.05, momentum=0.9), 120, target=-1.0),
    }
    stuck = tracks["on the ridge"].path[-1]
    exhibit.below("gradient descent on the ridge: distance to the saddle after 120 steps", stuck.norm(), 1e-3)
    for name, fate in (("with noise", "reached"), ("beside it", "ran out"), ("momentum", "reached")):
        exhibit.expect(f"{name}: below -1 after 120 steps", tracks[name].fate, fate)
    # Both start 1e-6 beside the ridge: without momentum each step multiplies that by 1 + 2 * 0.05.
    exhibit.expect("beside it: distance from the ridge", float(tracks["beside it"].path[-1][1]), 1e-6 * 1.1**120, within=1e-8)
    view = Surface("x^2 - y^2", ridge, (1.0, 0.0), -1.0, (-1.2, 1.2, -1.2, 1.2))
    exhibit.show(_plot_paths("On the ridge of x^2 - y^2", view, {name: track.path for name, track in tracks.items()}))

    start = torch.linspace(-2.5, -0.5, 400).double()
    wide = [float((_two_wells(start, seed) > 0).double().mean()) for seed in exhibit.seeds()]
    plain = float((_two_wells(start, None) > 0).double().mean())
    exhibit.above("share of 400 starts that batches of one end in the wide well", wide, 0.5)
    exhibit.below("share with the full batch", plain, 0.1)
    point = torch.linspace(-2.5, 3.5, 241).double()
    exhibit.show(Lines("A sharp well and a wide one", {"loss": _wells(point)}, axes=["weight", "loss"], x=point))
    exhibit.show(
        Lines(
            "Random Hessians that are positive definite",
            {"share": fractions, "2^-N": [0.5**n for n in sizes]},
            axes=["N", "share"],
            x=list(sizes),
            log=["y"],
        )
    )
    noisy = f"{spread(wide, '.1%')} with batches of one"
    return f"2^-20 = {probability:.2e}; PD fraction {fractions[0]:.3f} to {fractions[-1]:.1e}; wide well: full batch {plain:.0%}, {noisy}"


def _wells(w: Tensor) -> Tensor:
    """A sharp well at -1 and one more than six times as wide at 1.5, not quite as deep."""
    return 1 - torch.exp(-((w + 1) ** 2) / (2 * 0.15**2)) - torch.exp(-((w - 1.5) ** 2) / 2) + 0.02 * (w + 0.25) ** 2


def _two_wells(start: Tensor, seed: int | None) -> Tensor:
    """Where many starts end: example n of 64 has the loss  wells(w) + c_n w  with c_n of mean 0; the rate falls to 0.

    Each step uses one example, or all where there is no seed.  The rate is stable in the sharp well: noise alone drives out.
    """
    tilt = torch.linspace(-10, 10, 64).double()
    steps, rate, rng = 1500, 0.04, generator(seed or 0, "e")
    w = start.clone().requires_grad_()
    descent = _sgd([w], rate)
    for step in range(steps):
        push = tilt.mean() if seed is None else tilt[torch.randint(64, start.shape, generator=rng)]
        w.grad = torch.autograd.grad((_wells(w) + push * w).sum(), w)[0]
        descent.param_groups[0]["lr"] = rate * (1 - step / steps)
        descent.step()
    return w.detach()


def opt_15(exhibit: Exhibit) -> str:
    """One race for all optimizers; and rates, batches and the like found by search, for nothing learns them."""
    rates, races = (3.0, 0.3, 0.1, 0.01, 0.003), {}
    for ground in (quadratic(10.0), rosenbrock()):
        point = [_vector(*ground.start)]
        target = 1e-3 if ground.name == "quadratic" else 0.1
        entrants = [entrant(name, rates) for name in EVERYONE]
        races[ground.name] = race(point, partial(_at, ground), entrants, 100, target, keep=True)
    x = torch.randn(96, 2, generator=exhibit.generator("x"))
    batch = Batch(x=x, y=(x[:, :1] * x[:, 1:]).sin())
    model = MLP((2, 12, 1), activation="tanh")
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=exhibit.generator("weights", number)))
    names = [name for name, _ in model.named_parameters()]

    def loss(weights: list[Tensor], step: int) -> Tensor:
        out = torch.func.functional_call(model, dict(zip(names, weights, strict=True)), (batch.x,))
        return 0.5 * (out - batch.y).square().mean()

    # The target is about half the loss of a net that always answers 0.
    races["small MLP"] = race(list(model.parameters()), loss, [entrant(name, rates[1:4]) for name in EVERYONE], 100, 0.06)
    for name, tracks in races.items():
        exhibit.expect(f"optimizers that ran on {name}", sorted(track.name for track in tracks), sorted(EVERYONE))
        exhibit.show(Table(f"Race on {name}", columns(tracks), note="AdamW without decay is Adam, and so is Muon on vectors."))
    flat = {name: {track.name: track.steps for track in tracks} for name, tracks in races.items()}
    exhibit.expect("Newton on the quadratic", flat["quadratic"]["damped_newton"], 1)
    mu, steps = ((10 - 1) / (10 + 1)) ** 2, flat["quadratic"]["exact"]
    exhibit.expect("exact line search on the quadratic, from its worst start", steps, math.ceil(math.log(1e-3 / 55) / math.log(mu)))
    for name in ("quadratic", "small MLP"):
        exhibit.above(
            f"optimizers of {len(EVERYONE)} that reach the target on {name}", sum(count is not None for count in flat[name].values()), 10
        )
    exhibit.above("on Rosenbrock", sum(count is not None for count in flat["rosenbrock"].values()), 3)
    paths = {track.name: track.path for track in races["rosenbrock"] if track.name in ("sgd", "nesterov", "adam", "lbfgs", "damped_newton")}
    exhibit.show(_plot_paths("Rosenbrock's valley", rosenbrock(), paths))

    seeds = list(exhibit.seeds())
    grid = sweep(
        "xor",
        {"lr": [1e-4, 1e-2, 0.1], "hidden": [(2,), (8,)], "seed": seeds},
        folder=exhibit.folder / "grid",
        threads=1,
        quiet=True,
        steps=60,
    )
    drawn = sweep(
        "xor",
        {"lr": [1e-4, 0.3], "seed": seeds},
        method="random",
        trials=4,
        folder=exhibit.folder / "random",
        threads=1,
        quiet=True,
        steps=60,
    )
    for name, result, count in (("grid", grid, 6), ("random", drawn, 4)):
        metrics = [row.mean(result.monitor) for row in result.rows]
        exhibit.expect(
            f"{name} sweep: settings, and runs of each, one a seed",
            [len(result.rows), min(len(row.runs) for row in result.rows)],
            [count, len(seeds)],
        )
        exhibit.expect(f"{name} sweep: ranked by {result.monitor}", metrics, sorted(metrics))
        settings = {option: [str(row.setting[option]) for row in result.rows] for option in result.rows[0].setting}
        exhibit.show(
            Table(
                f"{name} sweep of xor".capitalize(),
                {**settings, result.monitor: metrics, "spread": [row.spread(result.monitor) for row in result.rows]},
            )
        )
    apart = math.log10(grid.rows[-1].mean(grid.monitor) / grid.best.mean(grid.monitor))
    exhibit.above("powers of ten between the worst and the best loss of the grid", apart, 1.5)
    best = ", ".join(f"{name}: {tracks[0].name} in {tracks[0].steps}" for name, tracks in races.items())
    return f"{best}; best of the grid lr {grid.best.setting['lr']:g}, hidden {grid.best.setting['hidden']}"


START = torch.linspace(-1.5, 2.0, 7, dtype=torch.float64)


def _slope(theta: Tensor, step: int) -> Tensor:
    """Gradients that depend on the weights and on the step, and change their sign."""
    return torch.sin(3 * theta + 0.3 * step) + 0.5 * theta


def _walk(name: str, rate: float, **options: Any) -> Tensor:
    """100 steps of the framework's rule under those gradients.  (101, weights)"""
    w = START.clone().requires_grad_()
    optimizer = _build(name, [w], rate, **options)
    path = [START]
    for step in range(100):
        w.grad = _slope(w.detach(), step)
        optimizer.step()
        path.append(w.detach().clone())
    return torch.stack(path)


def _build(name: str, weights: list[Tensor], rate: float, **options: Any) -> torch.optim.Optimizer:
    return optimizer(name, lr=rate, **options).build([{"params": weights, "weight_decay": 0.0, "names": [""] * len(weights)}])


def _sgd(weights: list[Tensor], rate: float, **options: Any) -> torch.optim.Optimizer:
    return _build("sgd", weights, rate, **options)


def _descend_path(
    loss: Callable[[Tensor], Tensor], start: Tensor, make: Callable[..., Any], steps: int, target: float = -math.inf
) -> Track:
    """One optimizer from one start, with its path."""
    theta = start.clone().requires_grad_()
    return follow([theta], lambda step: loss(theta), make([theta]), steps, target, keep=True)


def _at(ground: Surface, weights: list[Tensor], step: int) -> Tensor:
    return ground.loss(weights[0])


def _form(a: Tensor, b: Tensor | float = 0.0) -> Callable[[Tensor], Tensor]:
    """Half of theta.A theta minus b.theta."""
    return lambda theta: 0.5 * theta @ a @ theta - (b * theta).sum()


def _descend(a: Tensor, start: Tensor, rate: float, steps: int, target: float = -math.inf) -> Track:
    return _descend_path(_form(a), start, partial(_sgd, rate=rate), steps, target)


def _contractions(a: Tensor, start: Tensor, steps: int) -> list[float]:
    """Loss after each step of exact line search over the loss before it."""
    losses = _descend_path(_form(a), start, partial(Descent, search="exact"), steps).losses
    return [after / before for before, after in zip(losses, losses[1:], strict=False)]


def _rises(track: Track) -> int:
    """Steps that raised the loss."""
    return sum(after > before for before, after in zip(track.losses, track.losses[1:], strict=False))


def _vector(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def _definite(exhibit: Exhibit, n: int, condition: float) -> Tensor:
    """A matrix with eigenvalues from 1 to the condition number in random directions."""
    turn = torch.linalg.qr(torch.randn(n, n, generator=exhibit.generator("directions", n)).double())[0]
    return turn @ torch.diag(torch.logspace(0, math.log10(condition), n).double()) @ turn.T


def _corner(a: Tensor) -> Tensor:
    """One unit along every axis of the form, so that each curvature counts whatever the directions."""
    return torch.linalg.eigh(a).eigenvectors.sum(1)


def _closure(theta: Tensor, loss: Callable[[Tensor], Tensor]) -> Callable[[], Tensor]:
    """What torch's optimizers with a closure take."""

    def closure() -> Tensor:
        value = loss(theta)
        theta.grad = torch.autograd.grad(value, theta)[0]
        return value.detach()

    return closure


def _plot_paths(title: str, ground: Surface, paths: Mapping[str, Any]) -> Reading:
    x, y, height = ground.grid()
    return trajectories(title, x, y, height, dict(paths))
