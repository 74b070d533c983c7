"""Mistakes about applications to images, made on purpose, that turn their rows red."""

from __future__ import annotations

import pytest

from sonde.atlas import _application_images
from tests.atlas.mistakes import any_of, two_seeds, wrong


@pytest.fixture
def untrained(monkeypatch):
    """Training takes two steps of one seed and a copy: for mistakes that show without it."""
    right = _application_images.accuracies
    two_seeds(monkeypatch)
    monkeypatch.setattr(_application_images, "accuracies", lambda *args, **how: right(*args, **{**how, "steps": 2}))


def test_app_01_and_03_notice_networks_that_learn_nothing(untrained):
    names = wrong("APP-01")
    assert any_of(names, "CNN, test accuracy") and any_of(names, "MLP on flattened images")
    assert any_of(wrong("APP-03"), "CNN: test accuracy")


def test_app_02_notices_shortcuts_that_are_none(monkeypatch, untrained):
    right = _application_images.ResNet
    monkeypatch.setattr(_application_images, "ResNet", lambda *args, skip, **more: right(*args, skip=0.0, **more))
    names = wrong("APP-02")
    assert any_of(names, "residual over plain") and any_of(names, "residual, 34 layers")


def test_app_02_notices_networks_that_learn_less_than_peers_of_the_pixels(untrained):
    names = wrong("APP-02")
    assert any_of(names, "over scikit-learn's nearest neighbors") and any_of(names, "over scikit-learn's linear classifier")


@pytest.mark.parametrize(
    ("row", "name"), [("APP-01", "CNN, test accuracy"), ("APP-02", "residual, 34 layers"), ("APP-03", "CNN: test accuracy")]
)
def test_notices_networks_that_train_a_tenth_as_long(row, name, monkeypatch):
    right = _application_images.accuracies
    monkeypatch.setattr(_application_images, "accuracies", lambda *args, steps, **how: right(*args, steps=steps // 10, **how))
    assert any_of(wrong(row), name)


def test_app_09_notices_a_head_that_can_be_negative(monkeypatch):
    right = _application_images.head
    monkeypatch.setattr(_application_images, "head", lambda task: right("real"))
    monkeypatch.setattr(_application_images, "_features", lambda exhibit: (0.5, [0.9, 0.9], 0.9))
    names = wrong("APP-09")
    assert any_of(names, "positive head: prices below 0")
