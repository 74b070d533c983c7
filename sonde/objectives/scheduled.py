"""Scheduled sampling: at random places the model reads its own last output in place of the true one, more and more of them.

x_t = y_{t-1} (the truth)  with probability 1 - f,   a token of the model's own  with probability f,   f = fraction(step)

Fraction 0 is teacher forcing, 1 is free running.  Bengio et al., Scheduled Sampling for Sequence Prediction with Recurrent
Neural Networks, 2015.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor, nn

from ..core.batch import Batch
from ..core.errors import BadInput
from ..core.terms import Terms
from ._wrapper import Wrapper
from .categorical import Categorical

Fraction = Callable[[int], float]
"""share of places that are the model's own, as a function of the step"""


def linear(steps: int, most: float = 1.0) -> Fraction:
    """From 0 to `most` along a line, there after so many steps."""
    _check_name("linear", steps > 0 and 0 <= most <= 1)
    return lambda step: most * min(step / steps, 1.0)


def exponential(base: float, most: float = 1.0) -> Fraction:
    """most (1 - base^step), base below 1: fast at first."""
    _check_name("exponential", 0 < base < 1 and 0 <= most <= 1)
    return lambda step: most * (1 - base**step)


def inverse_sigmoid(pace: float, most: float = 1.0) -> Fraction:
    """most (1 - pace / (pace + exp(step / pace))): slow at first, half after about pace log(pace) steps; pace at least 1."""
    _check_name("inverse_sigmoid", pace >= 1 and 0 <= most <= 1)
    # pace / (pace + e^u) = 1 / (1 + e^(u - log pace)), which does not overflow; less its value at 0, so that it begins there
    share: Fraction = lambda step: 1 / (1 + math.exp(min(math.log(pace) - step / pace, 700.0)))  # noqa: E731
    return lambda step: most * (share(step) - share(0)) / (1 - share(0))


def _check_name(name: str, fine: bool) -> None:
    if not fine:
        raise BadInput(
            f"invalid settings for the schedule '{name}'",
            where="scheduled",
            fix="use steps > 0 (linear), 0 < base < 1 (exponential) or pace >= 1 (inverse_sigmoid), and 0 <= most <= 1",
        )


@torch.no_grad()
def mix_inputs(model: Any, batch: Batch, share: float, likeliest: bool = False) -> Tensor:
    """Inputs (B, T) of which a share are the model's own tokens, each chosen after the mixed inputs before it.

    What a token is cannot be differentiated, so inputs may be found first, place after place, and the outputs for all of
    them computed at once afterwards: the gradient is that of a loop over the places.
    """
    x = batch.x
    if not hasattr(model, "advance"):
        raise BadInput(
            "the model cannot continue from its own tokens", where="scheduled", fix="use one with `advance`, such as LanguageModel"
        )
    own = torch.rand(len(x), x.shape[1] - 1, device=x.device) < share
    state = model.begin(*(batch.get(name) for name in model.reads if name != "x")) if hasattr(model, "begin") else None
    rows = [x[:, :1]]
    for t in range(1, x.shape[1]):
        logits, state = model.advance(rows[-1], state)
        guess = logits[:, -1].argmax(-1, keepdim=True) if likeliest else torch.multinomial(logits[:, -1].softmax(-1), 1)
        rows.append(torch.where(own[:, t - 1 : t], guess, x[:, t : t + 1]))
    return torch.cat(rows, 1)


@final
class Scheduled(Wrapper):
    """Any objective, on inputs of which a fraction are the model's own; targets, sums and counts stay what they are.

    The engine says which step comes next (`at`), so the fraction depends on the step alone, also in a resumed run; draws
    come from the random key of the step.  A model that does not train, as in an evaluation, reads the truth alone.

    Args:
        objective: the objective of the outputs
        fraction: step -> share of places
        likeliest: the model's own token is its likeliest, in place of a draw from what it expects
    """

    def __init__(self, objective: Any, fraction: Fraction, likeliest: bool = False) -> None:
        self.objective, self.fraction, self.likeliest = objective, fraction, likeliest
        self.reached = 0
        """the step whose fraction is in force"""

    def __call__(self, model: nn.Module, batch: Batch) -> Terms:
        share = self.share if getattr(model, "training", False) else 0.0
        return self.objective(model, batch.replace(x=mix_inputs(model, batch, share, self.likeliest)) if share else batch)

    @property
    def share(self) -> float:
        """The fraction in force."""
        share = self.fraction(self.reached)
        if not 0 <= share <= 1:
            raise BadInput(f"the fraction is {share:g} at step {self.reached}", where="scheduled", fix="give a number from 0 to 1")
        return share

    def counts(self, batch: Batch) -> dict[str, float]:
        return self.objective.counts(batch)

    def at(self, step: int) -> None:
        self.reached = step
        super().at(step)


def tiny() -> tuple[Scheduled, nn.Module, Batch]:
    """A small working instance with input, at its first step: teacher forcing, which asks nothing of the model."""
    x = torch.linspace(-1, 1, 21).reshape(7, 3)
    return Scheduled(Categorical(classes=4), linear(100)), nn.Linear(3, 4), Batch(x=x, y=torch.arange(7) % 4)
