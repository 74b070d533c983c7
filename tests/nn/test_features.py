"""Feature maps against their formulas, number by number, and against the kernels they stand for."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from sonde.nn.features import Fourier, feature

NAMES = ["identity", "elu", "relu", "polynomial", "dpfp", "hedgehog"]


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_by_hand() -> None:
    x = torch.tensor([2.0, -1.0], dtype=torch.float64)
    assert feature("identity", 2)(x).tolist() == [2, -1]
    assert feature("elu", 2)(x).tolist() == pytest.approx([3, math.exp(-1)])
    assert feature("relu", 2)(x).tolist() == [2, 0]
    assert feature("polynomial", 2)(x).tolist() == pytest.approx([4, -2 * math.sqrt(2), 1])
    # r = (2, 0, 0, 1): products with the neighbor one, two and three positions before, going round
    assert feature("dpfp", 2)(x).tolist() == [2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]
    e = [math.exp(y) for y in (4, -2, -4, 2)]
    assert feature("hedgehog", 2).double()(x).tolist() == pytest.approx([y / sum(e) for y in e])


def test_the_polynomial_is_the_squared_product() -> None:
    q, k = normal(1, 9, 5), normal(2, 9, 5)
    phi = feature("polynomial", 5)
    assert phi(q).shape == (9, 15)
    assert torch.allclose((phi(q) * phi(k)).sum(-1), (q * k).sum(-1).square(), rtol=1e-12)


@pytest.mark.parametrize("name", ["elu", "relu", "dpfp", "hedgehog"])
def test_none_is_negative(name: str) -> None:
    assert (feature(name, 5).double()(3 * normal(1, 99, 5)) >= 0).all()


def test_dpfp_of_opposite_vectors_are_orthogonal() -> None:
    x, phi = normal(1, 9, 5), feature("dpfp", 5)
    assert torch.equal((phi(x) * phi(-x)).sum(-1), torch.zeros(9, dtype=torch.float64))
    assert (phi(x).square().sum(-1) > 0).all()


@pytest.mark.parametrize("name", NAMES)
def test_gradients(name: str) -> None:
    phi = feature(name, 4).double()
    assert torch.autograd.gradcheck(phi, (normal(1, 3, 4).requires_grad_(),))


def test_fourier_features_imitate_the_gaussian_kernel() -> None:
    """The mean of phi(q) . phi(k) is exp(-|q - k|^2 / 2) for directions q, k, and phi has length 1."""
    torch.manual_seed(0)
    phi = Fourier(2, 3, 20000).double()
    q, k = (normal(i, 1, 2, 4, 3) * 1e6 for i in (1, 2))  # long, so that the floor under |x| does not show
    products = (phi(q) * phi(k)).sum(-1)
    q, k = (torch.nn.functional.normalize(x, dim=-1) for x in (q, k))
    expected = torch.exp(-(q - k).square().sum(-1) / 2)
    assert (products - expected).abs().max() < 4 / math.sqrt(20000)  # a mean of numbers in [-1, 1]
    assert torch.allclose(phi(q).square().sum(-1), torch.ones(1, 2, 4, dtype=torch.float64))
    assert not any(name == "directions" for name, _ in phi.named_parameters()) and "directions" in phi.state_dict()


def test_fourier_gradients_even_at_zero() -> None:
    phi = Fourier(2, 3, 4).double()
    assert torch.autograd.gradcheck(phi, (normal(1, 1, 2, 5, 3).requires_grad_(),))
    x = torch.zeros(1, 2, 1, 3, dtype=torch.float64, requires_grad=True)
    phi(x).sum().backward()
    assert x.grad is not None and x.grad.isfinite().all()
