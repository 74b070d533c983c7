"""Applications to images and to a price, for chapter 23: the tasks, trained by a few seeds each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.batch import Data
from ..core.reading import Table
from ..core.recipe import Recipe
from ..core.seeds import generator
from ..data import augment, fetch
from ..data.catalog import load
from ..data.tensors import TensorSource
from ..estimators.least_squares import LeastSquares
from ..estimators.logistic import SoftmaxRegression
from ..lenses.cost import cost
from ..models.cnn import CNN
from ..models.heads import head
from ..models.mlp import MLP
from ..models.resnet import ResNet
from ..objectives.categorical import Categorical
from ..optim.build import optimizer
from ..optim.schedules import warmup_cosine
from ..recipes.tools.parts import apply_with_chance
from .exhibit import Exhibit, spread

MNIST = "mnist/train-images-idx3-ubyte.gz"
TARGETS = {"mnist": (0.975, 0.92), "digits": (0.95, 0.93)}
"""least test accuracy of the CNN and of the MLP after seconds of training, by the data that are at hand"""
BLOCKS = (8, 8)
"""of two layers each, in the deep nets of APP-02: this many that a plain one hardly begins to learn in 60 steps"""


def accuracies(exhibit: Exhibit, name: str, model: Callable[[], nn.Module], data: Callable[[int], Data], **how: Any) -> list[float]:
    """Test accuracy of a network, trained by each seed on the data of that seed."""

    def recipe(data: Data) -> Recipe:
        expected = {"steps": 150, "batch_size": 64, "lr": 4e-3, **how}
        return Recipe(
            model=model,
            data=data,
            objective=Categorical(len(data.classes)),
            optimizer=optimizer("adamw", lr=expected.pop("lr"), weight_decay=0.01),
            schedule=warmup_cosine(),
            channels_last=True,
            **expected,
        )

    runs = [exhibit.train(recipe(data(seed)), f"{name}-{seed}", seed=seed) for seed in exhibit.seeds(3)]
    return [run.result["metrics"]["test/accuracy"] for run in runs]


def digits(exhibit: Exhibit) -> str:
    """APP-01: a CNN and an MLP on MNIST, or on the digits of scikit-learn if MNIST is not available; the summary names the data."""
    there = fetch.find(MNIST, MNIST.removesuffix(".gz")) is not None
    name = "mnist" if there else "digits"
    # Of the few digits half are held out, to compare on.  They fill their 8 x 8 pixels, so a shift costs an edge: most are not moved.
    data = cache(lambda seed: load(name, seed=seed) if there else load(name, seed=seed, valid=0, test=0.5))
    moved, side = (augment.shift(1), 28) if there else (apply_with_chance(augment.shift(1), 0.25), 8)
    convolutional = accuracies(exhibit, "cnn", lambda: CNN((1, 16, 32), 10, hidden=64, image=(side, side)), data, steps=300, augment=moved)
    flat = accuracies(exhibit, "mlp", lambda: nn.Sequential(nn.Flatten(), MLP((side * side, 64, 10))), data, steps=300)
    minimum = TARGETS[name]
    exhibit.above(f"{name}: CNN, test accuracy", convolutional, minimum[0])
    exhibit.above(f"{name}: MLP on flattened images, test accuracy", flat, minimum[1])
    exhibit.above(f"{name}: CNN less MLP, test accuracy", [a - b for a, b in zip(convolutional, flat)], 0.0, mean=True)
    used = "MNIST" if there else "scikit-learn's 1,797 digits, because there is no MNIST,"
    return f"on {used} CNN {spread(convolutional, '.2%')}, MLP {spread(flat, '.2%')}; `sonde train mnist_cnn` trains for longer"


def photographs(exhibit: Exhibit) -> str:
    """APP-02: many layers with and without shortcuts, for the same number of steps; and four convolutions, with more of them.

    In these seconds the deep net with shortcuts is still behind the shallow one; `cifar_resnet` and `cifar_cnn` train until it leads.
    """
    name, minimum, data = _photographs(exhibit.seed)
    many, deep = len(data.classes), f"{2 * sum(BLOCKS) + 2} layers"
    nets: dict[str, tuple[int, Callable[[], nn.Module]]] = {
        "4 convolutions": (120, lambda: CNN((3, 8, 16, 32, 32), many, hidden=0, image=(16, 16), norm=True)),
        f"{deep}, plain": (60, lambda: ResNet(BLOCKS, many, width=8, large=False, skip=0.0)),
        f"{deep}, residual": (60, lambda: ResNet(BLOCKS, many, width=8, large=False, skip=1.0)),
    }
    scores = {
        key: accuracies(exhibit, key.replace(" ", "-"), make, lambda seed: data, steps=steps, augment=augment.flip(), drop_last=True)
        for key, (steps, make) in nets.items()
    }
    shallow, plain, residual = scores.values()
    exhibit.exceeds(f"{name}: residual over plain, {deep}, test accuracy", residual, plain)
    # One set of images for all seeds, so their mean scatters like one of them: each is compared with the bound.
    exhibit.above(f"{name}: residual, {deep}, test accuracy", residual, minimum)
    near, linear = _peers(data)
    exhibit.exceeds(f"{name}: 4 convolutions over scikit-learn's nearest neighbors", shallow, near)
    exhibit.exceeds(f"{name}: 4 convolutions over scikit-learn's linear classifier", shallow, linear)
    table = {
        "network": [*nets, "10 nearest neighbors", "linear, of the pixels"],
        "steps": [*(steps for steps, _ in nets.values()), None, None],
        "numbers": [*(sum(p.numel() for p in make().parameters()) for _, make in nets.values()), None, None],
        "test accuracy": [*(spread(values, ".1%") for values in scores.values()), f"{near:.1%}", f"{linear:.1%}"],
    }
    exhibit.show(Table(name, table, note=f"{len(plain)} seeds; images of 16 x 16."))
    summary = ", ".join(f"{key} {spread(values, '.1%')}" for key, values in scores.items())
    return f"{name}, 60 steps (4 convolutions: 120): {summary}, linear {linear:.1%}; `cifar_cnn` and `cifar_resnet` train for longer"


def _photographs(seed: int) -> tuple[str, float, Data]:
    """A part of CIFAR-10 at half its size; without it colored shapes, to be classified by kind.

    Their name, the least test accuracy of the residual net and the images.
    """
    if fetch.find("cifar10/labels.json", "cifar-10/labels.json", "cifar10/cifar-10-binary.tar.gz") is None:
        shapes = load("shapes", seed=seed, n=4000, size=16, color=True)
        return "colored shapes, because there is no CIFAR-10", 0.35, replace(shapes, valid=None)
    whole = load("cifar10", seed=seed)
    parts = {"train": whole.train[torch.arange(3000)], "test": whole.splits["test"][torch.arange(2000)]}
    sources = {key: TensorSource(F.avg_pool2d(part.x, 2), part.y) for key, part in parts.items()}
    data = Data(sources["train"], test=sources["test"], name="cifar10", task="classes", classes=whole.classes)
    return "CIFAR-10, 3,000 images", 0.17, data


def _peers(data: Data) -> tuple[float, float]:
    """Test accuracy by the pixels of scikit-learn's nearest neighbors and linear classifier, whose penalty the training images choose."""
    from sklearn.linear_model import RidgeClassifierCV
    from sklearn.neighbors import KNeighborsClassifier

    (x, y), (new, true) = ((part.x.flatten(1).numpy(), part.y.numpy()) for part in (data.train[:], data.splits["test"][:]))
    models = KNeighborsClassifier(10), RidgeClassifierCV(10.0 ** np.arange(1, 6))
    near, linear = (float(model.fit(x, y).score(new, true)) for model in models)
    return near, linear


