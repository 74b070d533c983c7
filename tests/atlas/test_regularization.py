"""Chapter 9 made wrong on purpose: signs, scales and rules; each exhibit must notice."""

from __future__ import annotations

import pytest
import torch

from sonde.atlas import regularization
from sonde.data import augment
from sonde.lenses import diagnosis
from sonde.nn import dropout
from sonde.objectives import penalized
from sonde.optim.rules import proximal
from tests.atlas.mistakes import wrong


def test_reg_01_notices_a_gap_with_the_wrong_sign(monkeypatch) -> None:
    right = diagnosis.diagnose_losses
    monkeypatch.setattr(diagnosis, "diagnose_losses", lambda train, valid, start, floor: right(valid, train, start, floor))
    names = wrong("REG-01")
    assert "degree 15: regime" in names


def test_reg_01_notices_a_remedy_that_does_nothing(monkeypatch) -> None:
    monkeypatch.setattr(regularization, "Ridge", lambda alpha: regularization.LeastSquares())
    names = wrong("REG-01")
    assert "L2: validation error, over what it was" in names and "L1: validation error, over what it was" not in names


@pytest.mark.parametrize(("name", "switch"), [("L1", "decay"), ("early stopping", "stop"), ("dropout", "drop")])
def test_reg_01_notices_a_descent_without_its_remedy(monkeypatch, name: str, switch: str) -> None:
    right = regularization._descend_all
    monkeypatch.setattr(
        regularization, "_descend_all", lambda *args, **options: right(*args, **{key: options[key] for key in options if key != switch})
    )
    assert wrong("REG-01") == [f"{name}: training error rises by", f"{name}: validation error, over what it was"]


def test_reg_02_notices_a_penalty_without_its_half(monkeypatch) -> None:
    monkeypatch.setattr(regularization, "Penalized", lambda objective, l2, biases: penalized.Penalized(objective, 2 * l2, biases=biases))
    names = wrong("REG-02")
    assert "gradient of the penalty, against lambda W" in names


def test_reg_02_notices_a_decay_with_the_wrong_sign(monkeypatch) -> None:
    right = regularization._follow_steps
    monkeypatch.setattr(regularization, "_follow_steps", lambda *args, shrink=1.0: right(*args, shrink=2 - shrink))
    names = wrong("REG-02")
    assert "SGD: penalty in the loss, against W <- (1 - eta lambda) W - eta g" in names
    assert "gradient of the penalty, against lambda W" not in names


def test_reg_02_notices_adam_that_decays_like_adamw(monkeypatch) -> None:
    right = regularization.optimizer
    monkeypatch.setattr(regularization, "optimizer", lambda name, **settings: right("adamw" if name == "adam" else name, **settings))
    assert "Adam: weight decay of the rule is the penalty in the loss" in wrong("REG-02")


def test_reg_03_notices_a_threshold_that_lets_small_weights_through(monkeypatch) -> None:
    """A hard threshold: zeros as real, the other weights not shortened."""

    def hard(self, closure=None):
        self.inner.param_groups = [{**group, "weight_decay": 0.0} for group in self.param_groups]
        self.inner.state = self.state
        self.inner.step()
        with torch.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    p.mul_(p.abs() > group["lr"] * group["weight_decay"])

    monkeypatch.setattr(proximal.Proximal, "step", hard)
    names = wrong("REG-03")
    assert "proximal descent against the soft threshold, 29 strengths" in names and "exact zeros at each strength" not in names


def test_reg_03_notices_a_threshold_that_forgets_the_rate(monkeypatch) -> None:
    right = proximal.Proximal.step

    def unscaled(self, closure=None):
        for group in self.param_groups:
            group["weight_decay"] /= 3 * group["lr"]
        right(self)
        for group in self.param_groups:
            group["weight_decay"] *= 3 * group["lr"]

    monkeypatch.setattr(proximal.Proximal, "step", unscaled)
    assert "diabetes data: weights against scikit-learn" in wrong("REG-03")


def test_reg_04_notices_chances_that_are_mixed_up(monkeypatch) -> None:
    """C-08: p is the chance of being dropped, not of being kept."""
    right = dropout.F.dropout
    monkeypatch.setattr(dropout.F, "dropout", lambda x, p, *rest: right(x, 1 - p, *rest))
    assert "share of active units, 1 - p" in wrong("REG-04")


def test_reg_04_notices_a_scale_that_is_forgotten(monkeypatch) -> None:
    monkeypatch.setattr(regularization, "Dropout", lambda p=None, keep_prob=None, scale="train": dropout.Dropout(p, keep_prob, None))
    names = wrong("REG-04")
    assert "training mean, against evaluation" in names and "without division in training, evaluation multiplies by 1 - p" in names


def quick_reg_06(monkeypatch) -> None:
    monkeypatch.setattr(
        regularization, "_few_images", lambda exhibit, name, seed: 0.9 + 0.01 * seed + (0.02 + 0.001 * seed if name == "augmented" else 0)
    )


def test_reg_06_notices_a_flip_upside_down(monkeypatch) -> None:
    quick_reg_06(monkeypatch)
    monkeypatch.setattr(augment, "flip", lambda chance=0.5: lambda batch, generator: batch.replace(x=batch.x.flip(-2)))
    assert wrong("REG-06") == ["flip, against reversed columns"]


def test_reg_06_notices_a_crop_that_repeats_the_border(monkeypatch) -> None:
    quick_reg_06(monkeypatch)
    monkeypatch.setattr(augment, "crop", lambda size, padding: augment.shift(padding))
    assert wrong("REG-06") == ["crop: images that are one of the nine windows"]


def test_reg_06_notices_labels_that_move(monkeypatch) -> None:
    quick_reg_06(monkeypatch)
    right = augment.noise
    monkeypatch.setattr(augment, "noise", lambda std: lambda batch, generator: right(std)(batch, generator).replace(y=batch.y.flip(0)))
    assert wrong("REG-06") == ["noise: labels", "all: labels"]


def test_reg_06_notices_augmentation_that_does_not_help(monkeypatch) -> None:
    monkeypatch.setattr(regularization, "_few_images", lambda exhibit, name, seed: 0.9 + 0.01 * seed)
    assert wrong("REG-06") == ["200 images: gain in validation accuracy, mean"]


def test_reg_08_notices_a_start_away_from_zero(monkeypatch) -> None:
    right = regularization._descend
    monkeypatch.setattr(
        regularization, "_descend", lambda exhibit, x, y, starts, *args, **options: right(exhibit, x, y, starts + 0.1, *args, **options)
    )
    names = wrong("REG-08")
    assert "gradient descent from 0, against the pseudo-inverse" in names and "its training error" not in names
