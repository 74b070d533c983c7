"""The game of a GAN: in every step a discriminator learns to judge and a generator learns to forge, at the same time.

    judge   -log D(x) - log(1 - D(G(z)))     of the discriminator, the forgeries as they are
    forge   -log D(G(z))                     of the generator, the discriminator held still; log(1 - D) has no slope where D is sure
    r1      |d logit/dx|^2 at real x         keeps the judge smooth: both then settle (Mescheder, Geiger and Nowozin, 2018)

Each player's loss reaches its own weights alone, so one backward pass and one update serve both.  Once G draws from the
data's own distribution, D can do no better than 1/2: judge is 2 log 2 = 1.386 and forge log 2 = 0.693.
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
from . import _unlabelled
from ._noise import normal


@final
class Adversarial:
    """Terms 'judge' and 'forge', with a penalty 'r1', and D's mean output on forgeries, 'fake', beside that on data, 'real'.

    The model has `latent` (numbers of noise), `generate(noise)` and `discriminator`; `model(x)` is the logit of "x is real".

    smoothing: real examples are to be called real with a probability of 1 less this
    r1: factor of half the squared slope
    forge: weight of the generator's loss; 0 trains the discriminator alone, against a generator that stays as it is
    """

    def __init__(self, smoothing: float = 0.0, r1: float = 0.0, forge: float = 1.0) -> None:
        for name, value, top in (("smoothing", smoothing, 0.5), ("r1", r1, float("inf")), ("forge", forge, float("inf"))):
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < top:
                raise BadInput(f"{name} must be a number >= 0 and < {top:g}, not {value!r}", where="adversarial")
        self.smoothing, self.r1, self.forge = float(smoothing), float(r1), float(forge)

    def __call__(self, model: Any, batch: Batch) -> Terms:
        n = len(batch)
        forged = model.generate(normal(model, batch, (n, model.latent)))
        real, slope = self._judged(model, batch)
        fake = model.discriminator(forged.detach()).flatten()
        sure = (1 - self.smoothing) * softplus(-real) + self.smoothing * softplus(real)
        found = {
            "judge": Term((sure + softplus(fake)).sum(), n),
            "forge": Term(softplus(-held_still(model.discriminator, forged)).sum(), n, self.forge),
            "fake": Term(fake.detach().sigmoid().sum(), n, 0.0),
        }
        return Terms(**found, **({} if slope is None else {"r1": Term(slope, n, self.r1 / 2)}))

    def _judged(self, model: Any, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """Logits of the real examples, and with a penalty the sum of their squared slopes."""
        if not self.r1:
            return ask(model, batch), None
        learning = torch.is_grad_enabled()
        with torch.enable_grad():
            x = batch.x.detach().requires_grad_()
            real = ask(model, batch.replace(x=x))
            (slope,) = torch.autograd.grad(real.sum(), x, create_graph=learning, retain_graph=True)
        return (real, slope.square().sum()) if learning else (real.detach(), slope.square().sum())

    def counts(self, batch: Batch) -> dict[str, float]:
        return dict.fromkeys(("judge", "forge", "fake", *(("r1",) if self.r1 else ())), float(len(batch)))

    def measures(self, output: Tensor, batch: Batch) -> Terms:
        """D's mean output on the data."""
        return Terms(real=(output.detach().sigmoid().sum(), float(output.numel())))

    def check(self, batch: Batch) -> None:
        _unlabelled.check(batch, "adversarial")

    def predict(self, output: Tensor) -> Tensor:
        """D(x), the probability that an example is real."""
        return output.sigmoid()


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
    return Adversarial(smoothing=0.1, r1=1.0, forge=0.0), Two(), Batch(x=x, noise=torch.linspace(-2, 2, 7).unsqueeze(1))
