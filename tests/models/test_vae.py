"""Variational auto-encoder: shapes, samples with the moments they should have, clear errors."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sonde.core.errors import BadInput
from sonde.models.vae import VAE, convolutional, dense


@pytest.mark.parametrize("model", [dense((1, 6, 5), (9, 7), 3), convolutional((1, 6, 5), (4, 8), 3)], ids=["dense", "convolutional"])
def test_shapes(model):
    x = torch.rand(4, 1, 6, 5)
    mean, log_variance = model.encode(x)
    assert mean.shape == log_variance.shape == (4, 3)
    assert torch.equal(torch.cat([mean, log_variance], 1), model.encoder(x))
    assert torch.equal(model(x), model.decode(mean)) and model(x).shape == x.shape
    drawn = model.sample(7, torch.Generator().manual_seed(0))
    assert drawn.shape == (7, 1, 6, 5) and set(drawn.unique().tolist()) <= {0.0, 1.0}
    assert torch.equal(drawn, model.sample(7, torch.Generator().manual_seed(0)))


def test_samples_of_a_linear_gaussian_model_have_its_covariance():
    """x = W h + b + noise is N(b, W W^T + v I)."""
    torch.manual_seed(0)
    model = VAE(nn.Linear(4, 4), nn.Linear(2, 4), 2, variance=0.3).double()
    x = model.sample(200_000, torch.Generator().manual_seed(1))
    W, b = model.decoder.weight.detach(), model.decoder.bias.detach()
    # 1e-2: five deviations of a mean over 200,000 draws
    torch.testing.assert_close(x.mean(0), b, rtol=0, atol=1e-2)
    torch.testing.assert_close(x.T.cov(), W @ W.T + 0.3 * torch.eye(4).double(), rtol=0, atol=1e-2)


def test_samples_of_pixels_are_drawn_with_their_chances():
    model = VAE(nn.Linear(3, 2), nn.Linear(1, 3), 1)
    with torch.no_grad():
        model.decoder.weight.zero_()
        model.decoder.bias.copy_(torch.tensor([0.2, 0.5, 0.9]).logit())
    drawn = model.sample(100_000, torch.Generator().manual_seed(2))
    torch.testing.assert_close(drawn.mean(0), torch.tensor([0.2, 0.5, 0.9]), rtol=0, atol=1e-2)
    torch.testing.assert_close(model.mean(torch.zeros(1, 1)), torch.tensor([[0.2, 0.5, 0.9]]))


def test_errors():
    with pytest.raises(BadInput, match="gives 5 numbers, a code of 2 needs 4"):
        VAE(nn.Linear(3, 5), nn.Linear(2, 3), 2).encode(torch.zeros(1, 3))
    with pytest.raises(BadInput, match="variance"):
        VAE(nn.Linear(3, 4), nn.Linear(2, 3), 2, variance=0.0)
