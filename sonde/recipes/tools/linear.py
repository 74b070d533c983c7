"""The simple thing beside a network: logistic regression on the bare numbers of an example."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...core.batch import Data, Source

STRENGTHS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
"""of the fit against the penalty on the weights; the validation part chooses"""
MOST = 5000
"""training examples that are read"""


class LinearModel(NamedTuple):
    """A linear model that was chosen: shares of right answers, and its strength."""

    valid: float
    test: float
    strength: float
    examples: int

    def __str__(self) -> str:
        return (
            f"logistic regression on {self.examples:,} training examples is right in {self.test:.4f} of the test part "
            f"(strength {self.strength:g}, chosen on the validation part)"
        )


def linear(data: Data) -> LinearModel:
    """Logistic regression of the strength that does best on the validation part; the least of equally good ones."""
    from sklearn.linear_model import LogisticRegression

    def part(source: Source, most: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        batch = source[:most]
        return batch.x.flatten(1).numpy(), batch.y.numpy()

    assert data.valid is not None and data.test is not None
    train, valid = part(data.train, MOST), part(data.valid)
    models = [LogisticRegression(C=strength, max_iter=1000).fit(*train) for strength in STRENGTHS]
    score, best = max(((model.score(*valid), -i) for i, model in enumerate(models)))
    return LinearModel(float(score), float(models[-best].score(*part(data.test))), STRENGTHS[-best], len(train[0]))
