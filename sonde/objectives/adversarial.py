"""The losses of a GAN in two phases: steps of the discriminator and steps of the generator alternate.

    discriminator   -log D(x) - log(1 - D(G(z)))     generated examples are fixed
    generator       -log D(G(z))                     the discriminator is fixed; log(1 - D) has no gradient where D is confident
    r1              |d logit/dx|^2 at real x         keeps D smooth: both then converge (Mescheder, Geiger and Nowozin, 2018)

A step updates one of the two networks: the other one gets no gradient from its loss.  Each network has its own optimizer and
gradient clipping, and the generator sees the discriminator after its update.  Simultaneous updates of both would diverge in
games in which small alternating steps cycle.

Once G samples from the distribution of the data, the best D is 1/2: the losses are 2 log 2 = 1.386 and log 2 = 0.693.
"""

from __future__ import annotations

from typing import Annotated, Any, final

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import softplus

from ..core.batch import Batch, call_model
from ..core.options import Count, Range, checked
from ..core.terms import Term, Terms
from . import _unlabeled, _weight
from ._noise import normal
from ._wrapper import PenaltyFactor

DISCRIMINATOR, GENERATOR = 0, 1


@final
class Adversarial:
    """Terms 'discriminator', 'generator' and the penalty 'r1'; 'fake' and 'real' are D's mean output on generated examples and on data.

    The model has `latent` (numbers of noise), `generate(noise)` and `discriminator`; `model(x)` is the logit of "x is real".
    One example is generated for each real one and has the same weight.  Both terms are reported at every step; only the network
    that the step updates gets a gradient.  Outside a training step both get one.

    Args:
        smoothing: the target probability of real examples is 1 minus this
        r1: factor gamma of the penalty gamma/2 |d logit/dx|^2 at real examples; 0 leaves it out
        discriminator_steps: steps of the discriminator in a round
        generator_steps: steps of the generator after them; 0 trains the discriminator alone
    """

    @checked
    def __init__(
        self,
        smoothing: Annotated[float, Range(0, below=0.5)] = 0.0,
        r1: PenaltyFactor = 0.0,
        discriminator_steps: Count = 1,
        generator_steps: Annotated[int, Range(0)] = 1,
    ) -> None:
        self.smoothing, self.r1 = smoothing, r1
        self.phases = (DISCRIMINATOR,) * discriminator_steps + (GENERATOR,) * generator_steps
        self.phase: int | None = None
        """the network this step updates; None gives both a gradient"""

    def phase_of(self, name: str) -> int:
        return DISCRIMINATOR if "discriminator" in name.split(".") else GENERATOR

    def __call__(self, model: Any, batch: Batch) -> Terms:
        phase = self.phase
        with enable_grad_if(phase != DISCRIMINATOR):
            generated = model.generate(normal(model, batch, (len(batch), model.latent)))
        with enable_grad_if(phase != GENERATOR):
            real, slope = self._real_logits(model, batch)
            fake = None if phase == GENERATOR else model.discriminator(generated.detach()).flatten()
        generator_logits = with_frozen_weights(model.discriminator, generated) if fake is None or phase is None else fake.detach()
        fake = generator_logits.detach() if fake is None else fake
        real_cost = (1 - self.smoothing) * softplus(-real) + self.smoothing * softplus(real)
        each = {
            "discriminator": (real_cost + softplus(fake), 1.0),
            "generator": (softplus(-generator_logits), float(GENERATOR in self.phases)),
            "fake": (fake.detach().sigmoid(), 0.0),
            **({} if slope is None else {"r1": (slope, self.r1 / 2)}),
        }
        count = _weight.count(batch)
        return Terms(**{name: Term(_weight.total(cost, batch), count, weight) for name, (cost, weight) in each.items()})

    def _real_logits(self, model: Any, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """Logits of the real examples (B,), and with a penalty their squared slopes (B,)."""
        if not self.r1:
            return call_model(model, batch).flatten(), None
        with_graph = torch.is_grad_enabled()
        with torch.enable_grad():
            x = batch.x.detach().requires_grad_()
            real = call_model(model, batch.replace(x=x)).flatten()
            (gradient,) = torch.autograd.grad(real.sum(), x, create_graph=with_graph, retain_graph=True)
        slope = gradient.square().flatten(1).sum(1)
        return (real, slope) if with_graph else (real.detach(), slope.detach())

    def counts(self, batch: Batch) -> dict[str, float]:
        return dict.fromkeys(("discriminator", "generator", "fake", *(("r1",) if self.r1 else ())), float(_weight.count(batch)))

    def measures(self, output: Tensor, batch: Batch) -> Terms:
        """D's mean output on the data."""
        return Terms(real=(_weight.total(output.detach().flatten().sigmoid(), batch), _weight.count(batch)))

    def check(self, batch: Batch) -> None:
        _unlabeled.check(batch, "adversarial")

    def predict(self, output: Tensor) -> Tensor:
        """D(x), the probability that an example is real."""
        return output.sigmoid()


def enable_grad_if(condition: bool) -> torch.set_grad_enabled:
    """Enable gradients if the condition holds and the caller has not disabled them."""
    return torch.set_grad_enabled(condition and torch.is_grad_enabled())


def with_frozen_weights(module: nn.Module, x: Tensor) -> Tensor:
    """module(x), flattened, with gradients for x and none for the weights of the module."""
    return functional_call(module, {name: weight.detach() for name, weight in module.named_parameters()}, (x,)).flatten()


def tiny() -> tuple[Adversarial, nn.Module, Batch]:
    """A small working instance with input, with a fixed generator: two networks that compete have no common loss that could fall."""

    class Two(nn.Module):
        """A fixed line of generated examples, and a smooth discriminator."""

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
    return Adversarial(smoothing=0.1, r1=1.0, generator_steps=0), Two(), Batch(x=x, noise=torch.linspace(-2, 2, 7).unsqueeze(1))
