"""Lanczos against NumPy's dense solver and SciPy's ARPACK."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import nn
from torch.func import functional_call, hessian

from sonde.core.errors import BadInput, NumericalStop
from sonde.core.seeds import generator
from sonde.gradients.lanczos import lanczos, spectral_norm


def symmetric(n, seed=0, values=None):
    draw = generator(seed, "matrix")
    square = torch.randn(n, n, generator=draw, dtype=torch.float64)
    if values is None:
        return (square + square.T) / 2
    rotation = torch.linalg.qr(square)[0]
    return rotation @ torch.diag(torch.as_tensor(values, dtype=torch.float64)) @ rotation.T


def start(n, seed=0, dtype=torch.float64):
    return torch.randn(n, generator=generator(seed, "start"), dtype=dtype)


@given(n=st.integers(1, 24), seed=st.integers(0, 99))
def test_as_many_steps_as_rows_give_the_whole_spectrum(n, seed):
    a = symmetric(n, seed)
    spectrum = lanczos(a.mv, start(n, seed), n + 3)
    np.testing.assert_allclose(spectrum.values, np.linalg.eigvalsh(a.numpy()), atol=1e-9)
    assert float(spectrum.weights.sum()) == pytest.approx(1, abs=1e-12) and spectrum.products <= n


def test_ends_against_arpack_and_the_error_that_is_told():
    a = symmetric(311)
    spectrum = lanczos(a.mv, start(311), 80)
    operator = LinearOperator((311, 311), matvec=lambda v: a.numpy() @ v, dtype=np.float64)
    ends = sorted(eigsh(operator, k=2, which="BE", return_eigenvectors=False, tol=1e-12))
    exact = np.linalg.eigvalsh(a.numpy())
    assert [spectrum.low, spectrum.high] == pytest.approx(ends, abs=1e-8)
    for value, error in zip(spectrum.values.numpy(), spectrum.errors.numpy(), strict=True):
        assert np.abs(exact - value).min() <= error + 1e-10


def test_vectors_are_eigenvectors():
    a = symmetric(90)
    spectrum = lanczos(a.mv, start(90), 70)
    for end in (0, -1):
        vector = spectrum.vectors[end]
        assert float(vector.norm()) == pytest.approx(1, abs=1e-10)
        torch.testing.assert_close(a @ vector, spectrum.values[end] * vector, atol=1e-6, rtol=0)


def test_it_stops_when_both_ends_are_known():
    a = symmetric(500, values=np.concatenate([[-40.0, 90.0], np.linspace(-1, 1, 498)]))
    spectrum = lanczos(a.mv, start(500), 400, tolerance=1e-6)
    assert spectrum.products < 60 and (spectrum.low, spectrum.high) == pytest.approx((-40, 90), abs=1e-4)


def test_without_the_basis_the_ends_are_the_same():
    a = symmetric(200, values=np.linspace(1, 1000, 200))
    kept, thin = (lanczos(a.mv, start(200), 120, keep=keep) for keep in (True, False))
    assert (thin.low, thin.high) == pytest.approx((kept.low, kept.high), rel=1e-4) and thin.vectors is None


def test_few_different_values_end_early_and_exactly():
    a = symmetric(64, values=[3.0] * 40 + [-2.0] * 24)
    spectrum = lanczos(a.mv, start(64), 64)
    assert spectrum.products == 2 and spectrum.values.tolist() == pytest.approx([-2, 3], abs=1e-12)
    zero = lanczos(torch.zeros_like, start(7), 5)
    assert zero.products == 1 and zero.values.tolist() == [0]


def test_weights_are_the_density_of_the_spectrum():
    # Random starts see every eigenvector alike: a quarter of the values at 5 and three quarters at 1.
    a = symmetric(400, values=[5.0] * 100 + [1.0] * 300)
    shares = [float(lanczos(a.mv, start(400, seed), 10).weights[-1]) for seed in range(20)]
    assert np.mean(shares) == pytest.approx(0.25, abs=0.03)


def test_a_hessian():
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).double()
    names = [name for name, _ in model.named_parameters()]
    shapes = [p.shape for p in model.parameters()]
    x, y = start(33).reshape(11, 3), start(22, 1).reshape(11, 2)

    def loss(flat):
        parts = flat.split([shape.numel() for shape in shapes])
        weights = {name: part.reshape(shape) for name, part, shape in zip(names, parts, shapes, strict=True)}
        return (functional_call(model, weights, (x,)) - y).square().mean()

    point = torch.cat([p.detach().flatten() for p in model.parameters()])
    full = hessian(loss)(point)
    product = lambda v: torch.func.jvp(torch.func.grad(loss), (point,), (v,))[1]  # noqa: E731
    spectrum = lanczos(product, start(len(point)), len(point))
    np.testing.assert_allclose(spectrum.values[[0, -1]], np.linalg.eigvalsh(full.numpy())[[0, -1]], atol=1e-9)


def test_spectral_norm_of_a_matrix():
    a = start(60 * 37).reshape(60, 37)
    assert spectral_norm(a.mv, a.T.mv, start(37)) == pytest.approx(np.linalg.norm(a.numpy(), 2), rel=1e-6)
    assert spectral_norm(torch.zeros(2, 3).mv, torch.zeros(3, 2).mv, torch.ones(3)) == 0


@pytest.mark.parametrize(
    "product, begin, error, words",
    [
        (lambda v: v, torch.zeros(4), BadInput, "length 0"),
        (lambda v: v, torch.tensor([1.0, float("nan")]), BadInput, "length nan"),
        (lambda v: v, torch.ones(2, 2), BadInput, "flat vector"),
        (lambda v: v[:3], torch.ones(4), BadInput, "square"),
        (lambda v: v / 0, torch.ones(4), NumericalStop, "not finite"),
        (lambda v: torch.roll(v, 1) * torch.arange(1, 6), torch.tensor([1.0, 0, 0, 0, 0]), BadInput, "not symmetric"),
    ],
)
def test_bad_input(product, begin, error, words):
    with pytest.raises(error, match=words):
        lanczos(product, begin, 4)
