"""Scheduled sampling: at random positions the model reads its own last output instead of the true token, more often with time.

x_t = y_{t-1} (the true token)  with probability 1 - f,   a token predicted by the model  with probability f,   f = fraction(step)

Fraction 0 is teacher forcing, 1 is free running.  Bengio et al., Scheduled Sampling for Sequence Prediction with Recurrent
Neural Networks, 2015.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Any, final

import torch
from torch import Tensor, nn

from ..core.batch import Batch
from ..core.errors import BadInput
from ..core.options import Count, Range, Share, checked
from ..core.terms import Terms
from ._wrapper import Wrapper
from .categorical import Categorical

Fraction = Callable[[int], float]
"""step -> fraction of positions with tokens predicted by the model"""


@checked
def linear(steps: Count, maximum: Share = 1.0) -> Fraction:
    """From 0 to `maximum` linearly, within `steps` steps."""
    return lambda step: maximum * min(step / steps, 1.0)


@checked
def exponential(base: Annotated[float, Range(above=0, below=1)], maximum: Share = 1.0) -> Fraction:
    """maximum (1 - base^step), base below 1: fast at first."""
    return lambda step: maximum * (1 - base**step)


@checked
def inverse_sigmoid(pace: Annotated[float, Range(1)], maximum: Share = 1.0) -> Fraction:
    """maximum (1 - pace / (pace + exp(step / pace))): slow at first, half after about pace log(pace) steps; pace at least 1."""
    # pace / (pace + e^u) = 1 / (1 + e^(u - log pace)), which does not overflow; shifted so that it starts at 0
    fraction: Fraction = lambda step: 1 / (1 + math.exp(min(math.log(pace) - step / pace, 700.0)))  # noqa: E731
    return lambda step: maximum * (fraction(step) - fraction(0)) / (1 - fraction(0))


@torch.no_grad()
def mix_inputs(model: Any, batch: Batch, fraction: float, likeliest: bool = False) -> Tensor:
    """Inputs (B, T) of which a fraction are tokens predicted by the model from the mixed inputs before them.

    Tokens are discrete and have no gradient, so the inputs are sampled first, position by position, and the outputs are
    then computed for all of them at once: the gradient is that of a loop over the positions.

    Args:
        likeliest: take the argmax of the prediction instead of sampling from it
    """
    x = batch.x
    if not hasattr(model, "advance"):
        raise BadInput(
            "the model cannot continue from its own tokens", where="scheduled", fix="use one with `advance`, such as LanguageModel"
        )
    own = torch.rand(len(x), x.shape[1] - 1, device=x.device) < fraction
    state = model.begin(*(batch.get(name) for name in model.reads if name != "x")) if hasattr(model, "begin") else None
    rows = [x[:, :1]]
    for t in range(1, x.shape[1]):
        logits, state = model.advance(rows[-1], state)
        guess = logits[:, -1].argmax(-1, keepdim=True) if likeliest else torch.multinomial(logits[:, -1].softmax(-1), 1)
        rows.append(torch.where(own[:, t - 1 : t], guess, x[:, t : t + 1]))
    return torch.cat(rows, 1)


@final
class Scheduled(Wrapper):
    """Any objective, on inputs of which a fraction are predicted by the model; targets, sums and counts do not change.

    The engine calls `at(step)` before each step, so the fraction depends on the step alone, also in a resumed run; samples
    come from the random key of the step.  A model in evaluation mode reads the true tokens only.

    Args:
        objective: the objective of the outputs
        fraction: step -> fraction of positions
        likeliest: take the argmax of the prediction instead of sampling from it
    """

    def __init__(self, objective: Any, fraction: Fraction, likeliest: bool = False) -> None:
        self.objective, self.fraction, self.likeliest = objective, fraction, likeliest
        self.reached = 0
        """the current step"""

    def __call__(self, model: nn.Module, batch: Batch) -> Terms:
        fraction = self.current_fraction if getattr(model, "training", False) else 0.0
        return self.objective(model, batch.replace(x=mix_inputs(model, batch, fraction, self.likeliest)) if fraction else batch)

    @property
    def current_fraction(self) -> float:
        """The fraction at the current step."""
        fraction = self.fraction(self.reached)
        if not 0 <= fraction <= 1:
            raise BadInput(f"the fraction is {fraction:g} at step {self.reached}", where="scheduled", fix="give a number from 0 to 1")
        return fraction

    def counts(self, batch: Batch) -> dict[str, float]:
        return self.objective.counts(batch)

    def at(self, step: int) -> None:
        self.reached = step
        super().at(step)


def tiny() -> tuple[Scheduled, nn.Module, Batch]:
    """A small working instance with input, at its first step: teacher forcing."""
    x = torch.linspace(-1, 1, 21).reshape(7, 3)
    return Scheduled(Categorical(classes=4), linear(100)), nn.Linear(3, 4), Batch(x=x, y=torch.arange(7) % 4)
