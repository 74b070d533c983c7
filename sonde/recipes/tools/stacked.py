"""Greedy layer-wise pre-training: a deep encoder learned without labels, one layer after another, each by an ordinary run.

    layer i is the encoder of a tied autoencoder that reconstructs the codes of layer i - 1;  then all of them, with a new
    output layer, are fine-tuned with labels: a recipe like any other, with `initialize=first_layers(learned)`

Hinton and others 2006; Bengio and others 2007; with noise on the input of each layer: Vincent and others 2008.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from ...core.batch import Batch, Data, Source
from ...core.errors import BadInput
from ...core.recipe import Recipe
from ...data import augment
from ...data.tensors import TensorSource
from ...models.autoencoder import AutoEncoder, dense
from ...objectives.reconstruction import Reconstruction
from ...optim.build import optimizer


def keep_clean(change: augment.Augmentation) -> augment.Augmentation:
    """An augmentation that corrupts x and keeps the original as `clean`, the target of `Reconstruction`."""

    def apply(batch: Batch, rng: torch.Generator) -> Batch:
        return change(batch, rng).replace(clean=batch.x)

    return apply


def greedy(
    data: Data, widths: Sequence[int], stage: Callable[[Data, int], Recipe], train: Callable[[Recipe, str], Any]
) -> list[AutoEncoder]:
    """One trained autoencoder for each width, each on the codes of the one before.

    Args:
        data: only its x is used
        stage: makes the recipe of one layer from its data and its width, such as `layer`
        train: trains a recipe under a name and returns its model: `lambda recipe, name: sonde.train(recipe, run=folder / name).model()`
    """
    autoencoders: list[AutoEncoder] = []
    for i, width in enumerate(widths, 1):
        autoencoders.append(train(stage(data, width), f"layer{i}"))
        codes: dict[str, Any] = {name: encode_source(autoencoders[-1], source) for name, source in data.splits.items()}
        data = replace(data, **codes)
    return autoencoders


def layer(data: Data, width: int, activation: str = "relu", noise: float = 0.0, lr: float = 1e-3, epochs: float = 10) -> Recipe:
    """The recipe of one layer: a tied autoencoder, denoising where noise is above 0.

    Args:
        noise: standard deviation relative to that of the input: codes between 0 and 1 tolerate less than an image
    """
    x = data.train[:].x
    return Recipe(
        model=partial(dense, tuple(x.shape[1:]), (width,), activation, tied=True),
        data=data,
        objective=Reconstruction(),
        optimizer=optimizer("adam", lr=lr),
        augment=keep_clean(augment.noise(noise * float(x.std()))) if noise else None,
        batch_size=64,
        epochs=epochs,
    )


@torch.no_grad()
def encode_source(model: AutoEncoder, source: Source) -> TensorSource:
    """The codes of a source as a source of its own; targets stay."""
    batch = source[:]
    return TensorSource(model.encode(batch.x), batch.get("y"), ids=batch.ids)


def first_layers(autoencoders: Sequence[AutoEncoder]) -> Callable[[nn.Module], None]:
    """An initializer that copies the encoders of one-layer autoencoders into the first dense layers of a network."""

    @torch.no_grad()
    def fill(model: nn.Module) -> None:
        theirs = [part for auto in autoencoders for part in auto.encoder.children() if isinstance(part, nn.Linear)]
        ours = [part for part in model.modules() if isinstance(part, nn.Linear)][: len(theirs)]
        if [part.weight.shape for part in ours] != [part.weight.shape for part in theirs]:
            sizes = [" ".join(f"{tuple(part.weight.shape)}" for part in parts) for parts in (theirs, ours)]
            raise BadInput(f"layers of {sizes[0]} do not fit into a network of {sizes[1]}", where="stacked", fix="use the same widths")
        for mine, part in zip(ours, theirs):
            mine.load_state_dict(part.state_dict())

    return fill
