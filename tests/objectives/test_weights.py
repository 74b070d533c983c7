"""Weights of examples, for every objective in the registry: 0 is as if the example were absent, 2 as if it were there twice."""

from __future__ import annotations

import pytest
import torch

from sonde.core import registry
from sonde.core.batch import Batch, call_model
from sonde.core.errors import BadInput
from sonde.objectives.contractive import Contractive
from sonde.objectives.contractive import tiny as coder
from sonde.objectives.contrastive import tiny as pairs
from sonde.objectives.sparse import Sparse

WEIGHT = torch.tensor([1, 0, 2, 1, 0, 2, 1])
OTHERS = {"contrastive"}
"""refuse weights"""


def same(objective, model, batch: Batch) -> None:
    """Means, measures and gradients of a weighted batch against those of the examples written out."""
    weighted, written = batch.replace(weight=WEIGHT.double()), batch[torch.arange(7).repeat_interleave(WEIGHT)]
    objective.check(weighted)
    actual, expected = objective(model, weighted), objective(model, written)
    assert actual.means() == pytest.approx(expected.means(), rel=1e-9)
    assert actual.counts() == objective.counts(weighted)
    measured = [objective.measures(call_model(model, examples), examples).means() for examples in (weighted, written)]
    assert measured[0] == pytest.approx(measured[1], rel=1e-9)
    slopes = [torch.autograd.grad(terms.loss(), list(model.parameters()), allow_unused=True) for terms in (actual, expected)]
    for ours, theirs in zip(*slopes, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-10)


def doubled(batch: Batch) -> Batch:
    return Batch(**{name: value.double() if value.is_floating_point() else value for name, value in batch.fields.items()})


@pytest.mark.parametrize("name", sorted(set(registry.names("objectives")) - OTHERS))
def test_weight_0_is_absent_and_weight_2_is_twice(name):
    torch.manual_seed(0)
    objective, model, batch = registry.load("objectives", name).tiny()
    same(objective, model.double(), doubled(batch))


def test_the_rate_of_a_code_is_that_of_the_weighted_examples():
    torch.manual_seed(0)
    _, model, batch = coder()
    same(Sparse(kl=0.3, rate=0.1, l1=0.2, above=0.5), model.double(), doubled(batch))
    nobody = doubled(batch).replace(weight=torch.zeros(7).double())
    assert all(term.sum.item() == 0 == float(term.count) for term in Sparse(kl=0.3, l1=0.2)(model, nobody).values())


def test_what_does_not_count_may_be_anything():
    torch.manual_seed(0)
    _, model, batch = coder()
    broken = batch.replace(x=batch.x.clone().index_fill(0, torch.tensor([1, 4]), float("nan")), weight=WEIGHT)
    means, expected = (Contractive(0.2)(model, examples).means() for examples in (broken, batch.replace(weight=WEIGHT)))
    assert means == expected


def test_a_pair_has_no_weight_of_its_own():
    objective, model, batch = pairs()
    weighted = batch.replace(weight=WEIGHT)
    calls = (lambda: objective.check(weighted), lambda: objective(model, weighted), lambda: objective.measures(model(batch.x), weighted))
    for call in calls:
        with pytest.raises(BadInput, match=r"pairs cannot be weighted.* \(contrastive\); leave out the field 'weight'"):
            call()
