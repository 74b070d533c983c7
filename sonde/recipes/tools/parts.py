"""Recipes for tables and images: the likelihood for a target, and a network with the right inputs and outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Generator, nn

from ...core.batch import Batch, Data
from ...core.recipe import Recipe
from ...data.catalog import load
from ...models.heads import head
from ...models.mlp import MLP
from ...nn.affine import Affine
from ...objectives.categorical import Categorical
from ...objectives.mixed import Mixed
from ...optim.build import optimizer
from ...optim.schedules import warmup_cosine


def table_predictor(data: Data, hidden: Sequence[int], dropout: float, lr: float, weight_decay: float, **fields: Any) -> Recipe:
    """A multi-layer perceptron for a table, trained by AdamW with the likelihood for labels, counts or values.

    Values are predicted in their own units: the network works on standardized values, and a variance equal to that of the
    targets makes the loss the same as if they were standardized.

    Args:
        fields: other fields of the recipe
    """
    first = data.train[:2]
    task = data.task if data.task in ("classes", "counts") else "real"
    end = head(task, len(data.classes) if task == "classes" else first.y[0].numel())
    model: Callable[[], nn.Module] = partial(MLP, widths=(first.x[0].numel(), *hidden, end.outputs), dropout=dropout)
    settings = {}
    if task == "real":
        y = data.train[:].y.double()
        spread = float(y.std()) or 1.0
        model, settings = partial(_in_target_units, model, float(y.mean()), spread), {"variance": spread**2}
    adamw = optimizer("adamw", lr=lr, weight_decay=weight_decay)
    return Recipe(**{"model": model, "data": data, "objective": end.likelihood(**settings), "optimizer": adamw, **fields})


def _in_target_units(network: Callable[[], nn.Module], mean: float, spread: float) -> nn.Module:
    return nn.Sequential(network(), Affine(mean, spread))


def image_classifier(
    model: Callable[[], nn.Module],
    data: Data | str,
    lr: float,
    weight_decay: float = 0.05,
    smoothing: float = 0.0,
    mixed: bool = False,
    **fields: Any,
) -> Recipe:
    """A classifier of images, trained by AdamW with linear warm-up and cosine decay to 0.

    Args:
        data: a name is one of a set with ten classes
        mixed: an image may be a mixture of two
        fields: other fields of the recipe
    """
    likelihood = Categorical(classes=10 if isinstance(data, str) else len(data.classes), smoothing=smoothing)
    usual = {"schedule": warmup_cosine(), "channels_last": True}
    return Recipe(
        model=model,
        data=partial(load, data) if isinstance(data, str) else data,
        objective=Mixed(likelihood) if mixed else likelihood,
        optimizer=optimizer("adamw", lr=lr, weight_decay=weight_decay),
        **{**usual, **fields},
    )


def apply_with_chance(change: Callable[[Batch, Generator], Batch], chance: float) -> Callable[[Batch, Generator], Batch]:
    """Apply an augmentation to each image with the given probability."""

    def apply(batch: Batch, generator: Generator) -> Batch:
        chosen = torch.rand(len(batch), 1, 1, 1, generator=generator) < chance
        return batch.replace(x=torch.where(chosen.to(batch.x.device), change(batch, generator).x, batch.x))

    return apply
