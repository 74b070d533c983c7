"""What every recipe promises, whichever files are in the registry: it builds, learns two steps, and does so again."""

from __future__ import annotations

import dataclasses
import inspect
import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch

import sonde
from sonde.core import registry
from sonde.core.options import options_of, resolve
from sonde.core.recipe import Recipe

NAMES = registry.names("recipes")
DOWNLOADED = {"fashion_cnn": "fashion-mnist", "mnist_cnn": "mnist", "cifar_cnn": "cifar10", "cifar_resnet": "cifar10"}
"""recipe -> folder of SONDE_DATA that must be there"""


@pytest.fixture(scope="module")
def own(tmp_path_factory) -> dict[str, dict]:
    """Options that have no default, or a dear one: small files as a user might bring them."""
    from PIL import Image

    random = np.random.default_rng(0)
    folder = tmp_path_factory.mktemp("own")
    rows = [f"{a:.3f},{b:.3f},{'yes' if a > b else 'no'}" for a, b in random.normal(size=(40, 2))]
    (folder / "table.csv").write_text("first,second,answer\n" + "\n".join(rows) + "\n", encoding="utf-8")
    for label, name in enumerate(("dark", "light")):
        (folder / "images" / name).mkdir(parents=True)
        for i in range(12):
            pixels = random.integers(100 * label, 100 * label + 100, (11, 13), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "images" / name / f"{i}.png")
    return {
        "table": {"data": folder / "table.csv", "target": "answer"},
        "images": {"data": folder / "images", "size": 16},
        "sentiment": {"unlabeled": 0},  # no word vectors, which take most of a minute
        "stacked": {"passes": 1},  # the training before the training
        "translate": {"pairs": "toy", "width": 32},
    }


def function(name: str):
    return registry.load("recipes", name).recipe


def build(name: str, own: dict[str, dict]) -> Recipe:
    if name in DOWNLOADED:
        home = Path(os.environ.get("SONDE_DATA", "")) / DOWNLOADED[name]
        if not os.environ.get("SONDE_DATA") or not home.is_dir():
            pytest.skip(f"SONDE_DATA holds no {DOWNLOADED[name]}")
    return function(name)(**resolve(function(name), own.get(name, {}), name))


def test_registry_is_not_empty():
    assert {"digits_cnn", "fashion_cnn", "table", "images", "tiny_mlp"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_option_has_type_and_help(name):
    assert registry.summary("recipes", name) and inspect.getdoc(function(name))
    hints = inspect.get_annotations(function(name), eval_str=True)
    for option in options_of(function(name), name).values():
        assert option.name in hints
        assert option.help or option.name == "seed", f"'{option.name}' has no help line"
        if not option.required:
            assert option.check(option.default) == option.default


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"table", "images"}))
def test_the_model_is_counted_on_the_meta_device(name):
    recipe = function(name)()
    with torch.device("meta"):
        model = recipe.build_model()
    assert sum(p.numel() for p in model.parameters()) > 0


@pytest.mark.parametrize("name", NAMES)
def test_two_steps_are_finite_and_the_same_again(name, own, tmp_path):
    def rows(place: str) -> list[dict]:
        short = build(name, own).replace(steps=2, epochs=None, log_every=1, evaluate_every=2)
        data = short.build_data()
        kept = {part: Few(source) for part, source in data.splits.items() if part != "train"}
        run = sonde.train(short.replace(data=dataclasses.replace(data, **kept)), run=tmp_path / place, seed=3, threads=1, quiet=True)
        return run.metrics

    first = rows("first")
    losses = [row["loss"] for row in first if "loss" in row]
    assert len(losses) == 2 and all(math.isfinite(loss) for loss in losses)
    assert rows("second") == first


class Few:
    """The first hundred of a source: two steps need no more to be judged."""

    def __init__(self, source) -> None:
        self.source = source

    def __len__(self) -> int:
        return min(100, len(self.source))

    def __getitem__(self, indices):
        return self.source[indices]

    def fingerprint(self) -> str:
        return self.source.fingerprint()
