"""Replayed steps: the same bits as the ordinary gradient, and refused wherever a step may do something else next time."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from sonde.core.batch import Batch
from sonde.core.tape import Tape
from sonde.engine.accelerate.replay import Replay, ReplayedGradient, Unrepeatable, refuse
from sonde.engine.precision import Autocast
from sonde.gradients import mean
from sonde.gradients.flat import Flat
from sonde.models.cnn import CNN
from sonde.models.mlp import MLP
from sonde.objectives.bernoulli import Bernoulli
from sonde.objectives.categorical import Categorical
from sonde.objectives.gaussian import Gaussian
from sonde.objectives.poisson import Poisson


def repeated(model, objective):
    flat = Flat(model)
    return flat, ReplayedGradient(model, objective, flat, partial(mean.full_batch, model, objective, flat))


def loss_of(gradient, batch):
    """The loss by replay, or by the ordinary gradient where there is no replay, as a step computes it."""
    loss = gradient(batch)
    return gradient.ordinary(batch) if loss is None else loss


def values(n, *shape):
    return Batch(x=torch.randn(n, *shape), y=torch.randn(n, 3), ids=torch.arange(n))


def classes(n, *shape):
    return Batch(x=torch.randn(n, *shape), y=torch.randint(5, (n,)), ids=torch.arange(n))


KINDS = {
    "mlp": (lambda: MLP((7, 11, 6, 3)), Gaussian(), lambda n: values(n, 7)),
    "tanh": (lambda: MLP((7, 11, 3), activation="tanh"), Gaussian(variance=0.3), lambda n: values(n, 7)),
    "gelu": (lambda: MLP((7, 11, 3), activation="gelu"), Poisson(), lambda n: values(n, 7).replace(y=torch.poisson(torch.ones(n, 3)))),
    "layer norm": (lambda: MLP((7, 11, 5), norm="layer"), Categorical(classes=5), lambda n: classes(n, 7)),
    "binary": (lambda: MLP((7, 4, 3)), Bernoulli(), lambda n: values(n, 7).replace(y=torch.randint(2, (n, 3)).float())),
    "cnn": (lambda: CNN(channels=(1, 3, 4), classes=5, hidden=9, image=(8, 10)), Categorical(classes=5), lambda n: classes(n, 1, 8, 10)),
    "shared": (lambda: nn.Sequential(*[nn.Linear(7, 7)] * 2, nn.Tanh(), nn.Linear(7, 3)), Gaussian(), lambda n: values(n, 7)),
}


@pytest.mark.parametrize("bf16", [False, True], ids=["float32", "bf16"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_replayed_gradient_has_the_bits_of_the_ordinary_one(kind, bf16):
    torch.manual_seed(0)
    make, objective, batch_of = KINDS[kind]
    objective = Autocast(objective, torch.device("cpu")) if bf16 else objective
    model = make()
    flat, gradient = repeated(model, objective)
    update = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(15):
        batch = batch_of(6 if step % 3 else 4)  # two shapes, each with a list of its own
        loss = loss_of(gradient, batch)
        ours = flat.grad.clone()
        assert loss == mean.full_batch(model, objective, flat, batch)
        assert torch.equal(ours, flat.grad)
        update.step()
    assert [step.proofs for step in gradient.steps.values()] == [ReplayedGradient.PROOFS] * 2  # proven, so the last steps were replays


class Counting(nn.Module):
    """Does something else at its third call: no look at shapes can tell."""

    def __init__(self):
        super().__init__()
        self.inner, self.calls = nn.Linear(7, 3), 0

    def forward(self, x):
        self.calls += 1
        return self.inner(x) * (2.0 if self.calls % 3 == 0 else 1.0)


@pytest.mark.parametrize(
    "model, batch",
    [
        (Counting(), values(5, 7)),
        (MLP((7, 9, 3), dropout=0.5), values(5, 7)),
        (MLP((7, 9, 3), norm="batch"), values(5, 7)),
        (nn.Sequential(nn.Linear(7, 3), nn.ReLU(inplace=True)), values(5, 7)),
        (MLP((7, 3)), values(5, 7).replace(mask=torch.tensor([[True, False, True]] * 5))),
        (MLP((7, 3)), values(5, 7).replace(weight=torch.rand(5))),
    ],
    ids=["a network of the user", "dropout", "batch norm", "in place", "mask", "weight"],
)
def test_steps_that_may_differ_are_never_replayed(model, batch):
    _, gradient = repeated(model, Gaussian())
    for _ in range(4):
        loss_of(gradient, batch)
    assert not gradient.possible or list(gradient.steps.values()) == [None]


def test_hooks_and_objectives_of_the_user_are_asked_every_time():
    model = MLP((7, 3))
    model.layers[0].register_forward_hook(lambda *_: None)
    assert not repeated(model, Gaussian())[1].possible
    assert not repeated(MLP((7, 3)), lambda model, batch: Gaussian()(model, batch))[1].possible


def test_a_replay_that_is_wrong_is_found_out_and_dropped(monkeypatch):
    torch.manual_seed(1)
    model = MLP((7, 9, 3))
    flat, gradient = repeated(model, Gaussian())
    right = Replay.__call__
    monkeypatch.setattr(Replay, "__call__", lambda self, *inputs: [tensor + 1e-6 for tensor in right(self, *inputs)])
    batch = values(5, 7)
    for _ in range(4):
        loss, ours = loss_of(gradient, batch), flat.grad.clone()
        assert loss == mean.full_batch(model, Gaussian(), flat, batch) and torch.equal(ours, flat.grad)
    assert list(gradient.steps.values()) == [None]


def test_values_read_in_between_are_noticed():
    x = torch.randn(4)
    with pytest.raises(Unrepeatable), Tape([x], refuse):
        x.sum().item()
    with pytest.raises(Unrepeatable), Tape([x], refuse):
        x + torch.randn(4)


def test_tensors_from_elsewhere_are_noticed():
    """Their content may be of this batch only; a number is a constant of the code."""
    x, other, number = torch.randn(4), torch.randn(4), torch.tensor(2.0)
    with Tape([x], refuse) as tape:
        y = x + other
    with pytest.raises(Unrepeatable, match="neither an input"):
        Replay(tape, [x], [], [y])
    with Tape([x], refuse) as tape:
        z = number.exp() * x
    replay = Replay(tape, [x], [], [z])
    assert len(replay.calls) == 1 and torch.equal(replay(other)[0], number.exp() * other)


def test_views_of_fixed_tensors_follow_their_content():
    weight, x = torch.randn(5, 3), torch.randn(2, 3)
    with Tape([x, weight], refuse) as tape:
        y = x @ weight.t()
    replay = Replay(tape, [x], [weight], [y])
    assert len(replay.calls) == 1  # the transpose is made once
    weight.mul_(2.0)
    other = torch.randn(2, 3)
    assert torch.equal(replay(other)[0], torch.mm(other, weight.T))


def test_what_changes_from_step_to_step_is_noticed():
    """Two fields that are one tensor only now and then; a layout that changes; code of the user in a part of torch."""
    torch.manual_seed(2)
    model, objective = MLP((3, 9, 3)), Gaussian()
    flat, gradient = repeated(model, objective)
    for step in range(20):
        y = torch.randn(5, 3)
        x = y if step < 6 else torch.randn(3, 5).T if step % 2 else torch.randn(5, 3)
        batch = Batch(x=x, y=y)
        loss, ours = loss_of(gradient, batch), flat.grad.clone()
        assert loss == mean.full_batch(model, objective, flat, batch) and torch.equal(ours, flat.grad)
    for change in (
        lambda net: setattr(net, "forward", lambda x: net.layers(x) * 2),
        lambda net: net.register_full_backward_pre_hook(lambda *_: None),
        lambda net: net.layers[0].weight.register_hook(lambda g: g * 2),
        lambda net: net.layers[0].weight.register_post_accumulate_grad_hook(lambda p: None),
    ):
        changed = MLP((3, 9, 3))
        change(changed)
        assert not repeated(changed, objective)[1].possible


def test_kernels_that_write_into_buffers_in_silence_leave_no_trace():
    net = nn.Sequential(nn.Linear(7, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    net[1].num_batches_tracked = None
    twin = nn.Sequential(nn.Linear(7, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    twin[1].num_batches_tracked = None
    twin.load_state_dict(net.state_dict())
    flat, gradient = repeated(net, Gaussian())
    other = Flat(twin)
    for _ in range(5):
        batch = values(6, 7)
        loss_of(gradient, batch)
        mean.full_batch(twin, Gaussian(), other, batch)
    assert torch.equal(net[1].running_mean, twin[1].running_mean) and torch.equal(flat.grad, other.grad)


def test_many_shapes_and_large_ones_are_not_kept():
    _, gradient = repeated(MLP((7, 9, 3)), Gaussian())
    for n in range(2, 40):
        loss_of(gradient, values(n, 7))
    assert not gradient.steps  # each was seen once
    for n in range(2, 40):
        loss_of(gradient, values(n, 7))
    assert len(gradient.steps) == ReplayedGradient.SHAPES
    _, gradient = repeated(MLP((7, 600, 3)), Gaussian())
    for _ in range(3):
        loss_of(gradient, values(4000, 7))
    assert list(gradient.steps.values()) == [None]
