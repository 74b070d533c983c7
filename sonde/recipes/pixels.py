"""An autoregressive model of small images, pixel by pixel: exact likelihoods, and samples of each class."""

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
from ..models.pixels import Pixels, quantize_pixels
from ..objectives.categorical import Categorical
from ..optim.build import optimizer
from ..optim.schedules import warmup_cosine
from .tools.final_report import FinalReport
from .tools.samples import pixel_levels
from .tools.sequence import require_causal
from .tools.sheets import IMAGES_PER_ROW, save_image_rows

MAX_TEST = 500
"""test images whose likelihood is computed under every label"""


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
        mixer: sequence mixer by name (`sonde list mixers`), with its options: "attention heads=4"
        width: model dimension
        depth: blocks
        dropout: dropout probability
        batch_size: images per update
        lr: peak learning rate: linear warm-up, then cosine decay to 0
        epochs: passes over the training data
    """
    require_causal(mixer, width)
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
    """Gray images as integer levels (N, H, W), as input and target, with their labels as `label`."""

    def part(batch: Batch) -> TensorSource:
        x = quantize_pixels(batch.x, levels)
        return TensorSource(x, x, label=batch.y)

    parts: dict[str, Any] = {name: part(source[:]) for name, source in data.splits.items()}
    return replace(data, **parts)


@torch.no_grad()
def report(data: Data, model: Pixels, folder: Path) -> Mapping[str, str]:
    """Nats and bits of the test part, those of independent pixels for comparison, and samples of each class."""
    assert data.test is not None
    model.eval()
    test, kinds = data.test[:MAX_TEST], len(data.classes)
    every = torch.stack([each_log_prob(model, test.x, torch.full_like(test.label, kind)) for kind in range(kinds)], 1)
    log_prob = float(every.gather(1, test.label.unsqueeze(1)).mean())
    baseline = independent(data, test, model.levels)
    right = float((every.argmax(1) == test.label).double().mean())
    labels = torch.arange(kinds).repeat_interleave(IMAGES_PER_ROW)
    drawn = model.sample(len(labels), labels, generator(0, "report")).unsqueeze(1) / (model.levels - 1)
    rows = zip(data.classes, drawn.split(IMAGES_PER_ROW))
    save_image_rows(folder, "samples", "Drawn pixel by pixel", rows, "Each row is conditioned on its label; nothing is chosen by hand.")
    return {
        "log p(x)": f"{log_prob:.2f} nats per image, {_bits(log_prob, test.x):.3f} bits per pixel ({len(test):,} test images)",
        "independent pixels": f"{baseline:.2f} nats, {_bits(baseline, test.x):.3f} bits: by the frequency of each level at its position",
        "labels": f"{right:.4f} accuracy of the label with the largest p(x; label), by Bayes' rule",
    }


def each_log_prob(model: Pixels, x: Tensor, label: Tensor) -> Tensor:
    """(B,) in chunks that fit into memory."""
    return torch.cat([model.log_prob(*part) for part in zip(x.split(128), label.split(128))])


def independent(data: Data, test: Batch, levels: int) -> float:
    """Mean log-probability of independent pixels given position and label; a tenth is added to every count."""
    train = data.train[:]
    counts = torch.full((len(data.classes), train.x[0].numel(), levels), 0.1, dtype=torch.float64)
    for level in range(levels):
        counts[..., level].index_add_(0, train.label, (train.x == level).flatten(1).double())
    log_probs = (counts / counts.sum(-1, keepdim=True)).log()
    return float(log_probs[test.label].gather(-1, test.x.flatten(1).unsqueeze(-1)).sum((1, 2)).mean())


def _bits(nats: float, x: Tensor) -> float:
    """Bits per pixel from the log-probability of an image."""
    return -nats / x[0].numel() / math.log(2)
