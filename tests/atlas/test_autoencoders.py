"""Chapter 13 made wrong on purpose: targets, constants, ties and training left out; each exhibit must notice."""

from __future__ import annotations

import pytest
import torch

from sonde.atlas import autoencoders
from sonde.models import autoencoder
from sonde.objectives import elbo
from sonde.objectives.gaussian import Gaussian
from sonde.objectives.reconstruction import Reconstruction
from tests.atlas.mistakes import any_of, two_seeds, wrong


def short(monkeypatch, steps: int) -> None:
    """Two seeds and few steps, where a mistake does not need a network that has learned."""
    right = autoencoders._fit
    two_seeds(monkeypatch)
    monkeypatch.setattr(autoencoders, "_fit", lambda *args, **more: right(*args, **more).replace(steps=steps))


def test_ae_01_notices_weights_that_are_counted_twice(monkeypatch) -> None:
    short(monkeypatch, 2)
    monkeypatch.setattr(
        autoencoders, "_count", lambda model: sum(p.numel() for part in (model.encoder, model.decoder) for p in part.parameters()) + 1
    )
    names = wrong("AE-01")
    assert any_of(names, "parameters tied") and any_of(names, "parameters untied") and not any_of(names, "xhat against")


def test_ae_01_notices_a_decoder_with_other_weights(monkeypatch) -> None:
    short(monkeypatch, 2)
    monkeypatch.setattr(autoencoder.Tied, "forward", lambda self, h: h @ (2 * self.layer[0].weight) + self.bias)
    assert any_of(wrong("AE-01"), "xhat against W^T g(W x + b) + c")


def test_ae_01_notices_a_loss_without_its_half(monkeypatch) -> None:
    short(monkeypatch, 2)
    monkeypatch.setattr(autoencoders, "Reconstruction", lambda: Reconstruction(Gaussian(0.5)))
    assert any_of(wrong("AE-01"), "1/2 norm(xhat - x)^2")


def test_ae_02_notices_the_smallest_in_place_of_the_largest(monkeypatch) -> None:
    monkeypatch.setattr(autoencoders, "_truncate", lambda U, s, V, K: U[:, -K:] * s[-K:] @ V[:, -K:].T)
    names = wrong("AE-02")
    assert any_of(names, "squared error of rank K") and any_of(names, "other matrices") and not any_of(names, "U S V^T")


def test_ae_02_notices_rotations_that_end_too_soon(monkeypatch) -> None:
    right = autoencoders.jacobi_svd
    monkeypatch.setattr(autoencoders, "jacobi_svd", lambda A, sweeps=1: right(A, 1))
    assert any_of(wrong("AE-02"), "U^T U")


def test_ae_03_notices_a_network_that_has_not_learned_and_pca_without_its_mean(monkeypatch) -> None:
    short(monkeypatch, 20)
    right = autoencoders.PCA
    monkeypatch.setattr(autoencoders, "PCA", lambda K, center=True: right(K, center=False))
    names = wrong("AE-03")
    assert any_of(names, "scikit-learn") and any_of(names, "principal angle") and any_of(names, "loss over that of PCA")


def test_ae_04_notices_a_straight_code(monkeypatch) -> None:
    short(monkeypatch, 300)
    right = autoencoder.dense
    monkeypatch.setattr(autoencoder, "dense", lambda shape, widths, activation, code=None: right(shape, widths, "identity"))
    assert wrong("AE-04") == ["loss of the non-linear code over that of PCA"]


def test_ae_05_notices_a_price_that_is_not_paid(monkeypatch) -> None:
    short(monkeypatch, 20)
    right = autoencoders.Sparse
    monkeypatch.setattr(autoencoders, "Sparse", lambda **prices: right())
    names = wrong("AE-05")
    assert sum("active share falls" in name for name in names) == 3 and any_of(names, "with the price over without")


@pytest.mark.parametrize("power, name", [(1, "automatic differentiation"), (4, "torch's Jacobian")])
def test_ae_06_notices_a_closed_form_without_its_square(monkeypatch, power: int, name: str) -> None:
    short(monkeypatch, 2)
    monkeypatch.setattr(autoencoders, "sigmoid_slope", lambda h, W: (h * (1 - h)) ** power @ W.square().sum(1))
    names = wrong("AE-06")
    assert any_of(names, f"closed form against {name}") and not any_of(names, "two tanh layers")


def test_ae_07_notices_a_noisy_target(monkeypatch) -> None:
    """Erratum E-12: the distance to the noisy input."""
    short(monkeypatch, 200)
    monkeypatch.setattr(autoencoders, "denoising", lambda change: change)
    names = wrong("AE-07")
    assert any_of(names, "denoising: error to the clean digit") and any_of(names, "denoising over a plain")


def test_ae_08_notices_a_divergence_that_is_off(monkeypatch) -> None:
    short(monkeypatch, 2)
    off = lambda mean, log_variance: 0.5 * (mean.square() + log_variance.exp() - log_variance).sum(1)  # noqa: E731
    monkeypatch.setattr(elbo, "kl", off)
    monkeypatch.setattr(autoencoders, "kl", off)
    names = wrong("AE-08")
    assert any_of(names, "ELBO at the true posterior") and any_of(names, "KL in closed form against") and any_of(names, "draws")


def test_ae_08_notices_a_dropped_constant(monkeypatch) -> None:
    short(monkeypatch, 2)
    monkeypatch.setattr(Gaussian, "constant", lambda self, y: torch.zeros_like(y))
    names = wrong("AE-08")
    assert any_of(names, "ELBO at the true posterior") and any_of(names, "single code of the true posterior")
    assert not any_of(names, "KL in closed form")


def test_ae_09_notices_layers_that_are_thrown_away(monkeypatch) -> None:
    right = autoencoders.layer
    monkeypatch.setattr(autoencoders, "layer", lambda *args, **more: right(*args, **{**more, "epochs": 0.1}))
    monkeypatch.setattr(autoencoders, "first_layers", lambda learned: lambda model: None)
    assert any_of(wrong("AE-09"), "gained by pre-training sigmoid layers")