def three_classes(exhibit: Exhibit) -> str:
    """APP-03: three classes of images: discs, squares and crosses in place of cat, dog and neither."""
    data = cache(lambda seed: load("shapes", seed=seed, n=2000, size=24))
    dense = accuracies(exhibit, "mlp", lambda: nn.Sequential(nn.Flatten(), MLP((24 * 24, 96, 3))), data, steps=250, lr=2e-3)
    shared = accuracies(exhibit, "cnn", lambda: CNN((1, 16, 32, 48), 3, hidden=0, image=None, norm=True), data, steps=300, lr=1e-2)
    exhibit.above("CNN: test accuracy", shared, 0.89)
    exhibit.above("CNN less MLP: test accuracy", [a - b for a, b in zip(shared, dense)], 0.35)
    photo = (3, 256, 256)
    sizes = {
        "MLP, 24 x 24 gray": cost(lambda: nn.Sequential(nn.Flatten(), MLP((576, 96, 3))), (1, 24, 24)).parameters,
        "CNN, 24 x 24 gray": cost(lambda: CNN((1, 16, 32, 48), 3, hidden=0, image=None), (1, 24, 24)).parameters,
        "MLP, 256 x 256 color": cost(lambda: nn.Sequential(nn.Flatten(), MLP((196608, 96, 3))), photo).parameters,
        "CNN, 256 x 256 color": cost(lambda: CNN((3, 16, 32, 48), 3, hidden=0, image=None), photo).parameters,
    }
    exhibit.expect("numbers of the MLP on a photograph", sizes["MLP, 256 x 256 color"], 196608 * 96 + 96 + 96 * 3 + 3)
    exhibit.above(
        "numbers of the MLP over those of the CNN, on a photograph", sizes["MLP, 256 x 256 color"] / sizes["CNN, 256 x 256 color"], 500
    )
    accuracy = [spread(dense, ".1%"), spread(shared, ".1%"), "not trained", "not trained"]
    table = {"network": list(sizes), "numbers": list(sizes.values()), "test accuracy": accuracy}
    exhibit.show(Table("Three kinds of image", table, note=f"1,400 shapes to learn from, {len(dense)} seeds."))
    few, many = sizes["CNN, 24 x 24 gray"], sizes["MLP, 24 x 24 gray"]
    return f"CNN {spread(shared, '.1%')} with {few:,} numbers, MLP {spread(dense, '.1%')} with {many:,}"


