"""The loss of a diffusion model: squared error of the predicted noise at a random step of the forward process.

loss = |e - model(x_t, t)|^2 per number,   t uniform over 1 .. T,   e ~ N(0, I)      (Ho, Jain and Abbeel, 2020)

0 for a perfect prediction, 1 for a model that always predicts 0.
"""

from __future__ import annotations

import math
from typing import Any, final

import torch
from torch import Tensor, nn

from ..core.batch import Batch
from ..core.errors import BadInput
from ..core.terms import Terms
from . import _unlabeled, _weight
from ._noise import normal


@final
class Denoised:
    """Term 'noise', the mean squared error per element; the measure 'output_square' is the mean square of the prediction.

    The model has `steps` (T) and `add_noise(x, noise, t)`; `model(x_t, t)` predicts the noise.  For the best possible prediction,
    the mean of the noise given x_t, loss and 'output_square' add up to 1, the variance of the noise.
    """

    def __call__(self, model: Any, batch: Batch) -> Terms:
        x, n = batch.x, len(batch)
        drawn = normal(model, batch, (n, 1 + x[0].numel()))  # one draw for both: time and noise must be independent
        time = (torch.special.ndtr(drawn[:, 0]) * model.steps).long().clamp(max=model.steps - 1) + 1
        noise = drawn[:, 1:].reshape(x.shape)
        output = model(model.add_noise(x, noise, time), time)
        if output.shape != x.shape:
            raise BadInput(
                f"the model returned shape {tuple(output.shape)}, but the noise has shape {tuple(x.shape)}",
                where="denoised",
                fix="return a prediction of the noise, shaped like x",
            )
        return Terms(noise=(_squares(output - noise, batch), self._numbers(batch)))

    def counts(self, batch: Batch) -> dict[str, float]:
        return {"noise": float(self._numbers(batch))}

    def measures(self, output: Tensor, batch: Batch) -> Terms:
        return Terms(output_square=(_squares(output.detach(), batch), self._numbers(batch)))

    @staticmethod
    def _numbers(batch: Batch) -> float | Tensor:
        return math.prod(batch.x.shape[1:]) * _weight.count(batch)

    def check(self, batch: Batch) -> None:
        _unlabeled.check(batch, "denoised")

    def predict(self, output: Tensor) -> Tensor:
        """The noise."""
        return output


def _squares(values: Tensor, batch: Batch) -> Tensor:
    return _weight.total(values.square().flatten(1).sum(1), batch)


def tiny() -> tuple[Denoised, nn.Module, Batch]:
    """A small working instance with input."""

    class Line(nn.Module):
        """Half data, half noise, whatever the step."""

        steps = 4

        def __init__(self) -> None:
            super().__init__()
            self.predict = nn.Linear(3, 3)

        def add_noise(self, x: Tensor, noise: Tensor, time: Tensor) -> Tensor:
            return 0.6 * x + 0.8 * noise

        def forward(self, x: Tensor, time: Tensor | None = None) -> Tensor:
            return self.predict(x)

    x = torch.linspace(-1, 1, 21).reshape(7, 3)
    return Denoised(), Line(), Batch(x=x, noise=torch.sin(7.0 * torch.arange(28)).reshape(7, 4))
