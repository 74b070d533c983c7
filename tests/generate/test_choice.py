"""Filters agree with the logits processors of transformers, and draws follow the probabilities that are left."""

from __future__ import annotations

import pytest
import torch

from sonde.generate import Sampling, choose
from sonde.generate import choice as module
from sonde.generate.choice import Dice, shape_logits


def theirs(logits: torch.Tensor, how: Sampling, rows: torch.Tensor) -> torch.Tensor:
    """In the order in which transformers puts them."""
    from transformers.generation import logits_process as T

    parts = [T.RepetitionPenaltyLogitsProcessor(how.repetition), T.TemperatureLogitsWarper(how.temperature)]
    parts += [T.TopKLogitsWarper(how.top_k)] if how.top_k else []
    parts += [T.TopPLogitsWarper(how.top_p)] if how.top_p < 1 else []
    parts += [T.MinPLogitsWarper(how.min_p)] if how.min_p else []
    return T.LogitsProcessorList(parts)(rows, logits.clone())


@pytest.mark.parametrize("head", [4, 32, 1024])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.7},
        {"top_k": 5},
        {"top_k": 1},
        {"top_k": 5000},
        {"top_p": 0.9},
        {"top_p": 0.05},
        {"top_p": 0.999},
        {"min_p": 0.1},
        {"min_p": 1.0},
        {"repetition": 1.5},
        {"repetition": 0.8},
        {"temperature": 1.3, "top_k": 20, "top_p": 0.8, "min_p": 0.05, "repetition": 1.2},
        {"temperature": 0.4, "top_p": 0.7, "repetition": 1.1},
    ],
)
def test_the_same_tokens_stay_as_in_transformers(options, head, monkeypatch):
    monkeypatch.setattr(module, "HEAD", head)
    g = torch.Generator().manual_seed(2)
    logits, rows = 3 * torch.randn(7, 101, generator=g), torch.randint(101, (7, 30), generator=g)
    how = Sampling(**options)
    seen = torch.zeros(7, 101, dtype=torch.bool).scatter(1, rows, True)
    actual, want = shape_logits(logits, how, seen), theirs(logits, how, rows)
    assert torch.equal(actual.isinf(), want.isinf())
    torch.testing.assert_close(actual, want, atol=1e-5, rtol=1e-5)
    assert torch.equal(
        choose(logits, Sampling(temperature=0, **{k: v for k, v in options.items() if k != "temperature"}), None, seen), want.argmax(-1)
    )


@pytest.mark.parametrize("options", [{}, {"temperature": 0.5}, {"top_k": 2}, {"top_p": 0.9}, {"min_p": 0.2}])
def test_draws_follow_the_probabilities(options):
    logits, n = torch.tensor([[0.5, -1.0, 2.0, 0.0]]), 20_000
    how = Sampling(**options)
    rolls = torch.rand(n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    want = shape_logits(logits, how)[0].double().exp()
    want /= want.sum()
    share = torch.bincount(choose(logits.expand(n, -1), how, rolls), minlength=4) / n
    assert (share - want).abs().max() < 4 * (0.25 / n) ** 0.5  # four deviations of a share
    assert share[want == 0].sum() == 0


def test_the_ends_of_the_dice_are_tokens_that_may_come():
    logits = torch.tensor([[float("-inf"), 1.0, float("-inf"), 2.0, float("-inf")]])
    for roll, token in ((0.0, 1), (1 - 2**-53, 3)):
        assert choose(logits, Sampling(), torch.tensor([roll], dtype=torch.float64)).tolist() == [token]


def test_dice_are_uniform_and_belong_to_their_row():
    rows = [torch.tensor([n]) for n in range(5)]
    rng, alone = Dice(3, rows), Dice(3, rows[4:])
    rolls = torch.stack([rng.roll() for _ in range(500)])
    assert torch.equal(rolls[:, 4], torch.cat([alone.roll() for _ in range(500)]))
    assert len(rolls.unique()) == rolls.numel() and abs(float(rolls.mean()) - 0.5) < 4 * (1 / 12 / 2500) ** 0.5
    assert not torch.equal(Dice(4, rows).roll(), rolls[0])
