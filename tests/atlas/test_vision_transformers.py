"""Mistakes about vision transformers, made on purpose, that turn chapter 20 red."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, PredefinedSplit

from sonde.atlas import vision_transformers
from tests.atlas.mistakes import any_of, two_seeds, wrong


def test_vit_01_notices_patches_read_column_by_column(monkeypatch):
    right = vision_transformers.patchify
    monkeypatch.setattr(vision_transformers, "patchify", lambda x, patch: right(x.mT, patch))
    names = wrong("VIT-01")
    assert any_of(names, "cut by hand") and any_of(names, "against the linear map") and any_of(names, "put together")


def test_vit_01_notices_a_patch_with_its_channels_last(monkeypatch):
    right = vision_transformers.patchify
    monkeypatch.setattr(vision_transformers, "patchify", lambda x, patch: right(x, patch).unflatten(2, (x.shape[1], -1)).mT.flatten(2))
    assert any_of(wrong("VIT-01"), "against the linear map")


def test_vit_02_chooses_by_validation_and_tests_once():
    """The linear model is the best of its kind on the validation part, by scikit-learn's own search; no network sees a test image."""
    data = vision_transformers.load("digits", seed=1)
    (x, y), (held, labels) = ((part.x.flatten(1).numpy(), part.y.numpy()) for part in (data.train[:], data.valid[:]))
    parts = PredefinedSplit([-1] * len(y) + [0] * len(labels))
    search = GridSearchCV(LogisticRegression(max_iter=2000), {"C": list(vision_transformers.PENALTIES)}, cv=parts, refit=False)
    search.fit(np.concatenate([x, held]), np.concatenate([y, labels]))
    model = vision_transformers._linear(data)
    assert search.best_params_ == {"C": model.C}
    assert np.array_equal(model.coef_, LogisticRegression(C=model.C, max_iter=2000).fit(x, y).coef_), "of the training images alone"
    assert list(vision_transformers._digits(data).data.splits) == ["train"]


@pytest.mark.slow  # trains, if only for a moment, three times
def test_vit_02_notices_a_model_that_hardly_learned_and_a_missing_token(monkeypatch):
    monkeypatch.setattr(vision_transformers, "EPOCHS", 0.1)
    right = vision_transformers.ViT.pooled
    monkeypatch.setattr(vision_transformers.ViT, "features", lambda self, x: self.stack(self.embed(x)[:, 1:])[0])
    monkeypatch.setattr(vision_transformers.ViT, "pooled", lambda self, x: right(self, x))
    names = wrong("VIT-02")
    assert any_of(names, "tokens in its encoder") and any_of(names, "above scikit-learn's")


@pytest.mark.slow
def test_vit_03_notices_pixels_that_see_themselves(monkeypatch):
    """A model told the answer saves all bits on paper, and its probabilities add up to something else."""
    monkeypatch.setattr(vision_transformers, "STEPS", 2)
    right = vision_transformers.Pixels.forward

    def leaky(self, x, label=None):
        return right(self, x, label) + 20 * torch.nn.functional.one_hot(x, self.levels)

    monkeypatch.setattr(vision_transformers.Pixels, "forward", leaky)
    assert any_of(wrong("VIT-03"), "add up to")


@pytest.mark.slow
def test_vit_03_notices_samples_of_another_digit(monkeypatch):
    two_seeds(monkeypatch)
    monkeypatch.setattr(vision_transformers, "STEPS", 2)
    names = wrong("VIT-03")
    assert any_of(names, "the digit asked for") and any_of(names, "bits per pixel")
