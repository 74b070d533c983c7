"""Mistakes about generative models, made on purpose, that turn AE-10 red; each trains for a second or two."""

from __future__ import annotations

import pytest
import torch

from sonde.atlas import _autoencoder_parts
from sonde.models import autoregressive, diffusion, flow
from sonde.objectives import adversarial
from tests.atlas.mistakes import any_of, two_seeds, wrong

pytestmark = pytest.mark.slow


@pytest.fixture
def budget(monkeypatch):
    """Two seeds, and hardly a step but for the families named."""

    def spend(**steps: int) -> None:
        two_seeds(monkeypatch)
        monkeypatch.setattr(_autoencoder_parts, "CELLS", 100)
        monkeypatch.setattr(_autoencoder_parts, "STEPS", {**dict.fromkeys(_autoencoder_parts.STEPS, 2), **steps})

    return spend


def test_families_that_learned_nothing(budget):
    budget()
    names = wrong("AE-10")
    assert all(any_of(names, f"{name}: gap") for name in _autoencoder_parts.FAMILIES)
    assert any_of(names, "best judge of p against q") and any_of(names, "flow: nats") and not any_of(names, "flow: density")


def test_a_volume_that_nobody_counts(budget, monkeypatch):
    budget(flow=60)
    right = flow.Coupling.forward
    monkeypatch.setattr(flow.Coupling, "forward", lambda self, x: (right(self, x)[0], 0 * right(self, x)[1]))
    assert any_of(wrong("AE-10"), "flow: density summed")


def test_an_order_in_which_a_number_sees_itself(budget, monkeypatch):
    budget(autoregressive=60)
    monkeypatch.setattr(autoregressive.torch.Tensor, "tril", lambda self, diagonal=0: torch.tril(self))
    assert any_of(wrong("AE-10"), "autoregressive: density summed")


def test_a_judge_with_another_loss(budget, monkeypatch):
    budget(discriminator=200)
    monkeypatch.setattr(adversarial, "softplus", lambda a: torch.relu(1 + a))  # the hinge: its best judge is the sign of p - q
    names = wrong("AE-10")
    assert any_of(names, "best judge of p against q") and any_of(names, "2 log 2")


def test_a_judge_that_sees_no_forgeries(budget, monkeypatch):
    budget(discriminator=200)
    monkeypatch.setattr(_autoencoder_parts.gan.GAN, "generate", lambda self, noise: noise[:, :2] + 9.0)
    assert any_of(wrong("AE-10"), "best judge of equals")


def test_steps_back_that_add_no_noise_yet_leave_room_for_it(budget, monkeypatch):
    budget(diffusion=400)
    right = diffusion.Diffusion.back

    def dull(self, x, now, then, fresh=None, eta=1.0):
        return right(self, x, now, then, None if fresh is None else 0 * fresh, eta)

    monkeypatch.setattr(diffusion.Diffusion, "back", dull)
    assert any_of(wrong("AE-10"), "diffusion: gap")
