"""Mistakes about vision transformers, made on purpose, that turn chapter 20 red."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, PredefinedSplit

from sonde.atlas import vision_transformers
from tests.atlas.mistakes import Mistakes, two_seeds

mistakes = Mistakes()

mistakes.add("VIT-01", "patches read column by column", red=("cut by hand", "against the linear map", "put together")).replace(
    vision_transformers, "patchify", lambda right, x, patch: right(x.mT, patch)
)
mistakes.add("VIT-01", "a patch with its channels last", red="against the linear map").replace(
    vision_transformers, "patchify", lambda right, x, patch: right(x, patch).unflatten(2, (x.shape[1], -1)).mT.flatten(2)
)
mistakes.add(
    "VIT-02", "a model that hardly learned and a missing token", red=("tokens in its encoder", "above scikit-learn's"), slow=True
).replace(vision_transformers, "EPOCHS", 0.1).replace(
    vision_transformers.ViT, "features", lambda self, x: self.stack(self.embed(x)[:, 1:])[0]
).replace(vision_transformers.ViT, "pool_features", lambda right, self, x: right(self, x))
mistakes.add("VIT-03", "samples of another digit", red=("the digit asked for", "bits per pixel"), setup=two_seeds, slow=True).replace(
    vision_transformers, "STEPS", 2
)
# A model that is given the answer saves all bits, but its probabilities do not sum to 1.
mistakes.add("VIT-03", "pixels that see themselves", red="add up to", slow=True).replace(vision_transformers, "STEPS", 2).replace(
    vision_transformers.Pixels,
    "forward",
    lambda right, self, x, label=None: right(self, x, label) + 20 * torch.nn.functional.one_hot(x, self.levels),
)


@mistakes.each
def test_notices(mistake, monkeypatch):
    mistake.assert_noticed(monkeypatch)


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
