"""Greedy layer-wise pre-training without labels, then fine-tuning with few; compared with the same network from random weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from ..core.batch import Data
from ..core.options import Range
from ..core.recipe import Recipe
from ..core.seeds import generator
from ..data.catalog import load_kind
from ..data.tensors import TensorSource
from ..models.autoencoder import AutoEncoder
from ..models.mlp import MLP
from ..objectives.categorical import Categorical
from ..optim.build import optimizer
from ..runs.layout import RunDirectory
from .tools.final_report import FinalReport
from .tools.linear import linear_baseline
from .tools.sheets import IMAGES_PER_ROW, save_image_rows
from .tools.stacked import first_layers, greedy, layer


def recipe(
    data: str = "digits",
    widths: Annotated[tuple[int, ...], Range(1, 8192)] = (100, 100, 100, 100, 100),
    activation: Literal["relu", "sigmoid", "tanh"] = "relu",
    noise: Annotated[float, Range(least=0)] = 0.5,
    labels: Annotated[int, Range(1, 10_000)] = 10,
    passes: Annotated[float, Range(above=0)] = 40,
    batch_size: Annotated[int, Range(least=1)] = 50,
    lr: Annotated[float, Range(above=0)] = 3e-3,
    steps: Annotated[int, Range(least=1)] = 150,
    seed: int = 0,
) -> Recipe:
    """Pre-train the layers of a network one by one on images without labels; fine-tune it on a few with labels.

    Each layer is the encoder of an autoencoder that reconstructs the output of the layers before it.  At the end the same network
    is trained from random weights, with the same labels and steps, for comparison.

    Args:
        data: gray images by name, or your own (./mine.py, or a folder with a folder of images per class);
            digits come with scikit-learn; mnist and fashion_mnist need a data folder ($SONDE_DATA) or internet access
        widths: widths of the hidden layers
        activation: activation function of the hidden layers
        noise: standard deviation of the noise on the input of each autoencoder, relative to that of the input; 0 is none
        labels: labeled training images per class; the others are used without their labels
        passes: epochs of pre-training for each layer
        batch_size: labeled images per update
        lr: learning rate of all stages
        steps: updates of fine-tuning
    """
    whole = load_kind("images", data, seed)
    few = whole.train[:][sample_per_class(whole.train[:].y, labels, seed)]
    parts = replace(whole, train=TensorSource(few.x, few.y))
    start = few.x[0].numel()
    stage = partial(layer, activation=activation, noise=noise, lr=lr, epochs=passes)
    bare = Recipe(
        model=partial(MLP, (start, *widths, len(whole.classes)), activation),
        data=parts,
        objective=Categorical(len(whole.classes)),
        optimizer=optimizer("adam", lr=lr),
        batch_size=batch_size,
        steps=steps,
        evaluate_every=max(steps // 10, 1),
    )
    autoencoders: list[AutoEncoder] = []
    begin = partial(pretrain, Data(TensorSource(whole.train[:].x), name=whole.name), widths, stage, seed, autoencoders)
    return bare.replace(initialize=begin, callbacks=(FinalReport(partial(report, bare, whole, autoencoders, seed)),))


def sample_per_class(y: Tensor, count: int, seed: int) -> Tensor:
    """Indices of `count` random examples of each class."""
    order = torch.randperm(len(y), generator=generator(seed, "few labels"))
    return torch.cat([order[y[order] == label][:count] for label in range(int(y.max()) + 1)])


def pretrain(data: Data, widths: Sequence[int], stage: Any, seed: int, autoencoders: list[AutoEncoder], model: nn.Module) -> None:
    """Pre-train the layers one by one and copy them into the network; the autoencoders are left in `autoencoders`."""
    with TemporaryDirectory() as folder:
        autoencoders[:] = greedy(data, widths, stage, partial(_model, folder, seed))
    first_layers(autoencoders)(model)


def report(bare: Recipe, data: Data, autoencoders: Sequence[AutoEncoder], seed: int, model: nn.Module, folder: Path) -> Mapping[str, str]:
    """The same network from random weights, a linear model with the same labels, and reconstructions from each layer."""
    assert data.test is not None
    with TemporaryDirectory() as other:
        scratch = _train(other, seed, bare, "scratch").result()["metrics"]["test/accuracy"]
    rows = reconstruct_by_layer(autoencoders, data.test[:IMAGES_PER_ROW].x)
    save_image_rows(folder, "layers", "Reconstructed from each layer", rows, "Test images through the layers before fine-tuning.")
    return {
        "from scratch": f"the same network from random weights has a test accuracy of {scratch:.4f}",
        "linear model": str(linear_baseline(bare.build_data())),
    }


@torch.no_grad()
def reconstruct_by_layer(autoencoders: Sequence[AutoEncoder], x: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Names and images: the input, then its reconstructions from 1, 2, ... layers, all on the gray scale of the input."""
    low, high = x.amin(), x.amax()
    yield "test images", (x - low) / (high - low)
    code = x
    for depth, part in enumerate(autoencoders, 1):
        code = part.encode(code)
        back = code
        for below in autoencoders[depth - 1 :: -1]:
            back = below.decode(back)
        yield f"through {depth} layer{'s' if depth > 1 else ''}", (back - low) / (high - low)


def _train(folder: str, seed: int, recipe: Recipe, name: str) -> RunDirectory:
    """Train a recipe in a run of its own."""
    from ..engine.execute import train_quietly

    with torch.random.fork_rng():  # the outer run keeps its random state
        return train_quietly(recipe, Path(folder) / name, seed=seed, threads=torch.get_num_threads())


def _model(folder: str, seed: int, recipe: Recipe, name: str) -> Any:
    """Train a recipe and return its model."""
    from ..engine.saved import open_model

    return open_model(_train(folder, seed, recipe, name).path, recipe)
