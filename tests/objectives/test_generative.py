"""Objectives of generative models against losses written out, and against torch.distributions."""

from __future__ import annotations

import copy
import math
import signal
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Normal
from torch.nn.functional import binary_cross_entropy_with_logits as bce

import sonde
from sonde.core.batch import Batch, Data
from sonde.core.errors import BadInput, Preempted
from sonde.core.recipe import Callback, Recipe
from sonde.core.terms import Terms
from sonde.data.tensors import TensorSource
from sonde.models import diffusion, gan
from sonde.models.flow import Flow
from sonde.objectives.adversarial import Adversarial
from sonde.objectives.denoised import Denoised
from sonde.objectives.density import Density
from sonde.objectives.information.discrepancy import discrepancy
from sonde.objectives.penalized import Penalized
from sonde.optim.build import optimizer


def batch(n: int = 6, noise: int = 4) -> Batch:
    rng = torch.Generator().manual_seed(3)
    return Batch(x=torch.randn(n, 3, generator=rng), noise=torch.randn(n, noise, generator=rng))


def two_players(smoothing: float, r1: float) -> tuple[gan.GAN, dict[str, torch.Tensor]]:
    """A GAN and the gradients that two separate backward passes of the textbook's losses give it."""
    torch.manual_seed(0)
    model, examples = gan.points(3, 4, 5, 2), batch()
    D, G = copy.deepcopy(model.discriminator), copy.deepcopy(model.generator)
    x = examples.x.clone().requires_grad_()
    real, fake = D(x).flatten(), D(G(examples.noise).detach()).flatten()
    slope = torch.autograd.grad(real.sum(), x, create_graph=True)[0].square().flatten(1).sum(1).mean()
    (bce(real, torch.full_like(real, 1 - smoothing)) + bce(fake, torch.zeros_like(fake)) + r1 / 2 * slope).backward()
    expected = {f"discriminator.{name}": p.grad.clone() for name, p in D.named_parameters()}
    held = D(G(examples.noise)).flatten()
    bce(held, torch.ones_like(held)).backward()
    return model, expected | {f"generator.{name}": p.grad for name, p in G.named_parameters()}


@pytest.mark.parametrize("smoothing, r1", [(0.0, 0.0), (0.1, 0.0), (0.2, 3.0)])
def test_one_backward_pass_is_that_of_both_players(smoothing, r1):
    model, expected = two_players(smoothing, r1)
    Adversarial(smoothing, r1)(model, batch()).loss().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], msg=name)


class Game(nn.Module):
    """One number each: forgeries are `generator.weight * z`, the judge's logit is `discriminator.weight * x`."""

    latent = 1

    def __init__(self, judge: float = 0.3, forger: float = 0.5) -> None:
        super().__init__()
        self.discriminator, self.generator = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
        with torch.no_grad():
            self.discriminator.weight.fill_(judge)
            self.generator.weight.fill_(forger)

    def forward(self, x):
        return self.discriminator(x).flatten()

    def generate(self, noise):
        return self.generator(noise)


ONES = TensorSource(torch.ones(5, 1), noise=torch.ones(5, 1))
"""five times the point 1, and five times the noise 1"""


def play(tmp_path, steps: int, rule: Any = None, objective: Any = None, model: Any = None, source: Any = ONES, **settings: Any):
    """A run of the game with so many turns."""
    recipe = Recipe(
        model=model or Game(),
        data=Data(source, source, name="ones"),
        objective=objective or Adversarial(),
        optimizer=rule or optimizer("sgd", lr=0.5),
        steps=steps,
        batch_size=5,
        **settings,
    )
    return sonde.train(recipe, run=tmp_path / f"run-{steps}", threads=1, quiet=True)


def weights(run) -> tuple[float, float]:
    model = run.model()
    return model.discriminator.weight.item(), model.generator.weight.item()


def sigmoid(a: float) -> float:
    return 1 / (1 + math.exp(-a))


def by_hand(
    steps: int, discriminator_steps: int = 1, generator_steps: int = 1, rate: float = 0.5, clip: float = math.inf, l2: float = 0.0
) -> tuple[float, float]:
    """The game on ONES in plain numbers: D(x) = sigmoid(d x), G(z) = g z."""
    d, g = 0.3, 0.5
    for step in range(steps):
        if step % (discriminator_steps + generator_steps) < discriminator_steps:
            slope = 2 * l2 * d - sigmoid(-d) + g * sigmoid(d * g)  # of -log D(1) - log(1 - D(g)) by d
            d -= rate * slope * min(1.0, clip / abs(slope))
        else:
            slope = 2 * l2 * g - d * sigmoid(-d * g)  # of -log D(g) by g, against the judge as it is after its turn
            g -= rate * slope * min(1.0, clip / abs(slope))
    return d, g


