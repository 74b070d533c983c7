"""Flow against nets worked out layer by layer in NumPy, and against what theory says of variances."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from sonde.core.batch import Batch
from sonde.core.errors import BadInput
from sonde.core.reading import Subject
from sonde.core.seeds import generator
from sonde.lenses import flow
from sonde.lenses.tools.readonly import preserve_state
from sonde.lenses.tools.tiny import images, values
from sonde.optim.initialize import initialize, names


def by_hand(w, x, target, remedy):
    """Backpropagation through tanh layers in NumPy: variance of f, norm of the gradient in f and in w, layer by layer."""
    h, stored = x, []
    for layer in w:
        f = h @ layer.T
        mean, std = f.mean(1, keepdims=True), np.sqrt(f.var(1, keepdims=True) + 1e-5)
        z = (f - mean) / std if "norm" in remedy else f
        out = np.tanh(z)
        stored.append((h, f, z, std, out))
        h = h + out if "residual" in remedy else out
    delta = target / len(x)
    statistics = []
    for layer, (h, f, z, std, out) in zip(w[::-1], stored[::-1], strict=True):
        d = delta * (1 - out**2)
        if "norm" in remedy:
            d = (d - d.mean(1, keepdims=True) - z * (d * z).mean(1, keepdims=True)) / std
        statistics.append((f.var(), np.linalg.norm(d), np.linalg.norm(d.T @ h)))
        delta = d @ layer + (delta if "residual" in remedy else 0)
    return np.array(statistics[::-1]).T


@pytest.mark.parametrize("remedy", flow.REMEDIES)
def test_deep_nets_side_by_side_against_numpy(remedy):
    w = 0.4 * torch.randn(3, 5, 7, 7, generator=generator(0, "w"), dtype=torch.float64)
    draw = generator(2, "signal")
    x, target = (torch.randn(11, 7, generator=draw, dtype=torch.float64).numpy() for _ in range(2))
    statistics = flow.deep_flow(w, "tanh", remedy, seed=2, examples=11)
    for row in range(3):
        for ours, theirs in zip(statistics, by_hand(w[row].numpy(), x, target, remedy), strict=True):
            np.testing.assert_allclose(ours[row], theirs, rtol=1e-10)
    torch.testing.assert_close(statistics.ratio(), statistics.gradient[:, 0] / statistics.gradient[:, -1])


def test_a_model_against_its_own_layers():
    subject = values()
    first, last = subject.model[0], subject.model[2]
    with preserve_state(subject.model):
        statistics = flow.model_flow(subject.model, subject.objective, subject.batch)
    x, y = subject.batch.x, subject.batch.y
    f = first(x).detach()
    h = f.tanh()
    out = h @ last.weight.detach().T + last.bias.detach()
    back = (out - y) / len(x)
    below = (back @ last.weight.detach()) * (1 - h**2)
    expected = [(f.var(correction=0), below.norm(), (below.T @ x).norm()), (out.var(correction=0), back.norm(), (back.T @ h).norm())]
    torch.testing.assert_close(torch.stack(tuple(statistics)).T.float(), torch.tensor(expected), rtol=1e-5, atol=0)


def test_activations_in_place_and_layers_out_of_use():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Linear(4, 1))
    twin = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    twin.load_state_dict(model.state_dict())
    subject = values()
    a, b = (flow.model_flow(each, subject.objective, subject.batch) for each in (model, twin))
    torch.testing.assert_close(torch.stack(tuple(a)), torch.stack(tuple(b)))

    class Idle(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.idle = nn.Linear(3, 1), nn.Linear(2, 2)

        def forward(self, x):
            return self.used(x)

    statistics = flow.model_flow(Idle(), subject.objective, subject.batch)
    assert statistics.in_weights[1] == 0 and statistics.variance[0] > 0 and statistics.variance[1].isnan()


def test_an_initializer_fills_a_copy_and_follows_its_seed():
    subject = images()
    before = {name: t.clone() for name, t in subject.model.state_dict().items()}
    with preserve_state(subject.model):
        runs = [flow.model_flow(subject.model, subject.objective, subject.batch, initialize("he_normal"), seed) for seed in (1, 1, 2)]
    assert torch.equal(runs[0].variance, runs[1].variance) and not torch.equal(runs[0].variance, runs[2].variance)
    assert all(torch.equal(t, before[name]) for name, t in subject.model.state_dict().items())


def test_weights_are_those_of_the_initializer():
    w = flow.weights([initialize("orthogonal"), initialize("normal", std=0.5), initialize("fan_in")], depth=4, width=60)
    assert w.shape == (3, 4, 60, 60) and w.dtype == torch.float64
    torch.testing.assert_close(w[0, 2] @ w[0, 2].T, torch.eye(60, dtype=torch.float64), atol=1e-5, rtol=0)  # filled in float32
    assert float(w[1].std()) == pytest.approx(0.5, rel=0.03) and float(w[2].var()) == pytest.approx(1 / 60, rel=0.05)
    assert not torch.equal(w[1, 0], w[1, 1])


def test_the_reading_tells_what_vanishes():
    readings = {reading.title: reading for reading in flow.read(images(), depth=30, compare=("sigmoid", "relu"))}
    plain, both = (readings[f"Gradient flow, {remedy}"] for remedy in ("plain", "residual and norm"))
    row = names().index("normal")
    assert plain.rows == names() and plain.columns == ["sigmoid", "relu"]
    assert plain.values["log10"][row][0] < -30 and abs(both.values["log10"][row][0]) < 3
    lines = readings["Gradient by layer"].values
    assert set(lines) == set(flow.REMEDIES) and all(len(line) == 30 for line in lines.values())
    assert readings["Your model: gradient"].rows == ["as it is", *names()]


def test_every_activation_there_is():
    from sonde.nn import activations

    columns = flow.read(values(), compare=("all",), depth=2, width=3)[-1].columns
    assert {"relu", "tanh", "gelu"} <= set(columns) <= set(activations.names())


@pytest.mark.parametrize(
    "options, words",
    [
        ({"activation": "sigmod"}, "did you mean 'sigmoid'"),
        ({"compare": ("relu", "rellu")}, "no activation 'rellu'"),
        ({"initializer": "he_norml"}, "did you mean 'he_normal'"),
        ({"depth": 1}, "must be >= 2"),
    ],
)
def test_bad_options(options, words):
    with pytest.raises(BadInput, match=words):
        flow.read(images(), **options)


def test_bad_remedy_and_models_without_layers():
    with pytest.raises(BadInput, match="did you mean 'residual'"):
        flow.deep_flow(torch.eye(3, dtype=torch.float64).expand(1, 2, 3, 3), "relu", "residul")
    subject = Subject(nn.LayerNorm(3), Batch(x=torch.ones(2, 3), y=torch.tensor([0, 2])), images().objective)
    assert "no Linear or convolution" in flow.why_not(subject)


def test_a_layer_used_twice_counts_both_uses():
    """h1 = W x, h2 = W h1, loss sum h2^2 / 2: dL/dh2 = h2 and dL/dh1 = W^T h2, with NumPy."""

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3, bias=False)

        def forward(self, x):
            return self.layer(self.layer(x))

    class Half:
        def __call__(self, model, batch):
            self.value = model(batch.x).square().sum() / 2
            return self

        def loss(self):
            return self.value

    torch.manual_seed(0)
    net, x = Twice().double(), torch.randn(4, 3, dtype=torch.float64)
    w = net.layer.weight.detach().numpy()
    h1 = x.numpy() @ w.T
    h2 = h1 @ w.T
    statistics = flow.model_flow(net, Half(), Batch(x=x))
    np.testing.assert_allclose(statistics.gradient, [np.sqrt((h2**2).sum() + ((h2 @ w) ** 2).sum())])
    np.testing.assert_allclose(statistics.variance, [np.var([h1, h2])])
