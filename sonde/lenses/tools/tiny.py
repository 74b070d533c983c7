"""Small subjects for `tiny()`: an image classifier and a regression, both untrained, made without touching random state."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...core.batch import Batch, Data, ask
from ...core.reading import Subject
from ...core.terms import Terms
from .readonly import preserve_state


class _Nll:
    """A likelihood in its shortest form, so that lenses need no folder below core for their own examples."""

    def __init__(self, classes: bool) -> None:
        self.classes = classes

    def __call__(self, model: nn.Module, batch: Batch) -> Terms:
        out = ask(model, batch)
        loss = nn.functional.cross_entropy(out, batch.y, reduction="sum") if self.classes else 0.5 * (out - batch.y).square().sum()
        return Terms(nll=(loss, len(batch)))

    def predict(self, output: Tensor) -> Tensor:
        return output.softmax(-1) if self.classes else output


class _Rows:
    """A source of examples held in memory."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch

    def __len__(self) -> int:
        return len(self.batch)

    def __getitem__(self, indices: Tensor) -> Batch:
        return self.batch[indices]

    def fingerprint(self) -> str:
        return "0" * 64


METRICS = tuple(
    {"step": step, "epoch": step / 4, "lr": 1e-2 / (1 + step), "loss": 2.0 / step, "grad_norm": 1.0 + 1.0 / step}
    | ({"valid/loss": 2.1 / step, "valid/accuracy": 1 - 0.9 / step} if step % 4 == 0 else {})
    for step in range(1, 13)
)


def images() -> Subject:
    """Five classes of 8 x 6 images."""
    with preserve_state():
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(), nn.Linear(36, 5)
        )
        batch = Batch(x=torch.randn(23, 1, 8, 6), y=torch.arange(23) % 5, ids=torch.arange(23))
    data = Data(train=_Rows(batch), name="tiny", task="classes", classes=("ant", "bee", "cat", "dog", "elk"))
    return Subject(net, batch, _Nll(classes=True), data, METRICS, "tiny")


def values() -> Subject:
    """Three numbers in, one out."""
    with preserve_state():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
        x = torch.randn(31, 3)
        batch = Batch(x=x, y=x.sum(-1, keepdim=True) + 0.1 * torch.randn(31, 1), ids=torch.arange(31))
    return Subject(net, batch, _Nll(classes=False), Data(train=_Rows(batch), name="tiny", task="values"), METRICS, "tiny")
