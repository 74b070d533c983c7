"""ELMo: two directions that each see one side, a mix that is the formula, and only the mix and the head learn."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import sonde
from sonde.core.batch import Data
from sonde.core.errors import BadInput
from sonde.core.recipe import Recipe
from sonde.data.tensors import TensorSource
from sonde.models.elmo import Elmo, ElmoFeatures, LayerMix, neighbors
from sonde.nn.spans import Spans
from sonde.objectives.categorical import Categorical
from sonde.optim.build import optimizer

MIXER = "lstm"


def model(**options) -> Elmo:
    return Elmo(**{"vocabulary": 9, "width": 8, "depth": 2, "mixer": MIXER, **options}).double()


@torch.no_grad()
def test_each_direction_sees_its_own_side():
    one, x = model(), torch.randint(9, (2, 7))
    other = x.clone()
    other[:, 3] = (other[:, 3] + 1) % 9
    differs = (one(x) != one(other)).any(-1).all(0)
    assert differs[0].tolist() == [False, False, False, True, True, True, True]
    assert differs[1].tolist() == [True, True, True, True, False, False, False]
    layers = one.layers(x)
    assert layers.shape == (3, 2, 7, 16)
    torch.testing.assert_close(layers[0], one.embedding(x).repeat(1, 1, 2))
    torch.testing.assert_close(one(x)[:, 1], one.head(layers[-1][..., 8:]))


@torch.no_grad()
def test_padding_changes_nothing():
    one, x, lengths = model(), torch.randint(9, (3, 7)), torch.tensor([7, 2, 5])
    layers = one.layers(x, spans=Spans.of_lengths(lengths))
    for row, n in enumerate(lengths):
        torch.testing.assert_close(layers[:, row, :n], one.layers(x[row : row + 1, :n])[:, 0])


@torch.no_grad()
def test_a_torch_lstm_of_the_same_weights_agrees():
    one, x, theirs = model(depth=1), torch.randint(9, (2, 6)), nn.LSTM(8, 8, bidirectional=True, batch_first=True).double()
    for layer, end in ((one.forward_layers[0], ""), (one.backward_layers[0], "_reverse")):
        getattr(theirs, f"weight_ih_l0{end}").copy_(layer.x.weight)
        getattr(theirs, f"weight_hh_l0{end}").copy_(layer.h.weight)
        getattr(theirs, f"bias_ih_l0{end}").copy_(layer.x.bias)
        getattr(theirs, f"bias_hh_l0{end}").zero_()
    torch.testing.assert_close(one.layers(x)[1], theirs(one.embedding(x))[0])


def test_the_mix_is_the_formula_and_begins_even():
    mix, layers = LayerMix(3).double(), torch.randn(3, 2, 5, 4, dtype=torch.float64)
    torch.testing.assert_close(mix(layers), layers.mean(0))
    with torch.no_grad():
        mix.s.copy_(torch.tensor([0.3, -1.0, 2.0]))
        mix.gamma.fill_(1.7)
    weights = mix.s.exp() / mix.s.exp().sum()
    torch.testing.assert_close(mix(layers), 1.7 * sum(w * layer for w, layer in zip(weights, layers)))
    assert mix.weights.sum().item() == pytest.approx(1)


def test_targets_are_both_neighbors():
    y, mask = neighbors(torch.tensor([[3, 1, 4, 1], [5, 2, 0, 0]]), torch.tensor([4, 2]))
    assert y[0].tolist() == [[1, 4, 1, 0], [0, 3, 1, 4]] and mask[0].tolist() == [[True, True, True, False], [False, True, True, True]]
    assert y[1, :, :2].tolist() == [[2, 0], [0, 5]] and mask[1].tolist() == [[True, False, False, False], [False, True, False, False]]


class Head(nn.Module):
    """A label for each token from frozen features."""

    def __init__(self, body: ElmoFeatures) -> None:
        super().__init__()
        self.body, self.head = body, nn.Linear(body.width, 3)

    def forward(self, x):
        return self.head(self.body(x))


def test_trained_frozen_and_mixed_by_the_engine(tmp_path):
    x = torch.randint(9, (64, 8), generator=torch.Generator().manual_seed(1))
    x[:, 1::2] = x[:, ::2]  # every second token repeats the one before it
    y, mask = neighbors(x)
    first = Recipe(
        model=lambda: Elmo(9, 16, 2, MIXER),
        data=Data(TensorSource(x, y, mask=mask)),
        objective=Categorical(classes=9),
        optimizer=optimizer("adam", lr=3e-2),
        batch_size=64,
        steps=60,
    )
    run = sonde.train(first, run=tmp_path / "first", quiet=True, threads=1)
    losses = [row["loss"] for row in run.metrics if "loss" in row]
    assert losses[-1] < 0.75 * losses[0]
    elmo = run.model()
    before = {name: p.clone() for name, p in elmo.named_parameters()}

    task = Recipe(
        model=lambda: Head(ElmoFeatures(elmo)),
        data=Data(TensorSource(x, torch.roll(x, -1, 1) % 3)),  # asks for the next token: the backward half knows it
        objective=Categorical(classes=3),
        optimizer=optimizer("adam", lr=3e-2),
        batch_size=64,
        steps=40,
    )
    tuned = sonde.train(task, run=tmp_path / "second", quiet=True, threads=1).model()
    learned = {name for name, p in tuned.named_parameters() if p.requires_grad}
    assert learned == {"body.mix.s", "body.mix.gamma", "head.weight", "head.bias"}
    assert all(torch.equal(p, before[name]) for name, p in tuned.body.elmo.named_parameters())
    assert not torch.equal(tuned.body.mix.s, torch.zeros(3)) and tuned.body.mix.weights.sum().item() == pytest.approx(1)


def test_gradients_reach_the_scalars_only():
    head = Head(ElmoFeatures(model())).double()
    head(torch.randint(9, (2, 5))).square().sum().backward()
    assert {name for name, p in head.named_parameters() if p.grad is not None} == {
        "body.mix.s",
        "body.mix.gamma",
        "head.weight",
        "head.bias",
    }


def test_what_cannot_be_is_refused():
    with pytest.raises(BadInput, match="would see the token"):
        model(mixer="attention causal=false")
    with pytest.raises(BadInput, match="cannot continue"):
        ElmoFeatures(model()).features(torch.tensor([[1]]), {"x": torch.zeros(1)})
