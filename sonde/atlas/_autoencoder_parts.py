"""AE-10, whose many parts would crowd chapter 13: four families of generative models learn the same points in the plane.

Samples are compared by their discrepancy M from held-out points, with Gaussian kernels of width a quarter of the data's deviation.  Two
sets of real points differ a little too, and a normal distribution fitted to the data is the baseline, so the figure is

    gap = (M - M of real points) / (M of the normal fit - M of real points)         0 as good as real, 1 no better than the fit
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributions import MultivariateNormal

from ..core.batch import Data
from ..core.reading import Plane, Reading
from ..core.recipe import Recipe
from ..core.seeds import generator
from ..data.catalog import load
from ..data.tensors import TensorSource
from ..models import diffusion, gan
from ..models.autoregressive import Autoregressive
from ..models.flow import Flow
from ..objectives.adversarial import Adversarial
from ..objectives.denoised import Denoised
from ..objectives.density import Density
from ..objectives.information.discrepancy import discrepancy
from ..optim.build import optimizer
from ..optim.initialize import initialize
from ..optim.schedules import cosine
from .exhibit import Exhibit, spread

STEPS = {"GAN": 1800, "flow": 350, "autoregressive": 300, "diffusion": 900, "discriminator": 200}
HELD_OUT = 1000
"""points of each set that is compared"""
BANDWIDTH = 0.25
"""width of the bells, in deviations of the data"""
REACH, CELLS = 5.0, 300
"""half the side of the square over which densities are summed, in deviations of the data, and the cells along a side"""


class Family(NamedTuple):
    """How a family is built and trained."""

    build: Callable[[], nn.Module]
    objective: Any
    optimizer: Any
    batch_size: int = 128
    initialize: Callable[[nn.Module], None] | None = None


FAMILIES = {
    "GAN": Family(
        partial(gan.points, 2, latent=4, depth=3),
        Adversarial(),
        optimizer("adam", lr=1e-3, betas=(0.5, 0.9)),
        initialize=initialize("he_normal"),
    ),
    "flow": Family(partial(Flow, (2,), steps=6), Density(), optimizer("adam", lr=5e-3)),
    "autoregressive": Family(partial(Autoregressive, 2, parts=8), Density(), optimizer("adam", lr=5e-3)),
    "diffusion": Family(partial(diffusion.points, 2, steps=40), Denoised(), optimizer("adam", lr=1e-2), batch_size=256),
}


class Points(NamedTuple):
    """Points in the plane with mean 0 and deviation 1, in three parts that know nothing of each other."""

    train: Tensor
    held: Tensor
    other: Tensor


def gap_of(points: Points, seed: int) -> Callable[[Tensor], float]:
    """What a sample leaves of the gap between a normal fit and real points: 1 for the fit, 0 for real points."""
    fit = MultivariateNormal(points.train.mean(0), torch.cov(points.train.T))
    drawn = fit.loc + torch.randn(HELD_OUT, 2, generator=generator(seed, "fit")) @ fit.scale_tril.T
    real, normal = (discrepancy(each, points.held, BANDWIDTH) for each in (points.other, drawn))
    return lambda sample: (discrepancy(sample, points.held, BANDWIDTH) - real) / (normal - real)


def moons(seed: int, train: int = 2000) -> Points:
    """Two half circles that reach into each other."""
    drawn = load("moons", seed=seed, n=train + 2 * HELD_OUT)
    x = torch.cat([part[:].x for part in drawn.splits.values()])
    x = x[torch.randperm(len(x), generator=generator(seed, "moons"))]
    x = (x - x.mean(0)) / x.std(0)
    return Points(x[: -2 * HELD_OUT], x[-2 * HELD_OUT : -HELD_OUT], x[-HELD_OUT:])


def generative(exhibit: Exhibit) -> str:
    """Each family samples points closer to real ones than a normal fit; densities sum to 1; the best discriminator outputs p / (p + q)."""
    best_discriminator(exhibit)
    points = moons(exhibit.seed)
    gap = gap_of(points, exhibit.seed)
    gaps: dict[str, list[float]] = {}
    models: dict[str, list[Any]] = {}
    for name, family in FAMILIES.items():
        runs = [_train(exhibit, name, family, points, seed) for seed in exhibit.seeds(3)]
        models[name] = [run.model() for run in runs]
        gaps[name] = [gap(_sample(model, exhibit.seed)) for model in models[name]]
        exhibit.below(f"{name}: gap to real points left of that of a normal fit", gaps[name], 0.5)
        if name == "GAN":
            _check_equilibrium(exhibit, [run.result["metrics"] for run in runs])
    for name in ("flow", "autoregressive"):
        _is_density(exhibit, name, models[name], points)
    few = [gap(model.sample(HELD_OUT, exhibit.generator("few"), steps=20, eta=0.0)) for model in models["diffusion"]]
    exhibit.below("diffusion: the same with 20 of its 40 steps and no fresh noise", few, 0.5)
    exhibit.show(_picture(exhibit.seed, points, {name: each[0] for name, each in models.items()}, gaps))
    summary = ", ".join(f"{name} {spread(each, '.0%')}" for name, each in gaps.items())
    return f"gap to real points left of that of a normal fit: {summary}; best judge of equals 0.5, density sums to 1"


def best_discriminator(exhibit: Exhibit) -> None:
    """A discriminator against a fixed generator becomes p / (p + q), and 1/2 everywhere where both are the same.

    For two normal densities the logit log p - log q is a polynomial of degree 2, so a discriminator that knows these can be exact.
    """
    p = MultivariateNormal(torch.tensor([0.7, 0.0]), torch.eye(2))
    others = {"q": MultivariateNormal(torch.tensor([-0.7, 0.3]), torch.diag(torch.tensor([1.6, 0.7]))), "p itself": p}
    draw = exhibit.generator("judge")
    real = p.loc + torch.randn(8000, 2, generator=draw)
    for name, q in others.items():
        generator_net = nn.Linear(2, 2)
        with torch.no_grad():
            generator_net.weight.copy_(q.scale_tril)
            generator_net.bias.copy_(q.loc)
        game = gan.GAN(generator_net, Quadratic(), 2, (2,))
        recipe = Recipe(
            model=game,
            data=Data(TensorSource(real), TensorSource(real[:1000]), name="normal"),
            objective=Adversarial(generator_steps=0),
            optimizer=optimizer("adam", lr=0.05),
            schedule=cosine(),
            batch_size=2000,
            steps=STEPS["discriminator"],
            evaluate_every=STEPS["discriminator"],
        )
        run = exhibit.train(recipe, f"judge of {name}", seed=exhibit.seed)
        inputs = torch.cat([real[:1000], q.loc + torch.randn(1000, 2, generator=draw) @ q.scale_tril.T])
        with torch.no_grad():
            probabilities = run.model()(inputs).sigmoid()
        expected = 1 / (1 + (q.log_prob(inputs) - p.log_prob(inputs)).exp())
        # 8,000 points leave each coefficient of the logit an error near 0.02, and D is a quarter as steep as the logit.
        exhibit.below(
            f"best judge of p against {name}: mean difference of D and p / (p + q)", (probabilities - expected).abs().mean(), 0.02
        )
        if q is p:
            exhibit.expect("best judge of equals: D on average", probabilities.mean(), 0.5, 0.01)
            exhibit.expect("best judge of equals: its loss, 2 log 2", run.result["metrics"]["valid/discriminator"], 2 * math.log(2), 0.01)


class Quadratic(nn.Module):
    """A logit of degree 2 in two coordinates."""

    def __init__(self) -> None:
        super().__init__()
        self.weigh = nn.Linear(5, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.weigh(torch.cat([x, x.square(), x.prod(1, keepdim=True)], 1))


def _train(exhibit: Exhibit, name: str, family: Family, points: Points, seed: int) -> Any:
    recipe = Recipe(
        model=family.build,
        data=Data(TensorSource(points.train), TensorSource(points.held), name="moons"),
        objective=family.objective,
        optimizer=family.optimizer,
        schedule=cosine(),
        initialize=family.initialize,
        clip_norm=1.0,
        batch_size=family.batch_size,
        steps=STEPS[name],
        evaluate_every=STEPS[name],
    )
    return exhibit.train(recipe, f"{name} {seed}", seed=seed)


def _sample(model: Any, seed: int, n: int = HELD_OUT) -> Tensor:
    return model.sample(n, generator(seed, "sample"))


def _check_equilibrium(exhibit: Exhibit, metrics: list[dict[str, float]]) -> None:
    """At the end of the game neither side wins."""
    for side in ("real", "fake"):
        distances = [abs(each[f"valid/{side}"] - 0.5) for each in metrics]
        exhibit.below(f"GAN: mean output of D on {side} points, away from 0.5", distances, 0.03)
    exhibit.below("GAN: loss of D, away from 2 log 2", [abs(each["valid/discriminator"] - 2 * math.log(2)) for each in metrics], 0.05)


def _is_density(exhibit: Exhibit, name: str, models: list[Any], points: Points) -> None:
    """It sums to 1 over the plane and is higher at held-out points than a normal fit."""
    fit = MultivariateNormal(points.train.mean(0), torch.cov(points.train.T))
    baseline = float(fit.log_prob(points.held).mean())
    with torch.no_grad():
        mass = [float(_density(model, REACH, CELLS).sum()) * (2 * REACH / CELLS) ** 2 for model in models]
        better = [float(model.log_prob(points.held).mean()) - baseline for model in models]
    exhibit.below(f"{name}: density summed over the plane, away from 1", [abs(each - 1) for each in mass], 1e-3)
    exhibit.above(f"{name}: nats per held-out point more than a normal fit", better, 0.3)


def _density(model: Any, reach: float, cells: int) -> Tensor:
    """p at the middle of every cell of a square, (cells, cells): the second coordinate down, the first across."""
    middle = (torch.arange(cells) + 0.5) * (2 * reach / cells) - reach
    second, first = torch.meshgrid(middle, middle, indexing="ij")
    return model.log_prob(torch.stack([first.flatten(), second.flatten()], 1)).exp().view(cells, cells)


def _picture(seed: int, points: Points, models: dict[str, Any], gaps: dict[str, list[float]]) -> Reading:
    """Where the points of each family lie, beside the data, and the flow's own density."""
    reach, cells, many = 2.4, 40, 10_000
    edges = torch.linspace(-reach, reach, cells + 1)

    def fraction(x: Tensor) -> Tensor:
        """Points per unit of area, (cells, cells)."""
        counted, _ = torch.histogramdd(x.flip(1), (edges, edges))
        return counted / len(x) / (2 * reach / cells) ** 2

    panels = {"data": fraction(moons(seed, many).train)}
    panels |= {f"{name}, gap {gaps[name][0]:.0%}": fraction(_sample(model, seed, many)) for name, model in models.items()}
    with torch.no_grad():
        panels["density of the flow"] = _density(models["flow"], reach, cells)
    middle = (edges[1:] + edges[:-1]) / 2
    note = f"Each panel but the last counts {many:,} points; all families have learned from the same {len(points.train):,}."
    return Plane("Four families of generative models", panels, ["x1", "x2"], note, x=middle, y=middle, levels=[0.02, 0.1, 0.2, 0.3, 0.4])