@pytest.mark.parametrize("discriminator_steps, generator_steps", [(1, 1), (3, 1), (1, 2)])
def test_the_players_take_turns_as_worked_out_by_hand(discriminator_steps, generator_steps, tmp_path):
    for steps in (1, 2, 3, 7):
        run = play(tmp_path, steps, objective=Adversarial(discriminator_steps=discriminator_steps, generator_steps=generator_steps))
        assert weights(run) == pytest.approx(by_hand(steps, discriminator_steps, generator_steps), rel=1e-5), steps


def test_after_a_run_the_objective_knows_no_turn(tmp_path):
    objective = Adversarial()
    play(tmp_path, 3, objective=objective)
    assert objective.phase is None


def test_the_norm_that_is_clipped_is_that_of_the_player_who_moves(tmp_path):
    assert weights(play(tmp_path, 4, clip_norm=0.05)) == pytest.approx(by_hand(4, clip=0.05), rel=1e-5)


@pytest.mark.parametrize("name", ["adamw", "sgd", "muon", "rmsprop", "adafactor"])
def test_who_waits_does_not_move_and_each_player_has_an_optimizer_of_its_own(name, tmp_path):
    """Against torch: two optimizers, each asked at its own turns, with decay and momentum that would move who waits."""
    extra = {} if name in ("muon", "adafactor", "rmsprop") else {"momentum": 0.9} if name == "sgd" else {"betas": (0.5, 0.9)}
    rule = optimizer(name, lr=0.03, weight_decay=0.1, decay_all=True, **extra)
    torch.manual_seed(0)
    model = gan.points(3, 4, 5, 2)
    twin = copy.deepcopy(model)
    optimizers = [
        rule.build([{"params": list(each.parameters()), "weight_decay": 0.1, "names": [n for n, _ in each.named_parameters()]}])
        for each in (twin.discriminator, twin.generator)
    ]
    examples = batch(7)
    for step in range(5):
        real, fake = twin(examples.x), twin.discriminator(twin.generate(examples.noise)).flatten()
        loss = bce(fake, torch.ones_like(fake)) if step % 2 else bce(real, torch.ones_like(real)) + bce(fake, torch.zeros_like(fake))
        twin.zero_grad()
        loss.backward()
        optimizers[step % 2].step()
    source = TensorSource(examples.x, noise=examples.noise)
    recipe = Recipe(model=model, data=Data(source, source, name="points"), objective=Adversarial(), optimizer=rule, steps=5, batch_size=7)
    run = sonde.train(recipe, run=tmp_path / "run", threads=1, quiet=True)
    for name, value in run.model().state_dict().items():
        torch.testing.assert_close(value, twin.state_dict()[name], rtol=1e-4, atol=1e-5, msg=name)


def test_turns_stay_on_the_circle_that_moving_at_once_leaves(tmp_path):
    """Data at 0 and a forger of one point, g: both slopes are a quarter turn around d = g = 0 (Mescheder and others, 2018)."""
    zeros = TensorSource(torch.zeros(5, 1), noise=torch.ones(5, 1))
    paths = [play(tmp_path, steps, source=zeros) for steps in (60, 81, 100, 123)]
    turns = [math.hypot(*weights(run)) for run in paths]
    d, g = 0.3, 0.5
    for _ in range(50):
        d, g = d - 0.5 * g * sigmoid(d * g), g + 0.5 * d * sigmoid(-d * g)
    start = math.hypot(0.3, 0.5)
    assert all(0.6 * start < far < 1.4 * start for far in turns) and math.hypot(d, g) > 1.4 * start


class StopAfter(Callback):
    """Asks the run to stop after a step, once."""

    def __init__(self, last: int) -> None:
        self.last = last

    def step(self, run, step, row):
        if step == self.last:
            signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize("last", [1, 2, 4])  # after one step the forger has no moments yet
