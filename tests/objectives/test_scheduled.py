"""Scheduled sampling: fractions of the step, what is fed, and that nothing but the inputs changes."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import sonde
from sonde.core.batch import Batch, Data
from sonde.core.errors import BadInput
from sonde.core.recipe import Recipe
from sonde.data.tensors import TensorSource
from sonde.generate import generate
from sonde.models.language_model import LanguageModel
from sonde.models.seq2seq import Seq2Seq
from sonde.objectives.categorical import Categorical
from sonde.objectives.penalized import Penalized
from sonde.objectives.scheduled import Scheduled, exponential, inverse_sigmoid, linear, mix_inputs
from sonde.optim.build import optimizer

V, B, S, T = 9, 40, 6, 8


@pytest.fixture
def model() -> Seq2Seq:
    torch.manual_seed(0)
    return Seq2Seq(V, 8, mixer="gla heads=2").train()


@pytest.fixture
def batch() -> Batch:
    torch.manual_seed(1)
    y = torch.randint(1, V, (B, T))
    x = torch.cat([torch.zeros(B, 1, dtype=torch.long), y[:, :-1]], 1)
    lengths = torch.arange(B) % S + 1
    return Batch(source=torch.randint(1, V, (B, S)), lengths=lengths, x=x, y=y, mask=torch.arange(T) < (torch.arange(B) % T + 1)[:, None])


@pytest.mark.parametrize(
    "fraction", [linear(70, 0.5), exponential(0.97), exponential(0.9, 0.3), inverse_sigmoid(12.0), inverse_sigmoid(30, 0.5)]
)
def test_fractions_rise_from_0_and_stay_within_bounds(fraction) -> None:
    shares = [fraction(step) for step in range(2000)]
    assert shares[0] == 0 and all(a <= b for a, b in zip(shares, shares[1:])) and shares[-1] <= 1 and shares[-1] > 0.29


def test_fractions_by_hand() -> None:
    assert linear(200, 0.5)(50) == 0.125 and linear(200, 0.5)(1000) == 0.5
    assert exponential(0.5)(3) == 0.875
    fraction = lambda i: 1 - 10 / (10 + math.exp(i / 10))  # noqa: E731  as Bengio et al. print it
    assert inverse_sigmoid(10)(40) == pytest.approx((fraction(40) - fraction(0)) / (1 - fraction(0)), rel=1e-12)
    assert inverse_sigmoid(10)(10**9) == 1.0


def test_fraction_0_is_teacher_forcing_exactly(model: Seq2Seq, batch: Batch) -> None:
    plain, ours = Categorical(V), Scheduled(Categorical(V), lambda step: 0.0)
    assert torch.equal(mix_inputs(model, batch, 0.0), batch.x)
    assert torch.equal(ours(model, batch).loss(), plain(model, batch).loss())
    assert ours.counts(batch) == plain.counts(batch)


def test_fraction_1_is_free_running(model: Seq2Seq, batch: Batch) -> None:
    free = generate(model, batch.x[:, :1], T - 1, state=model.begin(batch.source, batch.lengths), temperature=0)
    assert torch.equal(mix_inputs(model, batch, 1.0, likeliest=True)[:, 1:], free)


def test_gradient_is_that_of_a_loop_that_feeds_itself(model: Seq2Seq, batch: Batch) -> None:
    """Half of the places are its own likeliest tokens; the loop is written out here with the same coins."""
    model = model.double()
    torch.manual_seed(5)
    actual = Scheduled(Categorical(V), lambda step: 0.5, likeliest=True)(model, batch).loss()
    torch.manual_seed(5)
    own = torch.rand(B, T - 1) < 0.5
    state, token, cost = model.begin(batch.source, batch.lengths), batch.x[:, 0], torch.zeros(())
    for t in range(T):
        logits, state = model.advance(token.unsqueeze(1), state)
        cost = cost - (logits[:, 0].log_softmax(-1).gather(1, batch.y[:, t : t + 1]).squeeze(1) * batch.mask[:, t]).sum()
        if t + 1 < T:
            token = torch.where(own[:, t], logits[:, 0].argmax(-1), batch.x[:, t + 1])
    expected = cost / batch.mask.sum()
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-12)
    for a, b in zip(*(torch.autograd.grad(loss, list(model.parameters())) for loss in (actual, expected))):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("fraction", [0.1, 0.35, 0.8])
def test_the_measured_fraction_is_the_one_asked_for(fraction: float) -> None:
    """A model that never predicts the true token: every position that differs from the truth is its own."""

    class Says9:
        def advance(self, tokens: Tensor, state=None) -> tuple[Tensor, dict]:
            logits = torch.full((*tokens.shape, 10), -1e9)
            logits[..., 9] = 0
            return logits, {}

    torch.manual_seed(0)
    x = torch.zeros(400, 51, dtype=torch.long)
    inputs = mix_inputs(Says9(), Batch(x=x), fraction)
    assert float((inputs[:, 1:] == 9).float().mean()) == pytest.approx(fraction, abs=0.02)
    assert bool((inputs[:, 0] == 0).all())


def test_own_tokens_are_drawn_from_what_the_model_expects() -> None:
    torch.manual_seed(0)
    model = LanguageModel(3, 8, 1, "gla heads=2").train()
    with torch.no_grad():
        model.head.weight *= 40
        chances = model(torch.zeros(1, 1, dtype=torch.long))[0, 0].softmax(-1)
        drawn = mix_inputs(model, Batch(x=torch.zeros(6000, 2, dtype=torch.long)), 1.0)[:, 1]
    shares = torch.bincount(drawn, minlength=3) / 6000
    torch.testing.assert_close(shares, chances, rtol=0, atol=0.03)  # five standard errors of 6000 draws


def test_a_model_at_rest_reads_the_truth(model: Seq2Seq, batch: Batch) -> None:
    ours = Scheduled(Categorical(V), lambda step: 1.0)
    assert torch.equal(ours(model.eval(), batch).loss(), Categorical(V)(model, batch).loss())


def test_a_fraction_beyond_1_is_refused(model: Seq2Seq, batch: Batch) -> None:
    with pytest.raises(BadInput, match="fraction is 1.5 at step 0"):
        Scheduled(Categorical(V), lambda step: 1.5)(model, batch)


def recipe(batch: Batch) -> Recipe:
    objective = Scheduled(Categorical(V), linear(6))
    source = TensorSource(**batch.fields)
    return Recipe(
        model=lambda: Seq2Seq(V, 8, mixer="gla heads=2"),
        data=Data(train=source, valid=source),
        objective=objective,
        optimizer=optimizer("adam", lr=1e-2),
        steps=8,
        batch_size=16,
        log_every=1,
    )


def test_the_engine_moves_it_along_and_a_resumed_run_is_the_same(batch: Batch, tmp_path) -> None:
    shares = []
    plain = Categorical(V)

    class Watched:
        """Notes how many inputs are not the true ones."""

        def __call__(self, model, part):
            if torch.is_grad_enabled():
                shares.append(float((part.x != batch.x[part.ids]).float().mean()))
            return plain(model, part)

        def __getattr__(self, name):
            return getattr(plain, name)

    setup = recipe(batch)
    setup.objective.objective = Watched()
    whole = sonde.train(setup, run=tmp_path / "whole", seed=3, threads=1, quiet=True)
    assert shares[0] == 0 and shares[-1] > 0.5 and setup.objective.reached == 7

    class Halt(Exception):
        pass

    class Stops(sonde.core.recipe.Callback):
        def step(self, run, step, row):
            if step == 5:
                raise Halt

    again = recipe(batch)
    with pytest.raises(Halt):
        sonde.train(again.replace(callbacks=[Stops()]), run=tmp_path / "halted", seed=3, threads=1, quiet=True, checkpoint_every=4)
    fresh = recipe(batch)
    resumed = sonde.train(fresh.replace(callbacks=[sonde.core.recipe.Callback()]), run=tmp_path / "halted", quiet=True)
    losses = [[row["loss"] for row in run.metrics if "loss" in row] for run in (whole, resumed)]
    assert losses[0] == losses[1] and len(losses[0]) == 8


@pytest.mark.parametrize("parts", [1, 2])
def test_the_fraction_depends_on_the_step_and_not_on_what_is_logged(batch: Batch, tmp_path, parts: int) -> None:
    weights = []
    for every in (1, 20):
        setup = recipe(batch).replace(log_every=every, accumulate=parts)
        run = sonde.train(setup, run=tmp_path / str(every), seed=3, threads=1, quiet=True)
        weights.append(torch.cat([p.detach().flatten() for p in run.model().parameters()]))
    assert torch.equal(*weights)


def test_another_run_of_the_same_recipe_begins_at_its_beginning(batch: Batch, tmp_path) -> None:
    setup = recipe(batch)
    first, second = (
        [row["loss"] for row in sonde.train(setup, run=tmp_path / name, seed=3, threads=1, quiet=True).metrics if "loss" in row]
        for name in ("one", "two")
    )
    assert first == second


def test_a_penalty_around_it_passes_the_step_on(batch: Batch, tmp_path) -> None:
    setup = recipe(batch)
    sonde.train(setup.replace(objective=Penalized(setup.objective, l2=1e-3)), run=tmp_path / "run", seed=3, threads=1, quiet=True)
    assert setup.objective.reached == 7
