"""Initializers: sample variances against the formulas, biases zero, norms untouched."""

from __future__ import annotations

import pytest
import torch
from scipy import stats
from torch import nn

from sonde.core.errors import BadInput
from sonde.optim.initialize import initialize, names

IN, OUT = 700, 300
VARIANCE = {
    "xavier_uniform": 2 / (IN + OUT),
    "xavier_normal": 2 / (IN + OUT),
    "he_uniform": 2 / IN,
    "he_normal": 2 / IN,
    "lecun_normal": 1 / IN,
    "lecun_uniform": 1 / IN,
    "fan_in": 1 / IN,
    "fan_out": 1 / OUT,
    "xavier": 2 / (IN + OUT),
    "truncated_normal": 0.02**2 * stats.truncnorm.var(-2, 2),
    "normal": 0.02**2,
    "uniform": 0.02**2,
    "constant": 0.0,
    "zeros": 0.0,
}


@pytest.mark.parametrize("name", VARIANCE)
def test_variance(name):
    torch.manual_seed(0)
    layer = nn.Linear(IN, OUT)
    initialize(name)(layer)
    # 210,000 samples: the relative error of a sample variance is about 0.3 %
    assert float(layer.weight.detach().var()) == pytest.approx(VARIANCE[name], rel=0.02, abs=1e-12)
    assert abs(float(layer.weight.detach().mean()) - (0.1 if name == "constant" else 0)) < 5e-4
    assert not layer.bias.any()
    if "uniform" in name:
        assert float(layer.weight.detach().abs().max()) == pytest.approx((3 * VARIANCE[name]) ** 0.5, rel=1e-3)


@pytest.mark.parametrize("name", ["fan_in", "fan_out", "xavier"])
@pytest.mark.parametrize("gain", [1.0, 1.7])
def test_the_distribution_changes_the_shape_and_not_the_variance(name, gain):
    torch.manual_seed(0)
    weights = {}
    for distribution in ("normal", "uniform"):
        layer = nn.Linear(IN, OUT)
        initialize(name, gain=gain, distribution=distribution)(layer)
        weights[distribution] = layer.weight.detach()
        assert float(weights[distribution].var()) == pytest.approx(gain**2 * VARIANCE[name], rel=0.02)
    bound = gain * (3 * VARIANCE[name]) ** 0.5
    assert float(weights["uniform"].abs().max()) <= bound < float(weights["normal"].abs().max())
    # Kurtosis tells the two apart: 3 for a normal, 9/5 for a uniform distribution.
    assert stats.kurtosis(weights["normal"].flatten(), fisher=False) == pytest.approx(3, abs=0.1)
    assert stats.kurtosis(weights["uniform"].flatten(), fisher=False) == pytest.approx(1.8, abs=0.05)


@pytest.mark.parametrize(
    "name, variance",
    [
        ("he_normal", 2 / (30 * 9)),
        ("xavier_uniform", 2 / (9 * (30 + 50))),
        ("lecun_normal", 1 / (30 * 9)),
        ("fan_out", 1 / (50 * 9)),
        ("xavier", 2 / (9 * 80)),
    ],
)
def test_convolution_counts_its_window(name, variance):
    torch.manual_seed(0)
    layer = nn.Conv2d(30, 50, 3)
    initialize(name)(layer)
    assert float(layer.weight.detach().var()) == pytest.approx(variance, rel=0.05)


def test_orthogonal_keeps_norms():
    torch.manual_seed(0)
    layer = nn.Linear(40, 90).double()
    initialize("orthogonal", gain=1.5)(layer)
    weight = layer.weight.detach()
    torch.testing.assert_close(weight.T @ weight, 2.25 * torch.eye(40, dtype=torch.float64), rtol=1e-12, atol=1e-12)


def test_whole_model_and_only_dense_and_convolution():
    model = nn.Sequential(nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 3))
    initialize("constant", value=0.5)(model)
    assert (model[0].weight == 0.5).all() and (model[3].weight == 0.5).all() and (model[1].weight == 1).all()
    assert all(p.requires_grad for p in model.parameters())


@pytest.mark.parametrize("name", names())
def test_every_name_works_and_follows_the_seed(name):
    def first():
        torch.manual_seed(5)
        layer = nn.Linear(6, 8)
        initialize(name)(layer)
        return layer.weight.detach().clone()

    assert torch.equal(first(), first())


def test_bad_names_and_settings():
    for call, words in (
        (lambda: initialize("he_norml"), "did you mean 'he_normal'?"),
        (lambda: initialize("normal", sdt=1.0), "did you mean 'std'?"),
        (lambda: initialize("normal", std=-1.0), "must be >= 0"),
        (lambda: initialize("xavier", distribution="unifrom"), "did you mean 'uniform'?"),
    ):
        with pytest.raises(BadInput) as caught:
            call()
        assert words in str(caught.value)