def prices(exhibit: Exhibit) -> str:
    """APP-09: a price is never below 0, by the form of the output; and features measured by hand beside learned ones."""
    below, negative, errors = [], [], []
    end = head("positive")
    for seed in exhibit.seeds(3):
        houses, price = _houses(seed)
        line = LeastSquares().fit(houses.numpy(), price.numpy())
        recipe = Recipe(
            model=lambda: nn.Sequential(nn.Linear(2, 32), nn.Tanh(), end.layer(32)),
            data=Data(TensorSource(houses, price[:, None]), name="houses", task="values"),
            objective=end.likelihood(),
            optimizer=optimizer("adam", lr=1e-2),
            steps=300,
            batch_size=300,
        )
        run = exhibit.train(recipe, f"houses-{seed}", seed=seed)
        far = torch.stack(torch.meshgrid(torch.linspace(-6, 6, 41), torch.linspace(-6, 6, 41), indexing="ij"), -1).reshape(-1, 2)
        with torch.no_grad():
            predictions, fitted = run.model()(far), run.model()(houses)[:, 0]
        below.append(float((line.predict(far.numpy()) < 0).mean()))
        negative.append(int((predictions < 0).sum()))
        errors.append(float((fitted - price).square().mean() / price.var()))
    exhibit.above("straight line: share of prices below 0, on houses far and near", below, 0.3)
    exhibit.expect("positive head: prices below 0, on the same houses", negative, [0] * len(negative))
    exhibit.below("positive head: error, in variances of the price", errors, 0.08)
    by_hand, cnn_scores, raw = _features(exhibit)
    exhibit.above("learned features less hand-made ones: test accuracy", [value - by_hand for value in cnn_scores], 0.04)
    kinds = ["row and column sums, by hand", "64 pixels", "learned by a CNN"]
    table = {"features": kinds, "test accuracy": [f"{by_hand:.1%}", f"{raw:.1%}", spread(cnn_scores, ".1%")]}
    exhibit.show(Table("A linear classifier of digits, on three kinds of features", table))
    return f"no price below 0 (a line: {np.mean(below):.0%}); hand-made features {by_hand:.1%}, learned {spread(cnn_scores, '.1%')}"


def _houses(seed: int) -> tuple[Tensor, Tensor]:
    """Size and age of houses, standardized, and a price that grows with the one and falls with the other."""
    rng = generator(seed, "houses")
    x = torch.randn(300, 2, generator=rng)
    return x, torch.exp(0.6 * x[:, 0] - 0.5 * x[:, 1] + 0.1 * torch.randn(300, generator=rng))


def _features(exhibit: Exhibit) -> tuple[float, list[float], float]:
    """Test accuracy of softmax regression on sums of rows and columns of a digit, on what a CNN learned, and on pixels."""
    data = load("digits", seed=exhibit.seed)
    train, test = data.train[:], data.splits["test"][:]

    def score(make: Callable[[Tensor], Tensor]) -> float:
        fitted = SoftmaxRegression(alpha=1e-3).fit(make(train.x).numpy(), train.y.numpy())
        return float((fitted.predict(make(test.x).numpy()) == test.y.numpy()).mean())

    def cnn_features(model: Any, x: Tensor) -> Tensor:
        with torch.no_grad():
            return model.blocks(x).flatten(1)

    recipe = Recipe(
        model=lambda: CNN((1, 16, 32), 10, hidden=0, image=(8, 8)),
        data=data,
        objective=Categorical(10),
        optimizer=optimizer("adamw", lr=4e-3),
        steps=200,
    )
    models = [exhibit.train(recipe, f"features-{seed}", seed=seed).model() for seed in exhibit.seeds(3)]
    by_hand = score(lambda x: torch.cat([x.sum(2), x.sum(3)], -1).flatten(1))
    return by_hand, [score(partial(cnn_features, model)) for model in models], score(lambda x: x.flatten(1))
