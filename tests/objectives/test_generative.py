"""Objectives of generative models against losses written out, and against torch.distributions."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Normal
from torch.nn.functional import binary_cross_entropy_with_logits as bce

import sonde
from sonde.core.batch import Batch, Data
from sonde.core.errors import BadInput
from sonde.core.recipe import Recipe
from sonde.data.tensors import TensorSource
from sonde.models import diffusion, gan
from sonde.models.flow import Flow
from sonde.objectives.adversarial import Adversarial
from sonde.objectives.denoised import Denoised
from sonde.objectives.density import Density
from sonde.objectives.information.discrepancy import discrepancy
from sonde.optim.build import optimiser


def batch(n: int = 6, noise: int = 4) -> Batch:
    dice = torch.Generator().manual_seed(3)
    return Batch(x=torch.randn(n, 3, generator=dice), noise=torch.randn(n, noise, generator=dice))


def two_players(smoothing: float, r1: float) -> tuple[gan.GAN, dict[str, torch.Tensor]]:
    """A GAN and the gradients that two separate backward passes of the textbook's losses give it."""
    torch.manual_seed(0)
    model, given = gan.points(3, 4, 5, 2), batch()
    D, G = copy.deepcopy(model.discriminator), copy.deepcopy(model.generator)
    x = given.x.clone().requires_grad_()
    real, fake = D(x).flatten(), D(G(given.noise).detach()).flatten()
    slope = torch.autograd.grad(real.sum(), x, create_graph=True)[0].square().flatten(1).sum(1).mean()
    (bce(real, torch.full_like(real, 1 - smoothing)) + bce(fake, torch.zeros_like(fake)) + r1 / 2 * slope).backward()
    wanted = {f"discriminator.{name}": p.grad.clone() for name, p in D.named_parameters()}
    held = D(G(given.noise)).flatten()
    bce(held, torch.ones_like(held)).backward()
    return model, wanted | {f"generator.{name}": p.grad for name, p in G.named_parameters()}


@pytest.mark.parametrize("smoothing, r1", [(0.0, 0.0), (0.1, 0.0), (0.2, 3.0)])
def test_one_backward_pass_is_that_of_both_players(smoothing, r1):
    model, wanted = two_players(smoothing, r1)
    Adversarial(smoothing, r1)(model, batch()).loss().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, wanted[name], msg=name)


def against_a_frozen_generator(objective, tmp_path, freeze: bool):
    """A run with weight decay, which moves every weight it is given, and how far it moved each player."""
    torch.manual_seed(0)
    model, x = gan.points(3, 4, 5), batch(40).x
    model.generator.requires_grad_(not freeze)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    recipe = Recipe(
        model=model,
        data=Data(TensorSource(x), TensorSource(x[:7]), name="points"),
        objective=objective,
        optimiser=optimiser("adamw", lr=0.01, weight_decay=0.5, decay_all=True),
        clip=1.0,
        steps=3,
        batch=9,
    )
    run = sonde.train(recipe, run=tmp_path / "run", threads=1, quiet=True)
    moved = {name: float((value - before[name]).abs().max()) for name, value in run.model().state_dict().items()}
    return run, {player: max(far for name, far in moved.items() if name.startswith(player)) for player in ("generator", "discriminator")}


def test_a_frozen_generator_rests_and_is_still_told(tmp_path):
    run, moved = against_a_frozen_generator(Adversarial(forge=0.0), tmp_path, freeze=True)
    assert moved["generator"] == 0 and moved["discriminator"] > 0.01
    figures = run.result["figures"]
    assert math.isfinite(figures["valid/forge"]) and figures["valid/loss"] == pytest.approx(figures["valid/judge"], rel=1e-6)


def test_a_generator_without_a_loss_that_would_move_all_the_same_is_refused(tmp_path):
    with pytest.raises(BadInput, match=r"forge=0 .* \(adversarial\); freeze it: model\.generator\.requires_grad_\(False\)"):
        against_a_frozen_generator(Adversarial(forge=0.0), tmp_path, freeze=False)


def test_both_players_step_at_once_under_one_norm():
    """The engine's update is torch's own, of both gradients where the players stood and clipped as one vector."""
    model, wanted = two_players(0.0, 0.0)
    norm = torch.stack([gradient.norm() for gradient in wanted.values()]).norm()
    Adversarial()(model, batch()).loss().backward()
    found = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    torch.testing.assert_close(found, norm)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, wanted[name] * 0.1 / norm, msg=name, rtol=1e-4, atol=1e-7)


def test_a_judge_with_a_column_for_its_output_is_not_spread_over_all_pairs():
    class Column(nn.Module):
        def __init__(self, game):
            super().__init__()
            self.game, self.discriminator, self.latent = game, game.discriminator, game.latent
            self.generate = game.generate

        def forward(self, x):
            return self.game(x).unsqueeze(1)

    model = gan.points(3, 4, 5)
    assert Adversarial(r1=1.0)(Column(model), batch()).means() == pytest.approx(Adversarial(r1=1.0)(model, batch()).means(), rel=1e-6)


