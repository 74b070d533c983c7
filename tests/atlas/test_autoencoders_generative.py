"""Mistakes about generative models, made on purpose, that turn AE-10 red; each trains for a second or two."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from sonde.atlas import _autoencoder_parts
from sonde.models import autoregressive, diffusion, flow
from sonde.objectives import adversarial
from tests.atlas.mistakes import Mistakes, two_seeds

pytestmark = pytest.mark.slow

GAPS = tuple(f"{name}: gap" for name in _autoencoder_parts.FAMILIES)


def budget(monkeypatch, **steps: int) -> None:
    """Two seeds, and hardly a step but for the families named."""
    two_seeds(monkeypatch)
    monkeypatch.setattr(_autoencoder_parts, "CELLS", 100)
    monkeypatch.setattr(_autoencoder_parts, "STEPS", {**dict.fromkeys(_autoencoder_parts.STEPS, 2), **steps})


mistakes = Mistakes()

mistakes.add(
    "AE-10", "families that learned nothing", red=(*GAPS, "best judge of p against q", "flow: nats"), green="flow: density", setup=budget
)
mistakes.add("AE-10", "a volume that nobody counts", red="flow: density summed", setup=partial(budget, flow=60)).replace(
    flow.Coupling, "forward", lambda right, self, x: (right(self, x)[0], 0 * right(self, x)[1])
)
mistakes.add(
    "AE-10", "an order in which a number sees itself", red="autoregressive: density summed", setup=partial(budget, autoregressive=60)
).replace(autoregressive.torch.Tensor, "tril", lambda self, diagonal=0: torch.tril(self))
# The optimal discriminator of the hinge loss is the sign of p - q.
mistakes.add(
    "AE-10", "a judge with another loss", red=("best judge of p against q", "2 log 2"), setup=partial(budget, discriminator=200)
).replace(adversarial, "softplus", lambda a: torch.relu(1 + a))
mistakes.add("AE-10", "a judge that sees no forgeries", red="best judge of equals", setup=partial(budget, discriminator=200)).replace(
    _autoencoder_parts.gan.GAN, "generate", lambda self, noise: noise[:, :2] + 9.0
)


@mistakes.add(
    "AE-10", "steps back that add no noise yet leave room for it", red="diffusion: gap", setup=partial(budget, diffusion=400)
).replace(diffusion.Diffusion, "reverse_step")
def dull(right, self, x, now, then, fresh=None, eta=1.0):
    return right(self, x, now, then, None if fresh is None else 0 * fresh, eta)


@mistakes.each
def test_notices(mistake, monkeypatch):
    mistake.assert_noticed(monkeypatch)
