"""What every objective promises, whichever files are in the registry."""

from __future__ import annotations

import copy
import inspect

import pytest
import torch

from sonde.core import registry
from sonde.core.terms import Terms

NAMES = registry.names("objectives")


@pytest.fixture(params=NAMES)
def tiny(request):
    torch.manual_seed(0)
    return request.param, *registry.load("objectives", request.param).tiny()


def test_registry_is_not_empty():
    assert {"gaussian", "laplace", "bernoulli", "categorical", "poisson"} <= set(NAMES)


def test_one_final_class_named_after_the_file(tiny):
    name, objective, _, _ = tiny
    module = registry.load("objectives", name)
    own = [kind for kind in vars(module).values() if inspect.isclass(kind) and kind.__module__ == module.__name__]
    assert [kind.__name__ for kind in own] == [name.title().replace("_", "")]
    assert type(objective) is own[0] and getattr(own[0], "__final__", False) and not inspect.isabstract(own[0])
    assert registry.summary("objectives", name) and own[0].__doc__


def test_gives_finite_sums_whose_counts_do_not_need_the_model(tiny):
    _, objective, model, batch = tiny
    objective.check(batch)
    terms = objective(model, batch)
    assert isinstance(terms, Terms) and len(terms)
    for term in terms.values():
        assert term.sum.ndim == 0 and term.sum.isfinite() and float(term.count) > 0
    assert terms.counts() == objective.counts(batch)


def test_parts_add_up(tiny):
    _, objective, model, batch = tiny
    model = model.double()
    batch = batch.replace(x=batch.x.double())
    whole = objective(model, batch)
    parts = objective(model, batch[:1]) + objective(model, batch[1:5]) + objective(model, batch[5:])
    assert parts.counts() == pytest.approx(whole.counts(), rel=1e-12)
    for name in whole:
        torch.testing.assert_close(parts[name].sum, whole[name].sum, rtol=1e-12, atol=1e-12)


def test_gradient_is_right_in_float64(tiny):
    _, objective, model, batch = tiny
    model, batch = model.double(), batch.replace(x=batch.x.double())
    state = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}

    class Judged(torch.nn.Module):
        """The objective sees the module itself, because a penalty looks at its weights."""

        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self):
            return objective(self.model, batch).loss()

    def loss(*values):
        return torch.func.functional_call(Judged(), {f"model.{name}": value for name, value in zip(state, values, strict=True)}, ())

    assert torch.autograd.gradcheck(loss, tuple(state.values()), atol=1e-7)


def test_one_small_step_downhill_lowers_the_loss(tiny):
    _, objective, model, batch = tiny
    better = copy.deepcopy(model)
    loss = objective(better, batch).loss()
    loss.backward()
    with torch.no_grad():
        for p in better.parameters():
            p -= 1e-3 * p.grad
    assert objective(better, batch).loss() < loss


def test_measures_and_predictions_keep_the_examples(tiny):
    _, objective, model, batch = tiny
    output = model(batch.x)
    assert len(objective.predict(output)) == len(batch)
    measures = objective.measures(output, batch)
    assert len(measures)
    for term in measures.values():
        assert term.sum.isfinite() and not term.sum.requires_grad and float(term.count) > 0


def test_changes_nothing(tiny):
    _, objective, model, batch = tiny
    before = {name: tensor.clone() for name, tensor in batch.fields.items()}
    state = torch.get_rng_state()
    objective(model, batch)
    objective.measures(model(batch.x), batch)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(batch.fields[name], before[name]) for name in before)