def test_a_run_goes_on_at_the_turn_where_it_stopped(last, tmp_path):
    settings: dict[str, Any] = {"rule": optimizer("adamw", lr=0.05, weight_decay=0.1, decay_all=True), "log_every": 1}
    expected = weights(play(tmp_path / "whole", 7, **settings))
    with pytest.raises(Preempted):
        play(tmp_path, 7, **settings, callbacks=(StopAfter(last),))
    assert weights(play(tmp_path, 7, **settings, callbacks=(StopAfter(last),))) == expected


def test_a_generator_whose_turn_never_comes_rests_and_is_still_told(tmp_path):
    run = play(tmp_path, 3, optimizer("adamw", lr=0.1, weight_decay=0.5, decay_all=True), Adversarial(generator_steps=0))
    d, g = weights(run)
    figures = run.result["metrics"]
    assert g == 0.5 and abs(d - 0.3) > 0.01
    assert math.isfinite(figures["valid/generator"]) and figures["valid/loss"] == pytest.approx(figures["valid/discriminator"], rel=1e-6)


def test_a_player_with_a_turn_and_nothing_to_train_is_refused(tmp_path):
    model = Game()
    model.generator.requires_grad_(False)
    with pytest.raises(BadInput, match=r"phase 1 of the objective has no weights that train \(Adversarial\); leave the phase out"):
        play(tmp_path, 2, model=model)


def test_a_penalty_around_the_game_keeps_its_turns(tmp_path):
    """The penalty gives the player who waits a gradient too; neither its step nor the norm may know of it."""
    for steps in (1, 2, 5):
        run = play(tmp_path, steps, objective=Penalized(Adversarial(), l2=0.5), clip_norm=0.05)
        assert weights(run) == pytest.approx(by_hand(steps, clip=0.05, l2=0.5), rel=1e-5)


def test_turns_in_parts_of_a_batch_are_those_of_the_whole(tmp_path):
    assert weights(play(tmp_path, 5, accumulate=2)) == pytest.approx(by_hand(5), rel=1e-5)


@pytest.mark.parametrize(
    "phases, phase_of, message",
    [
        ((), lambda name: 0, r"the phases of the objective are \(\)"),
        ((0, -1), lambda name: 0, r"the phases of the objective are \(0, -1\)"),
        ((0, 1), None, "has phases but no 'phase_of'"),
        ((0,), lambda name: -1, r"phase_of\('discriminator.weight'\) is -1"),
        ((0, 1), lambda name: 0, "phase 1 of the objective has no weights that train"),
    ],
)
def test_phases_that_cannot_be_are_refused(phases, phase_of, message, tmp_path):
    class Odd:
        def __call__(self, model, batch):
            return Terms(nll=(model(batch.x).square().sum(), len(batch)))

    objective = Odd()
    objective.phases = phases
    if phase_of is not None:
        objective.phase_of = phase_of
    with pytest.raises(BadInput, match=message):
        play(tmp_path, 1000, objective=objective)


def test_rows_tell_of_both_players(tmp_path):
    run = play(tmp_path, 800)  # a row every 4 steps would always be the forger's
    assert {row["phase"] for row in run.metrics if "phase" in row} == {0, 1}
    assert all((row["step"] - 1) % 2 == row["phase"] for row in run.metrics if "phase" in row)


def test_losses_of_other_sizes_are_no_explosion_of_the_players(tmp_path):
    """Every third step is of a player whose loss is a hundred times as large."""

    class Uneven:
        phases, phase = (0, 0, 1), None

        def phase_of(self, name):
            return int(name.startswith("generator"))

        def __call__(self, model, batch):
            away = (model.generator.weight if self.phase else model.discriminator.weight).square().sum()
            return Terms(nll=(len(batch) * away * (100 if self.phase else 1), len(batch)))

    run = play(tmp_path, 200, optimizer("sgd", lr=1e-5), Uneven())
    assert run.result["steps"] == 200


def test_a_model_that_is_spread_over_processes_has_no_phases():
    from types import SimpleNamespace

    from sonde.engine import strategies
    from sonde.engine.phases import Phases

    world = SimpleNamespace(size=2)
    with pytest.raises(
        BadInput, match=r"FSDP does not support objectives with phases, such as GAN training \(parallel\); leave --parallel fsdp out"
    ):
        strategies.build(Game(), None, Phases(Adversarial()), world, shards=2, parallel="fsdp", steady=True)


