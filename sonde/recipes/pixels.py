"""An autoregressive model of small pictures: one gray pixel after another, an exact likelihood, and digits drawn on request."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor

from ..core.batch import Batch, Data
from ..core.options import Range
from ..core.recipe import Recipe
from ..core.seeds import generator
from ..data.catalog import load_kind
from ..data.tensors import TensorSource
from ..models.pixels import Pixels, levels_of
from ..objectives.categorical import Categorical
from ..optim.build import optimizer
from ..optim.schedules import warmup_cosine
from .tools.samples import pixel_levels
from .tools.sheets import ACROSS, sheet
from .tools.shown import FinalReport, causal

MOST = 500
"""test pictures whose likelihood is told for every label"""


def recipe(
    data: str = "digits",
    levels: Annotated[int, Range(2, 256)] | None = None,
    mixer: str = "attention",
    width: Annotated[int, Range(1, 4096)] = 64,
    depth: Annotated[int, Range(1, 96)] = 2,
    dropout: Annotated[float, Range(least=0, below=1)] = 0.2,
    batch_size: Annotated[int, Range(least=1)] = 32,
    lr: Annotated[float, Range(above=0)] = 3e-3,
    epochs: Annotated[float, Range(above=0)] = 25,
    seed: int = 0,
) -> Recipe:
    """Learn p(next pixel; pixels before, label); at the end log p(x) of the test part, labels by Bayes' rule, and samples.

    Args:
        data: gray images by name, or your own (./mine.py, or a folder with a folder of images per class);
            digits come with scikit-learn; mnist and fashion_mnist, of 784 pixels, take long and need $SONDE_DATA or internet access
        levels: gray values of a pixel; by default all where there are at most 32 (17 in the digits), else 4
        mixer: what carries information from pixel to pixel; its options may follow: "attention heads=4"
        width: numbers per pixel inside
        depth: blocks
        dropout: dropout probability
        batch_size: pictures per update
        lr: peak learning rate: linear warm-up, then cosine decay to 0
        epochs: passes over the training data
    """
    causal(mixer, width)
    gray = load_kind("images", data, seed, standardize=False)
    grays = levels or (present if 2 <= (present := pixel_levels(gray)) <= 32 else 4)
    parts = quantize_levels(gray, grays)
    high, wide = parts.train[:1].x.shape[1:]
    return Recipe(
        model=partial(Pixels, (high, wide), grays, len(parts.classes), width, depth, mixer, dropout),
        data=replace(parts, task="other", classes=()),
        objective=Categorical(grays),
        optimizer=optimizer("adamw", lr=lr, weight_decay=0.05),
        schedule=warmup_cosine(),
        clip_norm=1.0,
        batch_size=batch_size,
        epochs=epochs,
        evaluate_batch_size=128,
        callbacks=(FinalReport(partial(report, parts)),),
    )


def quantize_levels(data: Data, levels: int) -> Data:
    """Gray pictures as whole numbers (N, H, W), input and target at once, with their labels beside."""

    def part(batch: Batch) -> TensorSource:
        x = levels_of(batch.x, levels)
        return TensorSource(x, x, label=batch.y)

    parts: dict[str, Any] = {name: part(source[:]) for name, source in data.splits.items()}
    return replace(data, **parts)


@torch.no_grad()
def report(data: Data, model: Pixels, folder: Path) -> Mapping[str, str]:
    """Nats and bits of the test part beside pixels that do not look at each other, and pictures of each class."""
    assert data.test is not None
    model.eval()
    test, kinds = data.test[:MOST], len(data.classes)
    every = torch.stack([each_log_prob(model, test.x, torch.full_like(test.label, kind)) for kind in range(kinds)], 1)
    log_prob = float(every.gather(1, test.label.unsqueeze(1)).mean())
    apart = independent(data, test, model.levels)
    right = float((every.argmax(1) == test.label).double().mean())
    labels = torch.arange(kinds).repeat_interleave(ACROSS)
    drawn = model.sample(len(labels), labels, generator(0, "report")).unsqueeze(1) / (model.levels - 1)
    rows = zip(data.classes, drawn.split(ACROSS))
    sheet(folder, "samples", "Drawn pixel by pixel", rows, "Each row was asked for by its label; nothing is chosen by hand.")
    return {
        "log p(x)": f"{log_prob:.2f} nats a picture, {_bits(log_prob, test.x):.3f} bits a pixel ({len(test):,} test pictures)",
        "independent pixels": f"{apart:.2f} nats, {_bits(apart, test.x):.3f} bits: each drawn by how often its levels came at its place",
        "labels": f"{right:.4f} of them right by Bayes' rule: where p(x; label) is largest",
    }


def each_log_prob(model: Pixels, x: Tensor, label: Tensor) -> Tensor:
    """(B,) in pieces that fit into memory."""
    return torch.cat([model.log_prob(*part) for part in zip(x.split(128), label.split(128))])


def independent(data: Data, test: Batch, levels: int) -> float:
    """Mean log-probability where a pixel knows its place and the label, but no other pixel; a tenth is added to every count."""
    train = data.train[:]
    often = torch.full((len(data.classes), train.x[0].numel(), levels), 0.1, dtype=torch.float64)
    for level in range(levels):
        often[..., level].index_add_(0, train.label, (train.x == level).flatten(1).double())
    chances = (often / often.sum(-1, keepdim=True)).log()
    return float(chances[test.label].gather(-1, test.x.flatten(1).unsqueeze(-1)).sum((1, 2)).mean())


def _bits(nats: float, x: Tensor) -> float:
    """Bits a pixel from the log-probability of a picture."""
    return -nats / x[0].numel() / math.log(2)