def test_it_tells_what_the_judge_says_of_both_sides():
    model, given = gan.points(3, 4, 5), batch()
    objective = Adversarial(r1=1.0)
    with torch.no_grad():  # as in an evaluation, where the slope is wanted all the same
        terms = objective(model, given)
        real, fake = model(given.x).sigmoid().mean(), model(model.generate(given.noise)).sigmoid().mean()
    assert terms.means()["fake"] == pytest.approx(float(fake), abs=1e-6) and terms.means()["r1"] > 0
    assert objective.measures(model(given.x), given).means()["real"] == pytest.approx(float(real), abs=1e-6)


def test_density_is_torchs_for_a_flow_that_moves_nothing():
    given = batch()
    found = Density()(Flow((3,), 2, 4), given).means()["nll"]
    assert found == pytest.approx(-float(Normal(0.0, 1.0).log_prob(given.x).sum(1).mean()), rel=1e-6)


def test_density_gives_noise_to_images_of_levels_alone():
    """In training it is fresh, in an evaluation always the same."""
    model, given = Flow((1, 2, 3), 2, 4, levels=5), Batch(x=torch.randint(5, (6, 1, 2, 3)).float() / 4)
    objective = Density()
    first, second = (objective(model, given).means()["nll"] for _ in range(2))
    assert first != second
    model.eval()
    assert objective(model, given).means() == objective(model, given).means()
    bits = objective.measures(model(given.x), given).means()["bits_per_number"]
    assert bits == pytest.approx(-model.log_prob(given.x).mean().item() / 6 / math.log(2), rel=1e-5)


def test_denoised_is_the_error_of_the_noise_at_its_step():
    torch.manual_seed(0)
    model, given = diffusion.points(3, 6, 2, 10), batch(5)
    total = 0.0
    for row in range(5):  # t is uniform: the share of the normal below the first number, cut into T
        time = 1 + math.floor(10 * 0.5 * (1 + math.erf(float(given.noise[row, 0]) / math.sqrt(2))))
        a, noise = model.kept[time], given.noise[row, 1:]
        noisy = a.sqrt() * given.x[row] + (1 - a).sqrt() * noise
        total += (model(noisy[None], torch.tensor([time]))[0] - noise).square().sum().item()
    terms = Denoised()(model, given)
    assert terms.means()["noise"] == pytest.approx(total / 15, rel=1e-5)


def test_denoised_draws_every_step_alike():
    class Heard(nn.Module):
        steps = 7

        def noised(self, x, noise, time):
            self.heard = time
            return noise

        def forward(self, x, time=None):
            return x

    model = Heard()
    torch.manual_seed(0)
    assert Denoised()(model, Batch(x=torch.zeros(7000, 2))).means() == {"noise": 0}
    counts = torch.bincount(model.heard)
    assert len(counts) == 8 and counts[0] == 0 and (counts[1:] - 1000).abs().max() < 130


@pytest.mark.parametrize("objective", [Adversarial(), Density(), Denoised()])
def test_data_that_are_no_numbers_are_refused(objective):
    with pytest.raises(BadInput, match="example 1"):
        objective.check(Batch(x=torch.tensor([[0.0], [math.nan]])))
    with pytest.raises(BadInput, match="real numbers"):
        objective.check(Batch(x=torch.tensor([[0], [1]])))
    with pytest.raises(BadInput, match="not -1 in example 7"):
        objective.check(Batch(x=torch.zeros(2, 1), weight=torch.tensor([1.0, -1.0]), ids=torch.tensor([9, 7])))
    with pytest.raises(BadInput, match=r"the weight is \(2, 1\) for 2 examples"):
        objective.check(Batch(x=torch.zeros(2, 1), weight=torch.ones(2, 1)))


@pytest.mark.parametrize(
    "settings, told",
    [
        ({"smoothing": 0.5}, "smoothing must be a number below 0.5, not 0.5 (adversarial); 0.1 calls real examples real with a pro"),
        ({"r1": -1.0}, "r1 must be a number >= 0, not -1.0 (adversarial); 0 leaves the penalty out"),
        ({"forge": float("inf")}, "forge must be a number >= 0, not inf (adversarial); 1 is the game, 0 is for a generator that is frozen"),
        ({"r1": True}, "r1 must be a number >= 0, not True"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, told):
    with pytest.raises(BadInput) as caught:
        Adversarial(**settings)
    assert str(caught.value).startswith(told)


def test_discrepancy_by_loops_and_for_normal_samples():
    random = np.random.default_rng(0)
    x, y = random.normal(size=(5, 3)), random.normal(size=(7, 3))

    def mean(a, b):
        return np.mean([[math.exp(-((p - q) ** 2).sum() / (2 * 0.4**2)) for q in b] for p in a])

    found = discrepancy(torch.tensor(x), torch.tensor(y), 0.4)
    assert found == pytest.approx(mean(x, x) + mean(y, y) - 2 * mean(x, y), rel=1e-9)
    assert discrepancy(torch.tensor(x), torch.tensor(x), 0.4) == pytest.approx(0, abs=1e-12)
    # E k of two normal numbers whose difference has variance v is w / sqrt(w^2 + v).
    a = torch.special.ndtri((torch.arange(1500, dtype=torch.float64) + 0.5) / 1500)
    wanted = 2 * 0.5 / math.sqrt(0.25 + 2) - 2 * 0.5 / math.sqrt(0.25 + 2) * math.exp(-1 / (2 * (0.25 + 2)))
    assert discrepancy(a, a + 1, 0.5) == pytest.approx(wanted, rel=0.01)
    with pytest.raises(BadInput):
        discrepancy(a, a[:, None], 0.5)
