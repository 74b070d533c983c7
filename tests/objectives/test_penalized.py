"""Penalties: totals by hand, minimizers against scikit-learn."""

from __future__ import annotations

import pytest
import torch
from sklearn.linear_model import Ridge
from torch import nn

from sonde.core.batch import Batch
from sonde.core.errors import BadInput
from sonde.objectives.categorical import Categorical
from sonde.objectives.gaussian import Gaussian
from sonde.objectives.penalized import Penalized, tiny

N, D = 23, 4


def problem() -> tuple[nn.Linear, Batch]:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(N, D, generator=draw, dtype=torch.float64)
    y = x @ torch.arange(1.0, D + 1, dtype=torch.float64) + 3 + 0.1 * torch.randn(N, generator=draw, dtype=torch.float64)
    torch.manual_seed(1)
    return nn.Linear(D, 1).double(), Batch(x=x, y=y)


def test_total_is_data_term_plus_each_penalty():
    model, batch = problem()
    data, w = Gaussian()(model, batch), model.weight.detach()
    terms = Penalized(Gaussian(), l2=0.3, l1=0.07)(model, batch)
    means = terms.means()
    assert means == {
        "nll": data.means()["nll"],
        "l2": pytest.approx(float((w**2).sum()), rel=1e-12),
        "l1": pytest.approx(float(w.abs().sum()), rel=1e-12),
    }
    assert terms.loss().item() == pytest.approx(means["nll"] + 0.3 * means["l2"] + 0.07 * means["l1"], rel=1e-12)
    assert terms.backward() == pytest.approx(terms.loss().item(), rel=1e-12)
    both = Penalized(Gaussian(), l2=0.3, biases=True)(model, batch).means()
    assert both["l2"] == pytest.approx(float((w**2).sum() + model.bias.detach() ** 2), rel=1e-12)


def test_factor_zero_is_the_objective_itself():
    model, batch = problem()
    assert list(Penalized(Gaussian())(model, batch)) == ["nll"]
    assert Penalized(Gaussian())(model, batch).loss().item() == Gaussian()(model, batch).loss().item()


def test_parts_add_up_and_counts_need_no_model():
    objective, model, batch = tiny()
    model, batch = model.double(), batch.replace(x=batch.x.double())
    whole = objective(model, batch)
    parts = objective(model, batch[:1]) + objective(model, batch[1:5]) + objective(model, batch[5:])
    assert parts.counts() == whole.counts() == objective.counts(batch)
    assert parts.means() == pytest.approx(whole.means(), rel=1e-12)
    shares = [objective(model, part).loss(whole.counts()).item() for part in (batch[:1], batch[1:5], batch[5:])]
    assert sum(shares) == pytest.approx(whole.loss().item(), rel=1e-12)


@pytest.mark.parametrize("shift", [0.0, 100.0])
def test_minimizer_is_that_of_ridge_and_a_shift_leaves_the_weights(shift):
    model, batch = problem()
    batch = batch.replace(y=batch.y + shift)
    objective = Penalized(Gaussian(), l2=0.2)
    solver = torch.optim.LBFGS(model.parameters(), max_iter=200, tolerance_grad=1e-12, tolerance_change=0, line_search_fn="strong_wolfe")

    def closure():
        solver.zero_grad()
        loss = objective(model, batch).loss()
        loss.backward()
        return loss

    solver.step(closure)
    # Ours: SSE / 2N + l2 w^2; theirs: SSE + alpha w^2.
    exact = Ridge(alpha=2 * N * 0.2).fit(batch.x.numpy(), batch.y.numpy())
    torch.testing.assert_close(model.weight.detach()[0], torch.tensor(exact.coef_), rtol=1e-6, atol=1e-7)
    assert model.bias.item() == pytest.approx(exact.intercept_, rel=1e-6)


def test_the_rest_is_the_objective_s_own():
    objective = Penalized(Categorical(3), l1=1.0)
    output, batch = torch.eye(3), Batch(y=torch.tensor([0, 1, 1]))
    assert objective.measures(output, batch).means() == {"accuracy": pytest.approx(2 / 3)}
    assert torch.equal(objective.predict(output), torch.softmax(output, -1))
    with pytest.raises(BadInput, match="labels must be 0 ... 2"):
        objective.check(Batch(y=torch.tensor([0, 5, 1])))


def test_bad_use_is_named():
    model, batch = problem()
    for settings in ({"l2": -1.0}, {"l1": float("nan")}, {"l2": True}, {"l1": "small"}):
        with pytest.raises(BadInput, match="of Penalized must be (>= 0|a finite number|a number)"):
            Penalized(Gaussian(), **settings)
    with pytest.raises(BadInput, match="the model itself"):
        Penalized(Gaussian(), l2=1.0)(lambda x: model(x), batch)
    with pytest.raises(BadInput, match="no weights"):
        Penalized(Gaussian(), l2=1.0)(nn.Identity(), Batch(x=batch.y, y=batch.y))
