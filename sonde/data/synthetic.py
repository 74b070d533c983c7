"""Generated data with known targets: classes in the plane, a curve, a surface and a quadratic bowl.

Every set draws from the seed alone.  `n` counts all examples, 15 % of which are for validation and 15 % for the test;
`noise` is the standard deviation of Gaussian noise, on the inputs of classes and on the target of the others.
"""

from __future__ import annotations

import math
from typing import Annotated

import torch
from torch import Generator, Tensor

from ..core.batch import Data
from ..core.options import Range
from ..core.seeds import generator
from .table import Rules, table_data

ExampleCount = Annotated[int, Range(10, 10_000_000)]
NoiseLevel = Annotated[float, Range(0, 100)]
ClusterCount = Annotated[int, Range(2, 100)]
PARTS = (0.15, 0.15)


def xor(seed: int = 0, n: ExampleCount = 1000, noise: NoiseLevel = 0.2) -> Annotated[Data, "points"]:
    """Four clusters at the corners of a square; opposite corners share a class.

    Args:
        n: examples in all
        noise: standard deviation of each cluster
    """
    rng = generator(seed, "xor")
    corner = torch.arange(n) % 4
    x = torch.stack([corner % 2, corner // 2], 1) * 2.0 - 1.0
    return _classes("xor", _blur(x, noise, rng), (corner % 2) ^ (corner // 2), seed)


def rings(seed: int = 0, n: ExampleCount = 1000, noise: NoiseLevel = 0.1, classes: ClusterCount = 2) -> Annotated[Data, "points"]:
    """Concentric circles, a class each.

    Args:
        n: examples in all
        noise: standard deviation of the points from their circle
        classes: number of circles
    """
    rng = generator(seed, "rings")
    label = torch.arange(n) % classes
    return _classes("rings", _blur(_polar(1.0 + label, 2 * math.pi * torch.rand(n, generator=rng)), noise, rng), label, seed)


def moons(seed: int = 0, n: ExampleCount = 1000, noise: NoiseLevel = 0.1) -> Annotated[Data, "points"]:
    """Two interleaving half circles.

    Args:
        n: examples in all
        noise: standard deviation of the points from their curve
    """
    rng = generator(seed, "moons")
    label = torch.arange(n) % 2
    upper = _polar(torch.ones(n), math.pi * torch.rand(n, generator=rng))
    x = torch.where(label[:, None] == 0, upper, torch.tensor([1.0, 0.5]) - upper)
    return _classes("moons", _blur(x, noise, rng), label, seed)


def spirals(
    seed: int = 0, n: ExampleCount = 1000, noise: NoiseLevel = 0.05, classes: ClusterCount = 2, turns: Annotated[float, Range(0, 20)] = 1.5
) -> Annotated[Data, "points"]:
    """Arms of a spiral wound around each other, a class each.

    Args:
        n: examples in all
        noise: standard deviation of the points from their arm
        classes: number of arms
        turns: rotations of an arm
    """
    rng = generator(seed, "spirals")
    label = torch.arange(n) % classes
    along = torch.rand(n, generator=rng).sqrt()  # equal density along an arm
    x = _polar(2.0 * along, 2 * math.pi * (turns * along + label / classes))
    return _classes("spirals", _blur(x, noise, rng), label, seed)


def blobs(
    seed: int = 0, n: ExampleCount = 1000, noise: NoiseLevel = 1.0, classes: ClusterCount = 3, features: ClusterCount = 2
) -> Annotated[Data, "points"]:
    """Gaussian clusters around random centers, a class each.

    Args:
        n: examples in all
        noise: standard deviation of each cluster
        classes: number of clusters
        features: inputs of each example
    """
    rng = generator(seed, "blobs")
    label = torch.arange(n) % classes
    centers = 20 * torch.rand(classes, features, generator=rng) - 10
    return _classes("blobs", _blur(centers[label], noise, rng), label, seed)


def swiss_roll(seed: int = 0, n: ExampleCount = 2000, noise: NoiseLevel = 0.05) -> Data:
    """A rolled-up sheet in three dimensions; the target is the position along the roll.

    Args:
        n: examples in all
        noise: standard deviation of the points from the sheet
    """
    rng = generator(seed, "swiss_roll")
    along = 1.5 * math.pi * (1 + 2 * torch.rand(n, generator=rng))
    plane = _polar(along, along)
    x = torch.stack([plane[:, 0], 21 * torch.rand(n, generator=rng), plane[:, 1]], 1)
    return _values("swiss_roll", _blur(x, noise, rng), along, seed)


def sine(seed: int = 0, n: ExampleCount = 1000, noise: NoiseLevel = 0.1, periods: Annotated[float, Range(above=0, most=100)] = 2.0) -> Data:
    """A sine wave with noise: y = sin(pi * periods * x), x in [-1, 1].

    Args:
        n: examples in all
        noise: standard deviation of the noise on y
        periods: full waves in the interval
    """
    rng = generator(seed, "sine")
    x = 2 * torch.rand(n, 1, generator=rng) - 1
    return _values("sine", x, _blur(torch.sin(math.pi * periods * x[:, 0]), noise, rng), seed)


def bowl(
    seed: int = 0,
    n: ExampleCount = 1000,
    noise: NoiseLevel = 0.0,
    features: Annotated[int, Range(1, 1000)] = 2,
    condition: Annotated[float, Range(1, 1e6)] = 10.0,
) -> Data:
    """A quadratic bowl: y = sum of a_i x_i^2 / 2 with curvatures a_i from 1 to the condition number.

    Args:
        n: examples in all
        noise: standard deviation of the noise on y
        features: inputs of each example
        condition: largest curvature; the smallest is 1
    """
    rng = generator(seed, "bowl")
    x = 2 * torch.rand(n, features, generator=rng) - 1
    curvature = torch.logspace(0, math.log10(condition), features)
    return _values("bowl", x, _blur(0.5 * (curvature * x.square()).sum(1), noise, rng), seed)


def _polar(radius: Tensor, angle: Tensor) -> Tensor:
    return torch.stack([radius * torch.cos(angle), radius * torch.sin(angle)], 1)


def _blur(x: Tensor, noise: float, rng: Generator) -> Tensor:
    return x + noise * torch.randn(x.shape, generator=rng)


def _classes(name: str, x: Tensor, label: Tensor, seed: int) -> Data:
    return _data(name, x, label, Rules("classes", standardize=False), seed)


def _values(name: str, x: Tensor, y: Tensor, seed: int) -> Data:
    return _data(name, x, y, Rules("values", standardize=False), seed)


def _data(name: str, x: Tensor, y: Tensor, rules: Rules, seed: int) -> Data:
    columns = {f"x{i + 1}": column.double().numpy() for i, column in enumerate(x.T)}
    return table_data({**columns, "y": y.double().numpy()}, "y", rules, name, seed, PARTS)
