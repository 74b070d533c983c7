"""Reconstruction and the penalties on a code, against formulas written out and torch's own Jacobian."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Bernoulli as Coin
from torch.distributions import kl_divergence

from sonde.core.batch import Batch
from sonde.core.errors import BadInput
from sonde.objectives._coder import Coder
from sonde.objectives.bernoulli import Bernoulli
from sonde.objectives.contractive import Contractive, sigmoid_slope, slope
from sonde.objectives.reconstruction import Reconstruction
from sonde.objectives.sparse import Sparse

B, D, K = 5, 3, 4


@pytest.fixture
def net() -> Coder:
    torch.manual_seed(0)
    return Coder().double()


@pytest.fixture
def x() -> torch.Tensor:
    return torch.rand(B, D, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def test_half_the_squared_norm_averaged_over_examples(net, x):
    objective = Reconstruction()
    assert objective(net, Batch(x=x)).loss().item() == pytest.approx((net(x) - x).norm(dim=1).square().mean().item() / 2, rel=1e-12)
    assert objective.measures(net(x), Batch(x=x)).means()["squared_error"] == pytest.approx(F.mse_loss(net(x), x).item(), rel=1e-12)
    pixels = Reconstruction(Bernoulli())
    expected = F.binary_cross_entropy_with_logits(net(x), x, reduction="sum") / B
    assert pixels(net, Batch(x=x)).loss().item() == pytest.approx(expected.item(), rel=1e-12)
    assert torch.equal(pixels.predict(net(x)), torch.sigmoid(net(x)))


def test_the_target_is_the_clean_input_and_not_the_labels(net, x):
    noisy = x + 1
    batch = Batch(x=noisy, clean=x, y=torch.arange(B))
    assert Reconstruction()(net, batch).loss().item() == pytest.approx((net(noisy) - x).square().sum().item() / 2 / B, rel=1e-12)
    weight = torch.tensor([0.0, 2.0, 0.0, 1.0, 0.0]).double()
    rows = torch.tensor([1, 1, 3])
    expected = Reconstruction()(net, Batch(x=noisy[rows], clean=x[rows])).means()
    assert Reconstruction()(net, batch.replace(weight=weight)).means() == pytest.approx(expected, rel=1e-12)
    with pytest.raises(BadInput, match="finite"):
        Reconstruction().check(Batch(x=torch.tensor([[1.0, math.inf]])))


def test_penalties_on_the_code(net, x):
    h = net.encode(x).detach()
    terms = Sparse(l1=0.3, l2=0.2, kl=0.1, rate=0.07, above=0.5)(net, Batch(x=x))
    expected = {
        "nll": Reconstruction()(net, Batch(x=x)).loss().item(),
        "l1": float(h.abs().sum(1).mean()),
        "l2": float(h.square().sum(1).mean()),
        "kl": float(kl_divergence(Coin(torch.tensor(0.07, dtype=torch.float64)), Coin(h.mean(0))).sum()),
        "active": float((h > 0.5).double().mean()),
    }
    assert terms.means() == pytest.approx(expected, rel=1e-10)
    total = expected["nll"] + 0.3 * expected["l1"] + 0.2 * expected["l2"] + 0.1 * expected["kl"]
    assert terms.loss().item() == pytest.approx(total, rel=1e-10)
    assert terms.counts() == Sparse(l1=0.3, l2=0.2, kl=0.1).counts(Batch(x=x))
    assert list(Sparse()(net, Batch(x=x))) == ["nll"] == list(Sparse().counts(Batch(x=x)))


def test_gradient_of_the_rate(net, x):
    h = net.encode(x)
    expected = torch.autograd.grad(
        kl_divergence(Coin(torch.tensor(0.05, dtype=torch.float64)), Coin(h.mean(0))).sum(), net.encode[0].weight
    )[0]
    term = Sparse(kl=1.0)(net, Batch(x=x))["kl"]
    torch.testing.assert_close(torch.autograd.grad(term.sum / B, net.encode[0].weight)[0], expected, rtol=1e-8, atol=1e-12)


def test_contraction_in_closed_form_and_by_differentiation(net, x):
    jacobians = torch.stack([torch.autograd.functional.jacobian(net.encode, row) for row in x])  # (B, K, D)
    expected = jacobians.square().sum((1, 2))
    torch.testing.assert_close(slope(net.encode, x), expected, rtol=1e-10, atol=1e-12)
    weight = net.encode[0].weight
    torch.testing.assert_close(sigmoid_slope(net.encode(x), weight), expected, rtol=1e-10, atol=1e-12)
    ours, theirs = (torch.autograd.grad(each.sum(), weight)[0] for each in (sigmoid_slope(net.encode(x), weight), slope(net.encode, x)))
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


def test_contraction_of_images_and_without_gradients(net):
    torch.manual_seed(3)
    encoder = nn.Sequential(nn.Conv2d(1, 2, 2), nn.Tanh(), nn.Flatten(), nn.Linear(8, 3)).double()
    x = torch.randn(2, 1, 3, 3, dtype=torch.float64)
    expected = torch.stack([torch.autograd.functional.jacobian(encoder, row[None]).square().sum() for row in x])
    with torch.no_grad():  # as in an evaluation
        norms = slope(encoder, x)
        torch.testing.assert_close(norms, expected, rtol=1e-10, atol=1e-12)
    assert not norms.requires_grad and x.grad is None


def test_a_model_that_knows_its_layer_gets_the_closed_form(net, x):
    class Known(nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.sigmoid_weights = net, net.encode[0].weight
            self.encode, self.decode = net.encode, net.decode

    for model in (net, Known()):
        terms = Contractive(0.2)(model, Batch(x=x))
        assert terms.means()["contraction"] == pytest.approx(slope(net.encode, x).mean().item(), rel=1e-10)
        assert terms["contraction"].weight == 0.2 and terms.counts() == Contractive(0.2).counts(Batch(x=x))


def test_errors(net, x):
    with pytest.raises(BadInput, match=r"pixels must lie between 0 and 1, and these go from .* scale them"):
        Reconstruction(Bernoulli())(net, Batch(x=x + 1))
    Reconstruction(Bernoulli())(net, Batch(x=x + 1, clean=x))
    with torch.no_grad():  # a code whose mean is a share and whose values are none
        net.encode[0].weight.zero_()
        net.encode[0].bias.zero_()
        net.encode[1] = nn.Identity()
        net.encode[0].weight[:, 0] = 2.0
    with pytest.raises(BadInput, match="codes between 0 and 1"):
        Sparse(kl=1.0)(net, Batch(x=torch.tensor([[1.0, 0, 0], [-0.75, 0, 0]]).double()))
