"""Spectrum against dense Hessians, NumPy's decompositions and SciPy's ARPACK."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import nn
from torch.func import functional_call, hessian

from sonde.core.batch import Batch
from sonde.core.errors import BadInput
from sonde.core.terms import Terms
from sonde.lenses import spectrum
from sonde.lenses.tools.readonly import preserve_state
from sonde.lenses.tools.tiny import images, values


def dense_hessian(subject):
    model = subject.model
    named = dict(model.named_parameters())
    sizes = [p.numel() for p in named.values()]

    class Bound:
        def __init__(self, weights):
            self.weights = weights

        def __call__(self, x):
            return functional_call(model, self.weights, (x,))

    def loss(flat):
        weights = {name: part.view_as(p) for (name, p), part in zip(named.items(), flat.split(sizes), strict=True)}
        return subject.objective(Bound(weights), subject.batch).loss()

    return hessian(loss)(torch.cat([p.detach().flatten() for p in named.values()])).detach().numpy()


def in_double(subject):
    subject.model.double().eval()
    subject.batch = Batch(**{name: t.double() if t.is_floating_point() else t for name, t in subject.batch.fields.items()})
    return subject


@pytest.mark.parametrize("make", [images, values])
def test_ends_of_the_hessian_against_a_dense_one(make):
    subject = in_double(make())
    full = dense_hessian(subject)
    exact = np.linalg.eigvalsh(full)
    estimate = spectrum.hessian_spectrum(subject.model, subject.objective, subject.batch, steps=len(exact), tolerance=1e-12)
    assert [estimate.low, estimate.high] == pytest.approx([exact[0], exact[-1]], abs=1e-8)
    product = spectrum.hessian_product(subject.model, subject.objective, subject.batch)
    v = torch.randn(len(exact), dtype=torch.float64)
    np.testing.assert_allclose(product(v).numpy(), full @ v.numpy(), atol=1e-10)


def test_a_million_parameters_against_arpack():
    model = nn.Sequential(nn.Linear(64, 1000), nn.Tanh(), nn.Linear(1000, 1000), nn.Tanh(), nn.Linear(1000, 10))
    batch = Batch(x=torch.randn(24, 64), y=torch.randint(0, 10, (24,)))
    objective = images().objective
    n = sum(p.numel() for p in model.parameters())
    assert n > 1_000_000
    estimate = spectrum.hessian_spectrum(model, objective, batch, steps=30, tolerance=1e-3)
    product = spectrum.hessian_product(model, objective, batch)
    operator = LinearOperator(
        (n, n), matvec=lambda v: product(torch.from_numpy(v.astype(np.float32).reshape(-1))).numpy(), dtype=np.float32
    )
    theirs = eigsh(operator, k=1, which="LA", v0=np.ones(n, np.float32), ncv=20, tol=1e-3, return_eigenvectors=False)[0]
    assert estimate.high == pytest.approx(float(theirs), rel=3e-3) and estimate.products <= 30


def test_the_rate_beyond_which_descent_diverges():
    subject = in_double(values())
    model = nn.Linear(3, 1, bias=False).double()
    estimate = spectrum.hessian_spectrum(model, subject.objective, subject.batch, steps=3)
    exact = np.linalg.eigvalsh((subject.batch.x.T @ subject.batch.x / len(subject.batch)).numpy())
    assert estimate.values.tolist() == pytest.approx(exact.tolist(), abs=1e-12)
    assert f"condition number {exact[-1] / exact[0]:.4g}" in spectrum.verdict(estimate.low, estimate.high)
    for factor, falls in ((0.99, True), (1.01, False)):
        w = torch.ones(3, dtype=torch.float64) * 10
        for _ in range(2000):
            w = w - factor * 2 / estimate.high * (subject.batch.x.T @ (subject.batch.x @ w) / len(subject.batch))
        assert (float(w.norm()) < 1) == falls


@pytest.mark.parametrize(
    "layer, shape",
    [(nn.Linear(9, 5), (9,)), (nn.Conv2d(2, 3, 3, padding=1, stride=2), (2, 6, 5)), (nn.Conv1d(4, 2, 3, dilation=2, bias=False), (4, 9))],
)
def test_norm_of_a_layer_against_its_matrix(layer, shape):
    layer.double()
    size = int(np.prod(shape))
    zero = layer(torch.zeros(1, *shape, dtype=torch.float64))
    columns = [(layer(one.view(1, *shape)) - zero).flatten() for one in torch.eye(size, dtype=torch.float64)]
    matrix = torch.stack(columns, 1).detach().numpy()
    assert spectrum.layer_norm(layer, shape) == pytest.approx(np.linalg.norm(matrix, 2), rel=1e-6)


@pytest.mark.parametrize("n", [1, 7, 40])
def test_radius_against_numpy(n):
    matrix = torch.randn(n, n, dtype=torch.float64)
    assert spectrum.spectral_radius(matrix) == pytest.approx(np.abs(np.linalg.eigvals(matrix.numpy())).max(), rel=1e-10)


def test_radius_of_a_large_matrix():
    # Block triangular: its eigenvalues are those of the blocks, and the largest is 5.
    matrix = torch.zeros(1100, 1100)
    matrix[:1000, :1000] = 0.02 * torch.randn(1000, 1000)
    matrix[1000:, 1000:] = torch.diag(torch.linspace(-2, 5, 100))
    matrix[:1000, 1000:] = 0.1
    assert spectrum.spectral_radius(matrix) == pytest.approx(5, rel=1e-6)


def test_readings():
    table, curve = spectrum.read(values())
    assert table.values["layer"] == ["0", "2"] and table.values["spectral radius"] == [None, None]
    weight = values().model[0].weight.detach().double().numpy()
    assert table.values["spectral norm"][0] == pytest.approx(np.linalg.norm(weight, 2), rel=1e-5)
    assert table.values["condition"][0] == pytest.approx(np.linalg.cond(weight), rel=1e-5)
    mass = np.trapezoid(curve.values["density"], curve.x)
    assert mass == pytest.approx(1, abs=0.05) and "products" in curve.note
    with preserve_state():
        square = values()
        square.model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    table = spectrum.read(square)[0]
    mine = square.model[0].weight.detach().double().numpy()
    assert table.values["spectral radius"][0] == pytest.approx(np.abs(np.linalg.eigvals(mine)).max(), rel=1e-6)


class _Flat:
    """A loss that is linear in the weights."""

    def __call__(self, model, batch):
        return Terms(nll=(model(batch.x).sum(), len(batch)))


def test_a_loss_without_curvature():
    subject = values()
    subject.model = nn.Linear(3, 1)
    subject.objective = _Flat()
    assert "flat" in spectrum.read(subject)[1].note


@pytest.mark.parametrize(
    "low, high, words",
    [
        (1, 10, "condition number 10"),
        (-2, 4, "a saddle: the negative curvature is 0.5"),
        (0, 4, "unbounded"),
        (-3, 0, "no positive eigenvalue"),
    ],
)
def test_verdicts(low, high, words):
    assert words in spectrum.verdict(low, high)


def test_bad_options():
    with pytest.raises(BadInput, match="'steps'"):
        spectrum.read(values(), steps=1)
