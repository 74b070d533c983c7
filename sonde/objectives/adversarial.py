"""The game of a GAN in two phases: a discriminator learns to judge, then a generator learns to forge, in turn.

    judge   -log D(x) - log(1 - D(G(z)))     of the discriminator, the forgeries as they are
    forge   -log D(G(z))                     of the generator, the discriminator held still; log(1 - D) has no slope where D is sure
    r1      |d logit/dx|^2 at real x         keeps the judge smooth: both then settle (Mescheder, Geiger and Nowozin, 2018)

A step is the turn of one player: its loss reaches its own weights alone, and the engine moves no others.  Each player has an
optimizer and a clipped norm of its own, and the forger meets the judge as it is after the judge's turn.  Were both moved at once,
a game in which small steps go round in a circle would spiral outwards.

Once G draws from the data's own distribution, D can do no better than 1/2: judge is 2 log 2 = 1.386 and forge log 2 = 0.693.
"""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import softplus

from ..core.batch import Batch, ask
from ..core.errors import BadInput
from ..core.terms import Term, Terms
from . import _unlabeled, _weight
from ._around import factor
from ._noise import normal

JUDGE, FORGE = 0, 1


@final
class Adversarial:
    """Terms 'judge' and 'forge', with a penalty 'r1', and D's mean output on forgeries, 'fake', beside that on data, 'real'.

    The model has `latent` (numbers of noise), `generate(noise)` and `discriminator`; `model(x)` is the logit of "x is real".
    One forgery is made for each example, and a weight of the example is also that of its forgery.  Both terms are told at
    every step, and the player whose turn it is gets a gradient; outside a step of a run each gets its own.

    smoothing: real examples are to be called real with a probability of 1 less this
    r1: the loss holds half of this times the squared slope of the logit at real examples; 0 leaves it out
    judging: steps of the discriminator in a round
    forging: steps of the generator after them; 0 leaves it as it is and trains the discriminator alone
    """

    def __init__(self, smoothing: float = 0.0, r1: float = 0.0, judging: int = 1, forging: int = 1) -> None:
        self.smoothing = factor(smoothing, "smoothing", "adversarial")
        if self.smoothing >= 0.5:
            message = f"smoothing must be a number below 0.5, not {smoothing!r}"
            raise BadInput(message, where="adversarial", fix="0.1 calls real examples real with a probability of 0.9")
        self.r1 = factor(r1, "r1", "adversarial", "0 leaves the penalty out")
        for name, turns, least in (("judging", judging, 1), ("forging", forging, 0)):
            if isinstance(turns, bool) or not isinstance(turns, int) or turns < least:
                message = f"{name} must be a whole number >= {least}, not {turns!r}"
                raise BadInput(message, where="adversarial", fix="1 and 1 is the usual game, forging=0 trains the discriminator alone")
        self.phases = (JUDGE,) * judging + (FORGE,) * forging
        self.phase: int | None = None
        """whose turn it is; None gives both a gradient"""

    def phase_of(self, name: str) -> int:
        return JUDGE if "discriminator" in name.split(".") else FORGE

    def __call__(self, model: Any, batch: Batch) -> Terms:
        phase = self.phase
        with learning(phase != JUDGE):
            forged = model.generate(normal(model, batch, (len(batch), model.latent)))
        with learning(phase != FORGE):
            real, slope = self._judged(model, batch)
            fake = None if phase == FORGE else model.discriminator(forged.detach()).flatten()
        met = held_still(model.discriminator, forged) if fake is None or phase is None else fake.detach()
        fake = met.detach() if fake is None else fake
        sure = (1 - self.smoothing) * softplus(-real) + self.smoothing * softplus(real)
        each = {
            "judge": (sure + softplus(fake), 1.0),
            "forge": (softplus(-met), float(FORGE in self.phases)),
            "fake": (fake.detach().sigmoid(), 0.0),
            **({} if slope is None else {"r1": (slope, self.r1 / 2)}),
        }
        count = _weight.count(batch)
        return Terms(**{name: Term(_weight.total(cost, batch), count, weight) for name, (cost, weight) in each.items()})

    def _judged(self, model: Any, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """Logits of the real examples (B,), and with a penalty their squared slopes (B,)."""
        if not self.r1:
            return ask(model, batch).flatten(), None
        judging = torch.is_grad_enabled()
        with torch.enable_grad():
            x = batch.x.detach().requires_grad_()
            real = ask(model, batch.replace(x=x)).flatten()
            (gradient,) = torch.autograd.grad(real.sum(), x, create_graph=judging, retain_graph=True)
        slope = gradient.square().flatten(1).sum(1)
        return (real, slope) if judging else (real.detach(), slope.detach())

    def counts(self, batch: Batch) -> dict[str, float]:
        return dict.fromkeys(("judge", "forge", "fake", *(("r1",) if self.r1 else ())), float(_weight.count(batch)))

    def measures(self, output: Tensor, batch: Batch) -> Terms:
        """D's mean output on the data."""
        return Terms(real=(_weight.total(output.detach().flatten().sigmoid(), batch), _weight.count(batch)))

    def check(self, batch: Batch) -> None:
        _unlabeled.check(batch, "adversarial")

    def predict(self, output: Tensor) -> Tensor:
        """D(x), the probability that an example is real."""
        return output.sigmoid()


def learning(wanted: bool) -> torch.set_grad_enabled:
    """Gradients where they are wanted and the caller has not turned them off."""
    return torch.set_grad_enabled(wanted and torch.is_grad_enabled())


def held_still(module: nn.Module, x: Tensor) -> Tensor:
    """module(x) that passes gradients on to x and none to the module's own weights; its outputs in one row."""
    return functional_call(module, {name: weight.detach() for name, weight in module.named_parameters()}, (x,)).flatten()


def tiny() -> tuple[Adversarial, nn.Module, Batch]:
    """A small working instance with input, at which the generator rests: two players have no common loss that could fall."""

    class Two(nn.Module):
        """A fixed line of forgeries, and a smooth judge."""

        latent = 1
        line: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.discriminator = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
            self.register_buffer("line", torch.tensor([1.0, -1.0, 0.5]))

        def forward(self, x: Tensor) -> Tensor:
            return self.discriminator(x).flatten()

        def generate(self, noise: Tensor) -> Tensor:
            return noise * self.line

    x = torch.linspace(-1, 1, 21).reshape(7, 3)
    return Adversarial(smoothing=0.1, r1=1.0, forging=0), Two(), Batch(x=x, noise=torch.linspace(-2, 2, 7).unsqueeze(1))
