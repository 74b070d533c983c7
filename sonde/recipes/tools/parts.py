"""What several recipes share: the likelihood that suits a data set, and a network of the right ends for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Generator, nn

from ...core.batch import Batch, Data
from ...models.mlp import MLP
from ...nn.affine import Affine
from ...objectives.categorical import Categorical
from ...objectives.gaussian import Gaussian
from ...objectives.poisson import Poisson


def dense(data: Data, hidden: Sequence[int], dropout: float = 0.0) -> tuple[Callable[[], nn.Module], Any]:
    """A multi-layer perceptron for a table and its likelihood: labels, counts or values, as the target is.

    Values are answered in their own units: the network works on standard numbers, and a variance equal to that of the
    targets makes the loss the same as if they had been standardized.
    """
    start = data.train[:2].x[0].numel()
    if data.task == "classes":
        widths = (start, *hidden, len(data.classes))
        return partial(MLP, widths=widths, dropout=dropout), Categorical(len(data.classes))
    y = data.train[:].y.double()
    outputs = 1 if y.ndim == 1 else y[0].numel()
    network = partial(MLP, widths=(start, *hidden, outputs), dropout=dropout)
    if data.task == "counts":
        return network, Poisson()
    spread = float(y.std()) or 1.0
    return partial(_in_target_units, network, float(y.mean()), spread), Gaussian(variance=spread**2)


def _in_target_units(network: Callable[[], nn.Module], mean: float, spread: float) -> nn.Module:
    return nn.Sequential(network(), Affine(mean, spread))


def apply_with_chance(change: Callable[[Batch, Generator], Batch], chance: float) -> Callable[[Batch, Generator], Batch]:
    """An augmentation of images that reaches each of them with the given chance."""

    def apply(batch: Batch, generator: Generator) -> Batch:
        reached = torch.rand(len(batch), 1, 1, 1, generator=generator) < chance
        return batch.replace(x=torch.where(reached.to(batch.x.device), change(batch, generator).x, batch.x))

    return apply
