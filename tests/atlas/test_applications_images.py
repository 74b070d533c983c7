"""Mistakes about applications to images, made on purpose, that turn their rows red."""

from __future__ import annotations

from sonde.atlas import _application_images
from tests.atlas.mistakes import Mistakes, two_seeds


def untrained(monkeypatch):
    """Training takes two steps of one seed and a copy: for mistakes that show without it."""
    right = _application_images.accuracies
    two_seeds(monkeypatch)
    monkeypatch.setattr(_application_images, "accuracies", lambda *args, **how: right(*args, **{**how, "steps": 2}))


def train_a_tenth(monkeypatch):
    right = _application_images.accuracies
    monkeypatch.setattr(_application_images, "accuracies", lambda *args, steps, **how: right(*args, steps=steps // 10, **how))


mistakes = Mistakes()

mistakes.add("APP-01", "networks that learn nothing", red=("CNN, test accuracy", "MLP on flattened images"), setup=untrained)
mistakes.add("APP-01", "networks that train a tenth as long", red="CNN, test accuracy").call(train_a_tenth)
mistakes.add("APP-02", "shortcuts that are none", red=("residual over plain", "residual, 34 layers"), setup=untrained).replace(
    _application_images, "ResNet", lambda right, *args, skip, **more: right(*args, skip=0.0, **more)
)
mistakes.add(
    "APP-02",
    "networks that learn less than peers of the pixels",
    red=("over scikit-learn's nearest neighbors", "over scikit-learn's linear classifier"),
    setup=untrained,
)
mistakes.add("APP-02", "networks that train a tenth as long", red="residual, 34 layers").call(train_a_tenth)
mistakes.add("APP-03", "networks that learn nothing", red="CNN: test accuracy", setup=untrained)
mistakes.add("APP-03", "networks that train a tenth as long", red="CNN: test accuracy").call(train_a_tenth)
mistakes.add("APP-09", "a head that can be negative", red="positive head: prices below 0").replace(
    _application_images, "head", lambda right, task: right("real")
).replace(_application_images, "_features", lambda exhibit: (0.5, [0.9, 0.9], 0.9))


@mistakes.each
def test_notices(mistake, monkeypatch):
    mistake.assert_noticed(monkeypatch)
