"""A baseline for a network: logistic regression on the flattened inputs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...core.batch import Data, Source

STRENGTHS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
"""inverse strengths C of the penalty; the validation part chooses"""
MAX_EXAMPLES = 5000
"""training examples used"""


class LinearModel(NamedTuple):
    """The chosen linear model: its accuracies and its strength."""

    valid: float
    test: float
    strength: float
    examples: int

    def __str__(self) -> str:
        return (
            f"logistic regression on {self.examples:,} training examples has a test accuracy of {self.test:.4f} "
            f"(strength {self.strength:g}, chosen on the validation part)"
        )


def linear_baseline(data: Data) -> LinearModel:
    """Logistic regression with the strength that is best on the validation part, the smallest of equally good ones."""
    from sklearn.linear_model import LogisticRegression

    def part(source: Source, limit: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        batch = source[:limit]
        return batch.x.flatten(1).numpy(), batch.y.numpy()

    assert data.valid is not None and data.test is not None
    train, valid = part(data.train, MAX_EXAMPLES), part(data.valid)
    models = [LogisticRegression(C=strength, max_iter=1000).fit(*train) for strength in STRENGTHS]
    score, best = max(((model.score(*valid), -i) for i, model in enumerate(models)))
    return LinearModel(float(score), float(models[-best].score(*part(data.test))), STRENGTHS[-best], len(train[0]))