@pytest.mark.parametrize("r1", [0.0, 3.0])
def test_only_the_player_whose_turn_it_is_gets_a_gradient_and_both_are_told(r1):
    model, expected = two_players(0.1, r1)
    objective = Adversarial(0.1, r1)
    means = objective(model, batch()).means()
    for step, player in enumerate(("discriminator", "generator")):
        model.zero_grad()
        objective.phase = step
        terms = objective(model, batch())
        terms.loss().backward()
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(parameter.grad, expected[name] if name.startswith(player) else None, msg=name)
        assert terms.means() == pytest.approx(means, rel=1e-6)


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
    model, examples = gan.points(3, 4, 5), batch()
    objective = Adversarial(r1=1.0)
    with torch.no_grad():  # as in an evaluation, where the slope is wanted all the same
        terms = objective(model, examples)
        real, fake = model(examples.x).sigmoid().mean(), model(model.generate(examples.noise)).sigmoid().mean()
    assert terms.means()["fake"] == pytest.approx(float(fake), abs=1e-6) and terms.means()["r1"] > 0
    assert objective.measures(model(examples.x), examples).means()["real"] == pytest.approx(float(real), abs=1e-6)


def test_density_is_torchs_for_a_flow_that_moves_nothing():
    examples = batch()
    nll = Density()(Flow((3,), 2, 4), examples).means()["nll"]
    assert nll == pytest.approx(-float(Normal(0.0, 1.0).log_prob(examples.x).sum(1).mean()), rel=1e-6)


def test_density_gives_noise_to_images_of_levels_alone():
    """In training it is fresh, in an evaluation always the same."""
    model, examples = Flow((1, 2, 3), 2, 4, levels=5), Batch(x=torch.randint(5, (6, 1, 2, 3)).float() / 4)
    objective = Density()
    first, second = (objective(model, examples).means()["nll"] for _ in range(2))
    assert first != second
    model.eval()
    assert objective(model, examples).means() == objective(model, examples).means()
    bits = objective.measures(model(examples.x), examples).means()["bits_per_number"]
    assert bits == pytest.approx(-model.log_prob(examples.x).mean().item() / 6 / math.log(2), rel=1e-5)


def test_denoised_is_the_error_of_the_noise_at_its_step():
    torch.manual_seed(0)
    model, examples = diffusion.points(3, 6, 2, 10), batch(5)
    total = 0.0
    for row in range(5):  # t is uniform: the share of the normal below the first number, cut into T
        time = 1 + math.floor(10 * 0.5 * (1 + math.erf(float(examples.noise[row, 0]) / math.sqrt(2))))
        a, noise = model.alphas_cumprod[time], examples.noise[row, 1:]
        noisy = a.sqrt() * examples.x[row] + (1 - a).sqrt() * noise
        total += (model(noisy[None], torch.tensor([time]))[0] - noise).square().sum().item()
    terms = Denoised()(model, examples)
    assert terms.means()["noise"] == pytest.approx(total / 15, rel=1e-5)


def test_denoised_draws_every_step_alike():
    class Heard(nn.Module):
        steps = 7

        def add_noise(self, x, noise, time):
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


def test_discrepancy_by_loops_and_for_normal_samples():
    random = np.random.default_rng(0)
    x, y = random.normal(size=(5, 3)), random.normal(size=(7, 3))

    def mean(a, b):
        return np.mean([[math.exp(-((p - q) ** 2).sum() / (2 * 0.4**2)) for q in b] for p in a])

    mmd = discrepancy(torch.tensor(x), torch.tensor(y), 0.4)
    assert mmd == pytest.approx(mean(x, x) + mean(y, y) - 2 * mean(x, y), rel=1e-9)
    assert discrepancy(torch.tensor(x), torch.tensor(x), 0.4) == pytest.approx(0, abs=1e-12)
    # E k of two normal numbers whose difference has variance v is w / sqrt(w^2 + v).
    a = torch.special.ndtri((torch.arange(1500, dtype=torch.float64) + 0.5) / 1500)
    expected = 2 * 0.5 / math.sqrt(0.25 + 2) - 2 * 0.5 / math.sqrt(0.25 + 2) * math.exp(-1 / (2 * (0.25 + 2)))
    assert discrepancy(a, a + 1, 0.5) == pytest.approx(expected, rel=0.01)
    with pytest.raises(BadInput):
        discrepancy(a, a[:, None], 0.5)
