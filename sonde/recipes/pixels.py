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
"""test images for the final report; their likelihood is computed once for every label"""


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
    """Learn p(next pixel | previous pixels, label); at the end log p(x) on the test split, labels by Bayes' rule, and samples.

    Args:
        data: gray images by name, or your own (./mine.py, or a folder with a folder of images per class);
            digits come with scikit-learn; mnist and fashion_mnist, of 784 pixels, take long and need $SONDE_DATA or internet access
        levels: number of gray values of a pixel; by default as many as the data have if at most 32 (17 in the digits), else 4
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
    n_levels = levels or (present if 2 <= (present := pixel_levels(gray)) <= 32 else 4)
    images = quantize_levels(gray, n_levels)
    height, image_width = images.train[:1].x.shape[1:]
    return Recipe(
        model=partial(Pixels, (height, image_width), n_levels, len(images.classes), width, depth, mixer, dropout),
        data=replace(images, task="other", classes=()),  # the targets are pixels, not labels
        objective=Categorical(n_levels),
        optimizer=optimizer("adamw", lr=lr, weight_decay=0.05),
        schedule=warmup_cosine(),
        clip_norm=1.0,
        batch_size=batch_size,
        epochs=epochs,
        evaluate_batch_size=128,
        callbacks=(FinalReport(partial(report, images)),),
    )


def quantize_levels(data: Data, levels: int) -> Data:
    """Images as integer gray levels (N, H, W), which are both input and target; the class is in the field `label`."""

    def quantize(batch: Batch) -> TensorSource:
        x = quantize_pixels(batch.x, levels)
        return TensorSource(x, x, label=batch.y)

    splits: dict[str, Any] = {name: quantize(source[:]) for name, source in data.splits.items()}
    return replace(data, **splits)


@torch.no_grad()
def report(data: Data, model: Pixels, folder: Path) -> Mapping[str, str]:
    """Log-likelihood of test images, a baseline with independent pixels, accuracy by Bayes' rule, and samples of each class."""
    assert data.test is not None
    model.eval()
    test, n_classes = data.test[:MAX_TEST], len(data.classes)
    log_probs = torch.stack([log_prob_in_chunks(model, test.x, torch.full_like(test.label, c)) for c in range(n_classes)], 1)
    log_prob = float(log_probs.gather(1, test.label.unsqueeze(1)).mean())
    baseline = independent_log_prob(data, test, model.levels)
    accuracy = float((log_probs.argmax(1) == test.label).double().mean())
    labels = torch.arange(n_classes).repeat_interleave(IMAGES_PER_ROW)
    samples = model.sample(len(labels), labels, generator(0, "report")).unsqueeze(1) / (model.levels - 1)
    rows = zip(data.classes, samples.split(IMAGES_PER_ROW))
    save_image_rows(folder, "samples", "Sampled pixel by pixel", rows, "Each row is conditioned on its label; samples are not selected.")
    return {
        "log p(x)": f"{log_prob:.2f} nats per image, {_bits(log_prob, test.x):.3f} bits per pixel ({len(test):,} test images)",
        "independent pixels": f"{baseline:.2f} nats, {_bits(baseline, test.x):.3f} bits: frequency of each level by position",
        "labels": f"{accuracy:.4f} accuracy of the label with the largest p(x | label): Bayes' rule with equal priors",
    }


def log_prob_in_chunks(model: Pixels, x: Tensor, label: Tensor) -> Tensor:
    """log p(x | label) of each image (B,), in chunks that fit into memory."""
    return torch.cat([model.log_prob(*chunk) for chunk in zip(x.split(128), label.split(128))])


def independent_log_prob(data: Data, test: Batch, levels: int) -> float:
    """Baseline: mean log p(x | label) if pixels were independent given the label, from counts of levels; 0.1 is added to every count."""
    train = data.train[:]
    counts = torch.full((len(data.classes), train.x[0].numel(), levels), 0.1, dtype=torch.float64)
    for level in range(levels):
        counts[..., level].index_add_(0, train.label, (train.x == level).flatten(1).double())
    log_probs = (counts / counts.sum(-1, keepdim=True)).log()
    return float(log_probs[test.label].gather(-1, test.x.flatten(1).unsqueeze(-1)).sum((1, 2)).mean())


def _bits(nats: float, x: Tensor) -> float:
    """Bits per pixel, from the log-probability of a whole image in nats."""
    return -nats / x[0].numel() / math.log(2)
