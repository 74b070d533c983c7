"""Small recipes for engine tests: quick to run, and together they use everything a step can do."""

from __future__ import annotations

import torch
from torch import nn

from sonde.core.batch import Data
from sonde.core.recipe import Recipe
from sonde.data.tensors import TensorSource
from sonde.objectives.categorical import Categorical
from sonde.objectives.gaussian import Gaussian
from sonde.optim.build import optimizer


class Tagger(nn.Module):
    """Tokens (B, T) -> tag scores (B, T, C)."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.embed, self.dropout, self.mix = nn.Embedding(11, 6), nn.Dropout(dropout), nn.Linear(6, 8)
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.dropout(self.norm(torch.tanh(self.mix(self.embed(tokens))))))


def tagger(dropout: float = 0.3, steps: int = 20, accumulate: int = 1, patience: int = 0) -> Recipe:
    """Padded sequences with a masked likelihood; 43 examples in batches of 10 leave an uneven last batch of 3."""
    rng = torch.Generator().manual_seed(7)
    tokens = torch.randint(11, (61, 5), generator=rng)
    lengths = torch.randint(1, 6, (61,), generator=rng)
    mask = torch.arange(5) < lengths[:, None]
    source = TensorSource(tokens, (tokens * 2 + 1) % 3, mask=mask)
    return Recipe(
        model=lambda: Tagger(dropout),
        data=Data(source.subset(torch.arange(43)), source.subset(torch.arange(43, 61)), name="tags", task="classes"),
        objective=Categorical(),
        optimizer=optimizer("adamw", lr=0.01, weight_decay=0.01),
        steps=steps,
        batch_size=10,
        clip_norm=1.0,
        accumulate=accumulate,
        patience=patience,
        log_every=1,
        evaluate_every=6,
    )


def line(lr: float = 0.05, steps: int = 40, width: int = 8, dropout: float = 0.0, patience: int = 0, seed: int = 0) -> Recipe:
    """A noisy sine and an MLP."""
    rng = torch.Generator().manual_seed(3)
    x = torch.rand(90, 1, generator=rng) * 4 - 2
    y = torch.sin(2 * x) + 0.1 * torch.randn(90, 1, generator=rng)
    source = TensorSource(x, y)
    return Recipe(
        model=lambda: nn.Sequential(nn.Linear(1, width), nn.Tanh(), nn.Dropout(dropout), nn.Linear(width, 1)),
        data=Data(*(source.subset(torch.arange(*part)) for part in ((0, 50), (50, 70), (70, 90))), name="line", task="values"),
        objective=Gaussian(),
        optimizer=optimizer("adam", lr=lr),
        steps=steps,
        batch_size=16,
        patience=patience,
        log_every=1,
        evaluate_every=5,
    )
