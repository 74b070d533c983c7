"""A linear baseline to compare a network with: scikit-learn's logistic regression on the flattened inputs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...core.batch import Data, Source

C_GRID = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
"""values of C, the inverse of the regularization strength, to choose from on the validation split"""
MAX_EXAMPLES = 5000
"""the first so many training examples are used"""


class LinearModel(NamedTuple):
    """Accuracies of the chosen linear model, its C, and the number of training examples."""

    valid: float
    test: float
    C: float
    examples: int

    def __str__(self) -> str:
        return (
            f"logistic regression on {self.examples:,} training examples has a test accuracy of {self.test:.4f} "
            f"(C = {self.C:g}, chosen on the validation split)"
        )


def linear_baseline(data: Data) -> LinearModel:
    """Fit one model for each C and keep the one with the best validation accuracy; among equals the smallest C.

    Args:
        data: images or other tensors with labels, with a validation and a test split
    """
    from sklearn.linear_model import LogisticRegression

    def arrays(source: Source, limit: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        batch = source[:limit]
        return batch.x.flatten(1).numpy(), batch.y.numpy()

    assert data.valid is not None and data.test is not None
    train, valid = arrays(data.train, MAX_EXAMPLES), arrays(data.valid)
    models = [LogisticRegression(C=C, max_iter=1000).fit(*train) for C in C_GRID]
    scores = [float(model.score(*valid)) for model in models]
    best = scores.index(max(scores))  # the first of equals
    return LinearModel(scores[best], float(models[best].score(*arrays(data.test))), C_GRID[best], len(train[0]))
