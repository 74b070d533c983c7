"""Chapter 13 made wrong on purpose: targets, constants, ties and training left out; each exhibit must notice."""

from __future__ import annotations

from functools import partial

import torch

from sonde.atlas import autoencoders
from sonde.models import autoencoder
from sonde.objectives import elbo
from sonde.objectives.gaussian import Gaussian
from sonde.objectives.reconstruction import Reconstruction
from tests.atlas.mistakes import Mistakes, two_seeds


def short(monkeypatch, steps: int) -> None:
    """Two seeds and few steps, where a mistake does not need a network that has learned."""
    right = autoencoders._fit
    two_seeds(monkeypatch)
    monkeypatch.setattr(autoencoders, "_fit", lambda *args, **more: right(*args, **more).replace(steps=steps))


mistakes = Mistakes()

mistakes.add(
    "AE-01",
    "weights that are counted twice",
    red=("parameters tied", "parameters untied"),
    green="xhat against",
    setup=partial(short, steps=2),
).replace(autoencoders, "_count", lambda model: sum(p.numel() for part in (model.encoder, model.decoder) for p in part.parameters()) + 1)
mistakes.add("AE-01", "a decoder with other weights", red="xhat against W^T g(W x + b) + c", setup=partial(short, steps=2)).replace(
    autoencoder.Tied, "forward", lambda self, h: h @ (2 * self.layer[0].weight) + self.bias
)
mistakes.add("AE-01", "a loss without its half", red="1/2 norm(xhat - x)^2", setup=partial(short, steps=2)).replace(
    autoencoders, "Reconstruction", lambda: Reconstruction(Gaussian(0.5))
)
mistakes.add("AE-02", "the smallest in place of the largest", red=("squared error of rank K", "other matrices"), green="U S V^T").replace(
    autoencoders, "_truncate", lambda U, s, V, K: U[:, -K:] * s[-K:] @ V[:, -K:].T
)
mistakes.add("AE-02", "rotations that end too soon", red="U^T U").replace(
    autoencoders, "jacobi_svd", lambda right, A, sweeps=1: right(A, 1)
)
mistakes.add(
    "AE-03",
    "a network that has not learned and PCA without its mean",
    red=("scikit-learn", "principal angle", "loss over that of PCA"),
    setup=partial(short, steps=20),
).replace(autoencoders, "PCA", lambda right, K, center=True: right(K, center=False))
mistakes.add("AE-04", "a straight code", only="loss of the non-linear code over that of PCA", setup=partial(short, steps=300)).replace(
    autoencoder, "dense", lambda right, shape, widths, activation, code=None: right(shape, widths, "identity")
)
mistakes.add(
    "AE-05",
    "a price that is not paid",
    red="with the price over without",
    check=lambda names: sum("active share falls" in name for name in names) == 3,
    setup=partial(short, steps=20),
).replace(autoencoders, "Sparse", lambda right, **prices: right())
mistakes.add(
    "AE-06",
    "a closed form without its square",
    red="closed form against automatic differentiation",
    green="two tanh layers",
    setup=partial(short, steps=2),
).replace(autoencoders, "sigmoid_slope", lambda h, W: (h * (1 - h)) @ W.square().sum(1))
mistakes.add(
    "AE-06",
    "a closed form with the square of its square",
    red="closed form against torch's Jacobian",
    green="two tanh layers",
    setup=partial(short, steps=2),
).replace(autoencoders, "sigmoid_slope", lambda h, W: (h * (1 - h)) ** 4 @ W.square().sum(1))
# Erratum E-12: the distance to the noisy input.
mistakes.add(
    "AE-07", "a noisy target", red=("denoising: error to the clean digit", "denoising over a plain"), setup=partial(short, steps=200)
).replace(autoencoders, "keep_clean", lambda change: change)
mistakes.add(
    "AE-08",
    "a dropped constant",
    red=("ELBO at the true posterior", "single code of the true posterior"),
    green="KL in closed form",
    setup=partial(short, steps=2),
).replace(Gaussian, "constant", lambda self, y: torch.zeros_like(y))
mistakes.add("AE-09", "layers that are thrown away", red="gained by pre-training sigmoid layers").replace(
    autoencoders, "layer", lambda right, *args, **more: right(*args, **{**more, "epochs": 0.1})
).replace(autoencoders, "first_layers", lambda learned: lambda model: None)


@mistakes.add(
    "AE-08",
    "a divergence that is off",
    red=("ELBO at the true posterior", "KL in closed form against", "draws"),
    setup=partial(short, steps=2),
)
def shift_divergence(monkeypatch):
    off = lambda mean, log_variance: 0.5 * (mean.square() + log_variance.exp() - log_variance).sum(1)  # noqa: E731
    monkeypatch.setattr(elbo, "kl", off)
    monkeypatch.setattr(autoencoders, "kl", off)


@mistakes.each
def test_notices(mistake, monkeypatch):
    mistake.assert_noticed(monkeypatch)
