"""Small subjects for `tiny()`: untrained models with a batch, made without touching global random state."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ...core.batch import Batch, Data, call_model
from ...core.reading import Subject
from ...core.terms import Terms
from ...models import vae
from ...models.language_model import LanguageModel
from ...models.seq2seq import Seq2Seq
from .readonly import preserve_state


class Nll:
    """The negative log-likelihood of classes or, with unit variance, of numbers."""

    def __init__(self, classes: bool) -> None:
        self.classes = classes

    def __call__(self, model: nn.Module, batch: Batch) -> Terms:
        out = call_model(model, batch)
        loss = nn.functional.cross_entropy(out, batch.y, reduction="sum") if self.classes else 0.5 * (out - batch.y).square().sum()
        return Terms(nll=(loss, len(batch)))

    def predict(self, output: Tensor) -> Tensor:
        return output.softmax(-1) if self.classes else output


class _Rows:
    """A source of examples in memory."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch

    def __len__(self) -> int:
        return len(self.batch)

    def __getitem__(self, indices: Tensor) -> Batch:
        return self.batch[indices]

    def fingerprint(self) -> str:
        return "0" * 64


CLASSES = ("ant", "bee", "cat", "dog", "elk")
METRICS = tuple(
    {"step": step, "epoch": step / 4, "lr": 1e-2 / (1 + step), "loss": 2.0 / step, "grad_norm": 1.0 + 1.0 / step}
    | ({"valid/loss": 2.1 / step, "valid/accuracy": 1 - 0.9 / step} if step % 4 == 0 else {})
    for step in range(1, 13)
)


def tiny_subject(model: nn.Module, batch: Batch, objective: Any = None, train: Batch | None = None, **about: Any) -> Subject:
    """A subject of a small model; `about` is what else its `Data` holds."""
    data = Data(train=_Rows(batch if train is None else train), name="tiny", **about)
    return Subject(model, batch, objective, data, METRICS, "tiny")


def images() -> Subject:
    """Five classes of 8 x 6 images."""
    with preserve_state():
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(), nn.Linear(36, 5)
        )
        batch = Batch(x=torch.randn(23, 1, 8, 6), y=torch.arange(23) % 5, ids=torch.arange(23))
    return tiny_subject(net, batch, Nll(classes=True), task="classes", classes=CLASSES)


def values() -> Subject:
    """Three numbers in, one out."""
    with preserve_state():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
        x = torch.randn(31, 3)
        batch = Batch(x=x, y=x.sum(-1, keepdim=True) + 0.1 * torch.randn(31, 1), ids=torch.arange(31))
    return tiny_subject(net, batch, Nll(classes=False), task="values")


def letters(mixer: str = "attention heads=2") -> Subject:
    """Seven windows of a sentence and a character-level language model."""
    text = "the cat sat on the mat\nand the dog ate the oat cake at ten"
    known = sorted(set(text))
    tokens = torch.tensor([known.index(letter) for letter in text])
    with preserve_state():
        torch.manual_seed(0)
        model = LanguageModel(len(known), width=8, depth=2, mixer=mixer, ffn=1.0)
    windows = tokens.unfold(0, 13, 7)
    batch = Batch(x=windows[:, :-1].contiguous(), y=windows[:, 1:].contiguous(), ids=torch.arange(len(windows)))
    return tiny_subject(model, batch, train=batch[:4], task="other", classes=tuple(known))


def reverse() -> Subject:
    """Pairs of sequences: five words of up to six letters and the same words reversed; token 0 begins and ends a target."""
    lengths = torch.tensor([6, 2, 4, 5, 3])
    with preserve_state():
        torch.manual_seed(0)
        model = Seq2Seq(5, width=8, mixer="gla heads=2", attention="additive")
        source = torch.randint(1, 5, (5, 6))
    y = torch.zeros(5, 7, dtype=torch.long)
    for i, n in enumerate(lengths.tolist()):
        source[i, n:] = 0
        y[i, :n] = source[i, :n].flip(0)
    x = torch.cat([torch.zeros(5, 1, dtype=torch.long), y[:, :-1]], 1)
    batch = Batch(source=source, lengths=lengths, x=x, y=y, mask=torch.arange(7) <= lengths.unsqueeze(1), ids=torch.arange(5))
    names = ("end", "a", "b", "c", "d")
    return tiny_subject(model, batch, task="other", classes=names, features=names)


def autoencoder() -> Subject:
    """A VAE of 8 x 6 images."""
    batch = Batch(x=images().batch.x.sigmoid())
    with preserve_state():
        torch.manual_seed(0)
        model = vae.dense((1, 8, 6), hidden=(12,), code=3)
    return tiny_subject(model, batch)
