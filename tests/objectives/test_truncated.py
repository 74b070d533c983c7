"""Truncated back-propagation: the value of the whole row, and of its gradient the terms inside each piece."""

from __future__ import annotations

import pytest
import torch

from sonde.core.batch import Batch
from sonde.core.errors import BadInput
from sonde.models.language_model import LanguageModel
from sonde.objectives.categorical import Categorical
from sonde.objectives.truncated import Truncated


def setting(mixer: str = "lstm") -> tuple[LanguageModel, Batch]:
    torch.manual_seed(0)
    model = LanguageModel(vocabulary=11, width=8, depth=2, mixer=mixer).double()
    tokens = torch.randint(11, (3, 14), generator=torch.Generator().manual_seed(1))
    mask = torch.arange(13) < torch.tensor([[13], [5], [9]])
    return model, Batch(x=tokens[:, :-1], y=tokens[:, 1:], mask=mask, weight=torch.tensor([1.0, 2.0, 0.5]))


def gradient(objective, model, batch) -> torch.Tensor:
    return torch.cat([g.flatten() for g in torch.autograd.grad(objective(model, batch).loss(), list(model.parameters()))])


@pytest.mark.parametrize("mixer", ["lstm", "gla", "attention"])
def test_the_value_is_that_of_the_whole_row(mixer: str) -> None:
    model, batch = setting(mixer)
    whole, cut = Categorical()(model, batch), Truncated(Categorical(), steps=4)(model, batch)
    torch.testing.assert_close(cut["nll"].sum, whole["nll"].sum)
    assert cut.counts() == whole.counts() == Truncated(Categorical(), steps=4).counts(batch)


def test_pieces_as_long_as_the_row_give_the_full_gradient_and_shorter_ones_do_not() -> None:
    model, batch = setting()
    full = gradient(Categorical(), model, batch)
    for steps in (13, 100):
        torch.testing.assert_close(gradient(Truncated(Categorical(), steps), model, batch), full)
    assert float((gradient(Truncated(Categorical(), 4), model, batch) - full).norm() / full.norm()) > 1e-3


def test_the_gradient_is_that_of_the_pieces_from_fixed_states() -> None:
    model, batch = setting()
    grad = gradient(Truncated(Categorical(), 5), model, batch)
    count = Categorical().counts(batch)["nll"]
    expected = torch.zeros_like(grad)
    for start in (0, 5, 10):
        with torch.no_grad():
            state = model.advance(batch.x[:, :start])[1] if start else None
        cut = slice(start, start + 5)
        output, _ = model.advance(batch.x[:, cut], state)
        weights = batch.mask[:, cut] * batch.weight.unsqueeze(1)
        cost = torch.nn.functional.cross_entropy(output.transpose(1, 2), batch.y[:, cut], reduction="none")
        expected += torch.cat([g.flatten() for g in torch.autograd.grad((cost * weights).sum() / count, list(model.parameters()))])
    torch.testing.assert_close(grad, expected)


def test_unordered_pieces_begin_afresh() -> None:
    model, batch = setting()
    batch = Batch(x=batch.x[:, :12], y=batch.y[:, :12])
    cut = Batch(x=batch.x.reshape(9, 4), y=batch.y.reshape(9, 4))
    torch.testing.assert_close(gradient(Truncated(Categorical(), 4, ordered=False), model, batch), gradient(Categorical(), model, cut))


def test_nothing_is_remembered_between_calls() -> None:
    model, batch = setting()
    objective = Truncated(Categorical(), 4)
    assert torch.equal(gradient(objective, model, batch), gradient(objective, model, batch))


def test_wrong_arguments_and_models_are_refused() -> None:
    model, batch = setting()
    with pytest.raises(BadInput, match="Linear cannot continue from a state"):
        Truncated(Categorical())(torch.nn.Linear(2, 2), batch)
    with pytest.raises(BadInput, match="a target for each step"):
        Truncated(Categorical())(model, Batch(x=batch.x, y=batch.y[:, 0]))
