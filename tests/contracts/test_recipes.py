"""What every recipe promises, whichever files are in the registry: it builds, learns two steps, and does so again."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from sonde.core import registry
from sonde.testing import recipes as checks

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


def test_registry_is_not_empty():
    assert {"digits_cnn", "fashion_cnn", "table", "images", "tiny_mlp"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_option_has_type_and_help(name):
    assert registry.summary("recipes", name)
    checks.options_have_type_and_help(registry.load("recipes", name))


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"table", "images"}))
def test_the_model_is_counted_on_the_meta_device(name):
    checks.its_model_builds_on_the_meta_device(partial(checks.build, registry.load("recipes", name)))


@pytest.mark.parametrize("name", NAMES)
def test_two_steps_are_finite_and_the_same_again(name, own):
    if name in DOWNLOADED:
        home = Path(os.environ.get("SONDE_DATA", "")) / DOWNLOADED[name]
        if not os.environ.get("SONDE_DATA") or not home.is_dir():
            pytest.skip(f"SONDE_DATA holds no {DOWNLOADED[name]}")
    checks.two_steps_are_finite_and_reproducible(partial(checks.build, registry.load("recipes", name), **own.get(name, {})))
