"""Maximum likelihood of the inputs: -log p(x) of a model with a tractable density, such as a flow.

For images with integer levels the model also gets noise, which dequantizes the pixels.
"""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor, nn

from ..core.batch import Batch, call_model
from ..core.errors import BadInput
from ..core.terms import Terms
from . import _unlabeled, _weight
from ._noise import normal


@final
class Density:
    """Term 'nll': -log p(x) in nats per example, where `model(x)` is log p(x) (B,); measure 'bits_per_number', in bits per element."""

    def __call__(self, model: nn.Module, batch: Batch) -> Terms:
        if getattr(model, "levels", 0):
            batch = batch.replace(noise=normal(model, batch, batch.x.shape))
        log_prob = call_model(model, batch)
        if log_prob.shape != (len(batch),):
            what = f"the model gives {tuple(log_prob.shape)} for {len(batch)} examples"
            raise BadInput(what, where="density", fix="it must give log p(x), one number for each")
        return Terms(nll=(-_weight.total(log_prob, batch), _weight.count(batch)))

    def counts(self, batch: Batch) -> dict[str, float]:
        return {"nll": float(_weight.count(batch))}

    def measures(self, output: Tensor, batch: Batch) -> Terms:
        numbers = math.prod(batch.x.shape[1:])
        return Terms(bits_per_number=(-_weight.total(output.detach(), batch) / math.log(2), numbers * _weight.count(batch)))

    def check(self, batch: Batch) -> None:
        _unlabeled.check(batch, "density")

    def predict(self, output: Tensor) -> Tensor:
        """log p(x), in nats."""
        return output


def tiny() -> tuple[Density, nn.Module, Batch]:
    """A small working instance with input."""

    class Normal(nn.Module):
        """Independent normal numbers."""

        def __init__(self) -> None:
            super().__init__()
            self.mean, self.log_scale = nn.Parameter(torch.full((3,), 0.2)), nn.Parameter(torch.full((3,), 0.1))

        def forward(self, x: Tensor) -> Tensor:
            return torch.distributions.Normal(self.mean, self.log_scale.exp()).log_prob(x).sum(1)

    return Density(), Normal(), Batch(x=torch.linspace(-1, 1, 21).reshape(7, 3))
