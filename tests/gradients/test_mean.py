"""Averaging has one owner: parts, padding and uneven sizes give the gradient of the whole."""

import pytest
import torch
from torch import nn

from sonde.core.batch import Batch
from sonde.core.terms import Terms
from sonde.engine.world import World
from sonde.gradients.flat import Flat
from sonde.gradients.mean import accumulate_shards, full_batch


class TwoTerms:
    """A loss of two terms with different counts: cross-entropy over unmasked places, a penalty per example."""

    def __call__(self, model, batch):
        logits = model(batch.x)
        each = nn.functional.cross_entropy(logits, batch.y, reduction="none") * batch.mask
        return Terms(nll=(each.sum(), batch.mask.sum()), penalty=(logits.square().sum(), len(batch), 0.3))


class Counting(TwoTerms):
    def counts(self, batch):
        return {"nll": float(batch.mask.sum()), "penalty": float(len(batch))}


def example(n: int = 13):
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 4)).double()
    x = torch.randn(n, 6, dtype=torch.float64)
    return model, Batch(x=x, y=torch.randint(4, (n,)), mask=(torch.rand(n) < 0.6).double())


def by_hand(model, batch):
    """The loss as one writes it on paper: each term divided by its own count over the whole batch."""
    logits = model(batch.x)
    each = nn.functional.cross_entropy(logits, batch.y, reduction="none")
    loss = (each * batch.mask).sum() / batch.mask.sum() + 0.3 * logits.square().sum() / len(batch)
    return loss, torch.autograd.grad(loss, list(model.parameters()))


@pytest.mark.parametrize("objective", [TwoTerms(), Counting()], ids=["counts by a forward pass", "counts offered"])
@pytest.mark.parametrize("parts", [1, 2, 5, 13, 16])
def test_any_division_gives_the_gradient_of_the_whole(objective, parts):
    model, batch = example()
    loss, grads = by_hand(model, batch)
    flat = Flat(model)
    if parts == 1:
        got = full_batch(model, objective, flat, batch)
    else:
        pieces = torch.arange(len(batch)).tensor_split(parts)
        got = accumulate_shards(
            model, objective, flat, {i: batch[p] for i, p in enumerate(pieces)}, parts, World.single(), lambda shard: None, {}
        )
    assert got == pytest.approx(loss.item(), abs=1e-12)
    for parameter, expected in zip(model.parameters(), grads, strict=True):
        torch.testing.assert_close(parameter.grad, expected, rtol=0, atol=1e-12)


def test_the_mean_of_shard_means_is_wrong_for_uneven_shards():
    """What one must not do (atlas C-17): shards of 3 and 5 averaged as if they were equal."""
    model, batch = example(8)
    batch = batch.replace(mask=torch.ones(8, dtype=torch.float64))
    _, grads = by_hand(model, batch)
    halves = [by_hand(model, part)[1] for part in (batch[:3], batch[3:])]
    naive = [(a + b) / 2 for a, b in zip(*halves, strict=True)]
    weighted = [(3 * a + 5 * b) / 8 for a, b in zip(*halves, strict=True)]
    assert max((n - g).abs().max().item() for n, g in zip(naive, grads, strict=True)) > 1e-3
    assert max((w - g).abs().max().item() for w, g in zip(weighted, grads, strict=True)) < 1e-12


def test_each_shard_draws_from_its_own_key():
    model, batch = example()
    seen = []
    accumulate_shards(model, Counting(), Flat(model), {i: batch[i : i + 1] for i in range(3)}, 3, World.single(), seen.append, {})
    assert seen == [0, 1, 2]


def test_running_statistics_are_the_mean_over_shards():
    torch.manual_seed(0)
    model = nn.Sequential(nn.BatchNorm1d(3, momentum=0.5), nn.Linear(3, 2))
    x = torch.randn(10, 3)
    batch = Batch(x=x, y=torch.randint(2, (10,)), mask=torch.ones(10))
    pieces = {0: batch[:4], 1: batch[4:]}
    accumulate_shards(model, Counting(), Flat(model), pieces, 2, World.single(), lambda shard: None, {})
    expected = torch.stack([0.5 * x[:4].mean(0), 0.5 * x[4:].mean(0)]).mean(0)
    torch.testing.assert_close(model[0].running_mean, expected)


@pytest.mark.parametrize("momentum", [0.5, None])
def test_counters_step_once_a_batch_whatever_the_division(momentum):
    counts = []
    for parts in (2, 4):
        torch.manual_seed(0)
        model = nn.Sequential(nn.BatchNorm1d(3, momentum=momentum), nn.Linear(3, 2))
        batch = Batch(x=torch.randn(8, 3), y=torch.randint(2, (8,)), mask=torch.ones(8))
        pieces = {i: batch[p] for i, p in enumerate(torch.arange(8).tensor_split(parts))}
        for _ in range(3):
            accumulate_shards(model, Counting(), Flat(model), pieces, parts, World.single(), lambda shard: None, {})
        counts.append(int(model[0].num_batches_tracked))
    assert counts == [3, 3]


def test_constant_buffers_are_left_alone():
    """A mask of -inf, a float64 table, and shards without examples."""
    model = nn.Sequential(nn.Linear(6, 4))
    model.register_buffer("mask", torch.tensor([0.0, -torch.inf]))
    model.register_buffer("table", torch.tensor([1 / 3], dtype=torch.float64))
    _, batch = example(3)
    batch = batch.replace(x=batch.x.float(), mask=batch.mask.float())
    pieces = {i: batch[i : i + 1] for i in range(3)} | {3: batch[3:3]}
    accumulate_shards(model, Counting(), Flat(model), pieces, 4, World.single(), lambda shard: None, {})
    assert model.mask.tolist() == [0.0, -torch.inf] and model.table.item() == 1 / 3
