"""Chapter 13, auto-encoders, principal components and generative models."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Independent, MultivariateNormal, Normal, kl_divergence

from ..core.batch import Batch, Data
from ..core.reading import Bars, Images, Lines, Reading, Scatter
from ..core.recipe import Recipe
from ..core.seeds import generator
from ..data import augment
from ..data.catalog import load
from ..data.tensors import TensorSource
from ..estimators.pca import PCA
from ..models import autoencoder, vae
from ..models.autoencoder import AutoEncoder
from ..models.mlp import MLP
from ..objectives.categorical import Categorical
from ..objectives.contractive import Contractive, sigmoid_slope, slope
from ..objectives.elbo import Elbo, kl
from ..objectives.gaussian import Gaussian
from ..objectives.reconstruction import Reconstruction
from ..objectives.sparse import Sparse
from ..optim.build import optimizer
from ..optim.schedules import cosine
from ..recipes.tools.stacked import first_layers, greedy, keep_clean, layer
from ..recipes.vae import binarize
from ._autoencoder_parts import generative
from .exhibit import Exhibit, spread


def ae_01(exhibit: Exhibit) -> str:
    """One tied layer: its formula, its numbers, and a linear one as wide as its input that loses nothing."""
    sizes = [(11, 4), (64, 16), (784, 32)]
    tied, untied = ([_count(autoencoder.dense((D,), (K,), tied=is_tied)) for D, K in sizes] for is_tied in (True, False))
    exhibit.expect("parameters tied: K D + K + D", tied, [K * D + K + D for D, K in sizes])
    exhibit.expect("parameters untied: 2 K D + K + D", untied, [2 * K * D + K + D for D, K in sizes])

    model = autoencoder.dense((11,), (4,), tied=True).double()
    x = torch.randn(7, 11, generator=exhibit.generator("tied"), dtype=torch.float64)
    W, b, c = (p.detach().numpy() for p in model.parameters())
    h = 1 / (1 + np.exp(-(x.numpy() @ W.T + b)))
    back = h @ W + c
    exhibit.expect("xhat against W^T g(W x + b) + c", model(x), back, within=1e-12)
    expected = np.mean([0.5 * np.linalg.norm(row) ** 2 for row in back - x.numpy()])
    exhibit.expect("loss against the mean of 1/2 norm(xhat - x)^2", Reconstruction()(model, Batch(x=x)).loss(), expected, within=1e-12)

    # Deviations of 2 down to 1/2 in turned directions: gradients need the longer, the more these differ.
    turn = torch.linalg.qr(torch.randn(6, 6, generator=generator(exhibit.seed + 1, "square")))[0]
    mixed = torch.randn(200, 6, generator=exhibit.generator("square")) * torch.linspace(2, 0.5, 6) @ turn
    start = float(mixed.square().sum(1).mean() / 2)
    losses: dict[str, list[float]] = {}
    for width, ties in ((6, True), (6, False), (5, True)):
        name = f"{width} of 6, {'tied' if ties else 'untied'}"
        build = partial(autoencoder.dense, (6,), (width,), "identity", tied=ties)
        models = _train_models(exhibit, _fit(build, mixed, Reconstruction(), 400, lr=0.06), name)
        losses[name] = [_loss(model, mixed) / start for model in models]
    for name in ("6 of 6, tied", "6 of 6, untied"):
        exhibit.below(f"K = D, linear, loss left of that of guessing 0: {name}", losses[name], 1e-6)
    exhibit.above("K < D, linear, cannot: loss left with 5 of 6", losses["5 of 6, tied"], 0.01)
    return (
        f"{tied[1]} numbers tied, {untied[1]} untied (64 to 16); K = D linear loses {spread(losses['6 of 6, tied'], '.1e')} of the signal"
    )


def ae_02(exhibit: Exhibit) -> str:
    """A singular value decomposition of our own, and the best matrix of rank K, which nothing of that rank beats."""
    rng = np.random.default_rng(exhibit.seed)
    square = rng.normal(size=(12, 7)) @ np.diag([5, 3, 2, 1, 0.5, 0.1, 0.01])
    thin = rng.normal(size=(9, 3)) @ rng.normal(size=(3, 6))  # of rank 3
    worst = 0.0
    for name, A in {"12 x 7": square, "7 x 12": square.T, "9 x 6 of rank 3": thin}.items():
        U, s, V = jacobi_svd(A)
        worst = max(worst, exhibit.expect(f"{name}: U S V^T against A", U * s @ V.T, A, within=1e-8))
        exhibit.expect(f"{name}: V^T V", V.T @ V, np.eye(V.shape[1]), within=1e-8)
        exhibit.expect(f"{name}: U^T U", U.T @ U, np.eye(U.shape[1]), within=1e-8)
        theirs = np.linalg.svd(A, full_matrices=False)
        exhibit.expect(f"{name}: singular values against NumPy", s, theirs[1], within=1e-8)
        rank = int((s > 1e-9).sum())
        signs = np.sign((U * theirs[0]).sum(0))
        exhibit.expect(f"{name}: U against NumPy up to signs", (U * signs)[:, :rank], theirs[0][:, :rank], within=1e-10)
        exhibit.expect(f"{name}: V against NumPy up to the same signs", (V * signs)[:, :rank], theirs[2].T[:, :rank], within=1e-10)
        eigen = np.linalg.eigvalsh(A.T @ A)[::-1][: len(s)]
        exhibit.expect(f"{name}: s^2 against the eigenvalues of A^T A", s**2, eigen, within=1e-8)

    U, s, V = jacobi_svd(square)
    ranks, closest = range(1, 7), math.inf
    lost = [float(np.linalg.norm(square - _truncate(U, s, V, K)) ** 2) for K in ranks]
    exhibit.expect(
        "squared error of rank K against the sum of the other s^2", lost, [float((s[K:] ** 2).sum()) for K in ranks], within=1e-9
    )
    for K, minimum in zip(ranks, lost):
        for trial in range(1000):
            if trial % 2:  # the best matrix with rows in a random K-dimensional space
                Q = np.linalg.qr(rng.normal(size=(7, K)))[0]
                other = square @ Q @ Q.T
            else:  # a neighbor of the best one: rank K too
                step = 10.0 ** rng.uniform(-4, 0)
                other = (U[:, :K] * s[:K] + step * rng.normal(size=(12, K))) @ (V[:, :K] + step * rng.normal(size=(7, K))).T
            closest = min(closest, float(np.linalg.norm(square - other) ** 2) - minimum)
    exhibit.exceeds("squared error of 6 x 1000 other matrices of rank K, smallest, over that of the truncation", closest, 0.0)
    _show_ranks(exhibit)
    return f"rebuilt to {worst:.0e}; 6000 candidates, none better (closest {closest:.1e})"


def jacobi_svd(A: np.ndarray, sweeps: int = 60) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """U (m, k), s (k,) falling, V (n, k), k = min(m, n), with A = U diag(s) V^T, by one-sided Jacobi rotations (Hestenes 1958).

    Columns of A V are turned in pairs until each stands upright on each other; then their lengths are the singular values.
    """
    if A.shape[0] < A.shape[1]:
        U, s, V = jacobi_svd(A.T, sweeps)
        return V, s, U
    B, V = A.astype(np.float64).copy(), np.eye(A.shape[1])
    for _ in range(sweeps):
        turned = 0.0
        for i in range(B.shape[1] - 1):
            for j in range(i + 1, B.shape[1]):
                a, b, c = B[:, i] @ B[:, i], B[:, j] @ B[:, j], B[:, i] @ B[:, j]
                if abs(c) <= 1e-15 * math.sqrt(a * b) or abs(c) < 1e-300:
                    continue
                turned = max(turned, float(abs(c)) / math.sqrt(a * b))
                zeta = (b - a) / (2 * c)
                t = math.copysign(1.0, zeta) / (abs(zeta) + math.hypot(1.0, zeta))
                cos = 1 / math.hypot(1.0, t)
                turn = np.array([[cos, cos * t], [-cos * t, cos]])
                B[:, [i, j]], V[:, [i, j]] = B[:, [i, j]] @ turn, V[:, [i, j]] @ turn
        if turned < 1e-14:
            break
    s = np.linalg.norm(B, axis=0)
    order = np.argsort(-s, kind="stable")
    B, s, V = B[:, order], s[order], V[:, order]
    rank = int((s > 1e-12 * s[0]).sum())
    # Columns of length 0 have no direction; any that completes the others will do.
    U = np.linalg.qr(np.concatenate([B[:, :rank] / s[:rank], np.eye(len(B))], 1))[0][:, : len(s)]
    U[:, :rank] = B[:, :rank] / s[:rank]
    return U, s, V


def _truncate(U: np.ndarray, s: np.ndarray, V: np.ndarray, K: int) -> np.ndarray:
    return U[:, :K] * s[:K] @ V[:, :K].T


def _show_ranks(exhibit: Exhibit) -> None:
    """A photograph at rising rank; it comes with scikit-learn."""
    from sklearn.datasets import load_sample_image

    photo = load_sample_image("china.jpg").mean(2)[: 6 * 70, : 6 * 106].reshape(70, 6, 106, 6).mean((1, 3)) / 255
    U, s, V = jacobi_svd(photo)
    ranks = (1, 3, 8, 20, 70)
    fractions = [float((s[:K] ** 2).sum() / (s**2).sum()) for K in ranks]
    images = {"rank": [_truncate(U, s, V, K).clip(0, 1) for K in ranks]}
    note = "Truncated singular value decompositions of a photograph of 70 x 106 pixels, with their fraction of the squared norm."
    exhibit.show(
        Images(
            "The best image of each rank",
            images,
            note=note,
            labels=[f"rank {K}" for K in ranks],
            details=[f"{fraction:.1%}" for fraction in fractions],
        )
    )


def ae_03(exhibit: Exhibit) -> str:
    """A linear auto-encoder, trained by gradient, ends in the space of the first principal components, with its own centering or none."""
    from scipy.linalg import subspace_angles
    from sklearn.decomposition import PCA as Theirs

    K = 4
    x = load("digits", seed=exhibit.seed, standardize=False).train[:].x.flatten(1)
    stats = {}
    for centered in (False, True):
        name = "centered" if centered else "not centered"
        ours = PCA(K, center=centered).fit(x.numpy())
        minimum = 0.5 * float(np.mean(np.sum((x.numpy() - ours.inverse_transform(ours.transform(x.numpy()))) ** 2, 1)))
        if centered:
            theirs = Theirs(K).fit(x.numpy())
            rest = 0.5 * float(np.mean(np.sum((x.numpy() - theirs.inverse_transform(theirs.transform(x.numpy()))) ** 2, 1)))
            exhibit.expect("loss of PCA against scikit-learn", minimum, rest, within=1e-4)
        else:  # min norm(X - X W^T W)^2 without a mean: the truncated decomposition of the rows as they are
            s = np.linalg.svd(x.double().numpy(), compute_uv=False)
            exhibit.expect("loss without centering against the other s^2", minimum, 0.5 * float((s[K:] ** 2).sum()) / len(x), within=1e-10)
        models = _train_models(exhibit, _fit(partial(_linear, K, centered), x, Reconstruction(), 1000, lr=0.05, batch_size=len(x)), name)
        ratios = [_loss(model, x) / minimum for model in models]
        angles = [
            float(subspace_angles(model.encoder.dense1.weight.detach().double().numpy().T, ours.components_.T).max()) for model in models
        ]
        exhibit.below(f"{name}: loss over that of PCA", ratios, 1.0001)
        exhibit.above(f"{name}: loss over that of PCA, which is the least", ratios, 1 - 1e-5)
        exhibit.below(f"{name}: largest principal angle in radians", angles, 1e-3)
        stats[name] = (minimum, ratios, angles)
    exhibit.below(
        "a free mean is worth something: PCA loss centered over not centered", stats["centered"][0] / stats["not centered"][0], 1.0
    )
    rows = x[:12]
    with torch.no_grad():
        sheets = [rows, torch.from_numpy(ours.inverse_transform(ours.transform(rows.numpy()))).float(), models[0](rows)]
    note = "Rows: digits; rebuilt from 4 principal components; rebuilt by the linear auto-encoder of 4 numbers."
    exhibit.show(_sheet("Linear auto-encoder and principal components", [sheet.reshape(-1, 8, 8) for sheet in sheets], note))
    return f"loss / PCA {spread(stats['centered'][1], '.5f')}, angles {spread(stats['centered'][2], '.1e')} (centered)"


def _linear(K: int, biases: bool) -> AutoEncoder:
    """A tied linear auto-encoder of 64 numbers; without biases it sees the rows as they are."""
    model = autoencoder.dense((64,), (K,), "identity", tied=True)
    for name, weight in model.named_parameters():
        if not biases and name.endswith("bias"):
            nn.init.zeros_(weight).requires_grad_(False)
    return model


def ae_04(exhibit: Exhibit) -> str:
    """A circle has one number per point, its angle; a straight line through the plane cannot follow it, a curved code can."""
    angle = torch.linspace(0, 2 * math.pi, 241)[:-1]
    x = torch.stack([angle.cos(), angle.sin()], 1)
    fit = PCA(1).fit(x.numpy())
    flat = torch.from_numpy(fit.inverse_transform(fit.transform(x.numpy()))).float()
    minimum = float((flat - x).square().sum(1).mean() / 2)
    exhibit.expect("loss of PCA on the unit circle, worked: half of the variance 1/2", minimum, 0.25, within=1e-5)
    build = partial(autoencoder.dense, (2,), (32, 1), "tanh", code="identity")
    models = _train_models(exhibit, _fit(build, x, Reconstruction(), 1000, lr=0.01), "circle")
    ratios = [_loss(model, x) / minimum for model in models]
    exhibit.below("loss of the non-linear code over that of PCA", ratios, 0.3)
    line = partial(autoencoder.dense, (2,), (32, 1), "identity")
    straight = _train_models(exhibit, _fit(line, x, Reconstruction(), 300, lr=0.01), "line")
    exhibit.above("the same network without its non-linear function, over PCA", [_loss(model, x) / minimum for model in straight], 0.99)
    with torch.no_grad():
        codes, curves = [model.encode(x)[:, 0] for model in models], [model(x) for model in models]
    values = {f"seed {seed}": (code - code.min()) / (code.max() - code.min()) for seed, code in zip(exhibit.seeds(3), codes)}
    note = "The code goes round the circle and runs back where it is cut open; only what lies there comes back wrong. PCA gives a cosine."
    exhibit.show(Lines("The code of each point of a circle", values, ["angle", "code, from least to largest"], note, x=angle))
    rings = {"circle": x[::12], "PCA": flat[::12], "auto-encoder": torch.cat([curve[::6] for curve in curves])}
    spots = torch.cat(list(rings.values()))
    groups = [name for name, points in rings.items() for _ in points]
    exhibit.show(
        Scatter(
            "What comes back from one number",
            {"x": spots[:, 0], "y": spots[:, 1]},
            ["x", "y"],
            f"{len(models)} seeds of the auto-encoder.",
            groups=groups,
        )
    )
    return f"loss {spread(ratios, '.3f')} of that of PCA"


def ae_05(exhibit: Exhibit) -> str:
    """A price on the code: the larger lambda, the fewer of 128 numbers are in use for a digit of 64 pixels; three prices."""
    data = _digits(exhibit.seed)
    test = data.test[:].x  # type: ignore[index]
    baseline = float((test - data.train[:].x.mean(0)).square().mean())
    factors, rows = (0.0, 0.03, 0.1, 0.25), {}
    for factor in factors:
        build = partial(autoencoder.dense, (1, 8, 8), (128,), "relu", tied=True)
        models = _train_models(exhibit, _fit(build, data, Sparse(l1=factor), 300), f"l1 {factor}")
        rows[factor] = ([_active(model, test) for model in models], [_error(model, test) / baseline for model in models], models[0])
    for less, more in zip(factors, factors[1:]):
        exhibit.exceeds(f"active share falls from lambda {less:g} to {more:g}", rows[less][0], rows[more][0])
    exhibit.below("L1: error over that of the mean digit at the largest lambda", rows[factors[-1]][1], 0.6)

    prices: dict[str, tuple[Sparse, Callable[[AutoEncoder], float], float, float]] = {
        "L2: mean square of the code": (Sparse(l2=0.05), lambda model: float(_code(model, test).square().mean()), 0.25, 0.45),
        "KL: mean of each number away from the rate 0.1": (
            Sparse(kl=0.1, rate=0.1),
            lambda model: _inactive_fraction(model, test, 0.1),
            0.15,
            0.6,
        ),
    }
    build = partial(autoencoder.dense, (1, 8, 8), (128,))
    free = _train_models(exhibit, _fit(build, data, Sparse(), 300, lr=5e-3), "free")
    for name, (objective, measure, max_ratio, worst) in prices.items():
        priced = _train_models(exhibit, _fit(build, data, objective, 300, lr=5e-3), name[:2])
        exhibit.below(f"{name}, with the price over without", [measure(b) / measure(a) for a, b in zip(free, priced)], max_ratio)
        exhibit.below(f"{name[:2]}: error over that of the mean digit", [_error(model, test) / baseline for model in priced], worst)
    lines = {
        "active share": [float(np.mean(rows[f][0])) for f in factors],
        "error / mean digit": [float(np.mean(rows[f][1])) for f in factors],
    }
    note = f"Tied, ReLU, 64 pixels into 128 numbers; mean of {len(models)} seeds on the test digits."
    exhibit.show(Lines("What a price on the code does", lines, ["lambda", "share"], note, x=factors))
    with torch.no_grad():
        sheets = [test[:12], *(rows[factor][2](test[:12]) for factor in factors)]
    lambdas = ", ".join(f"{factor:g}" for factor in factors)
    exhibit.show(_sheet("Digits from sparse codes", [one[:, 0] for one in sheets], f"Rows: test digits; rebuilt with lambda {lambdas}."))
    return (
        "active fraction "
        + ", ".join(f"{spread(rows[f][0], '.2f')}" for f in factors)
        + " at lambda "
        + ", ".join(f"{f:g}" for f in factors)
    )


def ae_06(exhibit: Exhibit) -> str:
    """The contractive penalty in closed form, against automatic differentiation and against differences; and what it does."""
    model = autoencoder.dense((9,), (5,), tied=True).double()
    x = torch.randn(6, 9, generator=exhibit.generator("contract"), dtype=torch.float64)
    weights = model.sigmoid_weights
    assert weights is not None
    closed = sigmoid_slope(model.encode(x), weights)
    exhibit.expect("closed form against automatic differentiation", closed, slope(model.encode, x), within=1e-12)
    jacobian = torch.stack([torch.autograd.functional.jacobian(model.encode, row[None])[0, :, 0] for row in x])
    exhibit.expect("closed form against torch's Jacobian", closed, jacobian.square().sum((1, 2)), within=1e-12)
    with torch.no_grad():
        moved = [(model.encode(x + 1e-5 * e) - model.encode(x - 1e-5 * e)) / 2e-5 for e in torch.eye(9, dtype=torch.float64)]
    differences = torch.stack(moved).square().sum((0, 2))
    gap = exhibit.expect("closed form against central differences", closed, differences, within=1e-8)
    known, plain = (
        torch.autograd.grad(total.sum(), weights)[0] for total in (sigmoid_slope(model.encode(x), weights), slope(model.encode, x))
    )
    exhibit.expect("gradient by the weights, closed form against automatic differentiation", known, plain, within=1e-11)
    deep = autoencoder.dense((9,), (7, 5), "tanh").double()
    rows = torch.stack([torch.autograd.functional.jacobian(deep.encode, row[None])[0, :, 0] for row in x])
    exhibit.expect(
        "two tanh layers, which have no closed form, against torch's Jacobian",
        slope(deep.encode, x),
        rows.square().sum((1, 2)),
        within=1e-12,
    )

    data = _digits(exhibit.seed)
    test = data.test[:].x  # type: ignore[index]
    baseline = float((test - data.train[:].x.mean(0)).square().mean())
    build = partial(autoencoder.dense, (1, 8, 8), (32,), tied=True)
    slopes: dict[float, list[float]] = {}
    for factor, worst in ((0.0, 0.4), (0.5, 0.55)):
        models = _train_models(exhibit, _fit(build, data, Contractive(factor), 400, lr=5e-3), f"{factor}")
        with torch.no_grad():
            slopes[factor] = [slope(one.encode, test).mean().item() for one in models]
        exhibit.below(f"error over that of the mean digit at lambda {factor:g}", [_error(one, test) / baseline for one in models], worst)
    exhibit.below("slope of the code on new digits, with lambda 0.5 over without", [b / a for a, b in zip(slopes[0.0], slopes[0.5])], 0.5)
    return f"closed form = autodiff to {gap:.0e}; trained, the slope falls from {spread(slopes[0.0])} to {spread(slopes[0.5])}"


def ae_07(exhibit: Exhibit) -> str:
    """Denoising: the target is the clean x.  Judged by the noisy x, as E-12 has it, a network learns to pass the noise on."""
    deviation, data = 0.3, _digits(exhibit.seed)
    clean = data.test[:].x  # type: ignore[index]
    noisy = clean + deviation * torch.randn(clean.shape, generator=exhibit.generator("test noise"))
    start = float((noisy - clean).square().mean())
    change = augment.noise(deviation)
    augmentations = {"plain, trained on clean digits": None, "denoising": keep_clean(change), "noisy target (E-12)": change}
    build = partial(autoencoder.dense, (1, 8, 8), (128,), "relu")
    errors, shown = {}, []
    for name, augmentation in augmentations.items():
        models = _train_models(exhibit, _fit(build, data, Reconstruction(), 500, augment=augmentation), name)
        with torch.no_grad():
            errors[name] = [float((model(noisy) - clean).square().mean()) / start for model in models]
            shown.append(models[0](noisy[:12]))
    plain, denoised, copied = errors.values()
    exhibit.below("denoising: error to the clean digit over that of the noisy input", denoised, 0.3)
    exhibit.below("denoising over a plain auto-encoder", [a / b for a, b in zip(denoised, plain)], 0.6)
    exhibit.above("noisy target: error to the clean digit over that of the noisy input; it does not denoise", copied, 0.95)
    note = "Rows: clean; with noise of deviation 0.3; then what comes back: " + "; ".join(augmentations) + "."
    exhibit.show(_sheet("Denoising digits", [part.reshape(-1, 8, 8) for part in (clean[:12], noisy[:12], *shown)], note))
    return (
        f"error left of the noise: denoising {spread(denoised, '.2f')}, plain {spread(plain, '.2f')}, noisy target {spread(copied, '.2f')}"
    )


def ae_08(exhibit: Exhibit) -> str:
    """The evidence lower bound, on a model whose log p(x) is known, and then on digits."""
    gap = _linear_gaussian(exhibit)
    _divergence(exhibit)
    trained = _trained_linear(exhibit)
    digits = _digit_codes(exhibit)
    posterior = f"equal at the true posterior to {gap:.0e} nats"
    return f"{posterior}; linear VAE {spread(trained, '.3f')} nats below PPCA; digits ELBO {spread(digits, '.2f')}"


def _linear_gaussian(exhibit: Exhibit) -> float:
    """x = W h + b + noise with upright columns of W, so the true posterior is a diagonal Gaussian that an encoder can give."""
    D, K, variance = 5, 2, 0.3
    rng = exhibit.generator("linear gaussian")
    Q = torch.linalg.qr(torch.randn(D, K, generator=rng, dtype=torch.float64))[0]
    W, b = Q * torch.tensor([1.5, 0.7], dtype=torch.float64), torch.randn(D, generator=rng, dtype=torch.float64)
    x = torch.randn(8, D, generator=rng, dtype=torch.float64)
    exact = MultivariateNormal(b, W @ W.T + variance * torch.eye(D, dtype=torch.float64)).log_prob(x)
    spreads = 1 / (W.square().sum(0) / variance + 1)
    true = spreads * ((x - b) @ W) / variance, spreads.log().expand(8, K)
    objective, decode = Elbo(Gaussian(variance)), lambda h: h @ W.T + b

    def bound(mean: Tensor, log_variance: Tensor) -> Tensor:
        """The ELBO of each example.  A mean over the noises +- sqrt(K) e_i is exact where log p(x; h) is quadratic in h."""
        points = math.sqrt(K) * torch.cat([torch.eye(K), -torch.eye(K)]).double()
        parts = []
        for row in range(len(x)):
            encoding = mean[row].expand(2 * K, K), log_variance[row].expand(2 * K, K)
            fixed = _FixedPosterior(encoding, decode)
            parts.append(-objective(fixed, Batch(x=x[row].expand(2 * K, D), noise=points)).loss())
        return torch.stack(parts)

    gap = exhibit.expect("ELBO at the true posterior against log p(x)", bound(*true), exact, within=1e-9)
    offs = [
        (
            true[0] + shift * torch.randn(8, K, generator=rng, dtype=torch.float64),
            true[1] + shift * torch.randn(8, K, generator=rng, dtype=torch.float64),
        )
        for shift in (0.01, 0.1, 0.5, 1.0, 2.0)
        for _ in range(8)
    ]
    slack = torch.stack([exact - bound(*off) for off in offs])
    exhibit.above("log p(x) less the ELBO at 320 other posteriors: logarithm to base 10 of the smallest", slack.min().log10(), -9.0)
    posterior = MultivariateNormal(true[0], torch.diag(spreads).expand(8, K, K))
    divergence = torch.stack(
        [kl_divergence(MultivariateNormal(mean, torch.diag_embed(log_variance.exp())), posterior) for mean, log_variance in offs]
    )
    exhibit.expect("this difference against KL(q, true posterior) of torch.distributions", slack, divergence, within=1e-8)
    one = objective.log_likelihood(_FixedPosterior(true, decode), x, 1, rng)
    exhibit.expect("importance weight of a single code of the true posterior against log p(x)", one, exact, within=1e-9)
    wide = true[0], true[1] + 1.0
    steps = [1, 3, 10, 30, 100, 300, 1000]
    bounds = []
    for samples in steps:
        many = 3000 // samples + 3
        fixed = _FixedPosterior((wide[0].repeat(many, 1), wide[1].repeat(many, 1)), decode)
        bounds.append(float((objective.log_likelihood(fixed, x.repeat(many, 1), samples, rng)).mean() - exact.mean()))
    for few, more, tighter in ((1, 10, 2), (10, 100, 4)):
        exhibit.exceeds(f"the bound of more codes is tighter, a q too wide: {more} codes over {few}", bounds[tighter], bounds[tighter - 2])
    exhibit.below("the bound of 10 codes is below log p(x), nats", bounds[2], 0.0)
    exhibit.below("what is left to log p(x) at 1000 codes, in nats", abs(bounds[-1]), 0.02)
    note = f"Posterior with e times the true variance; 1 code is the ELBO, {-bounds[0]:.2f} nats below log p(x)."
    lines = {"weighted bound": bounds, "log p(x)": [0.0] * len(steps)}
    exhibit.show(Lines("More codes, tighter bound", lines, ["codes", "nats above log p(x)"], note, x=steps, log=["x"]))
    return gap


class _FixedPosterior(nn.Module):
    """A model whose posterior is given, whatever x is."""

    def __init__(self, posterior: tuple[Tensor, Tensor], decode: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.said, self.decode = posterior, decode

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.said


def _divergence(exhibit: Exhibit) -> None:
    """KL in closed form against torch.distributions and against draws."""
    rng, n = exhibit.generator("divergence"), 400_000
    mean, log_variance = torch.randn(2, 3, 4, generator=rng, dtype=torch.float64)
    q, p = Independent(Normal(mean, (log_variance / 2).exp()), 1), Independent(Normal(torch.zeros(4).double(), torch.ones(4).double()), 1)
    exhibit.expect(
        "KL in closed form against torch.distributions",
        kl(mean, log_variance),
        kl_divergence(q.base_dist, p.base_dist).sum(1),
        within=1e-12,
    )
    h = mean + (log_variance / 2).exp() * torch.randn(n, 3, 4, generator=rng, dtype=torch.float64)
    drawn = q.log_prob(h) - p.log_prob(h)
    wrong = (kl(mean, log_variance) - drawn.mean(0)) / (drawn.std(0) / math.sqrt(n))
    exhibit.below(f"KL in closed form less the mean of {n} draws, in standard errors: largest", float(wrong.abs().max()), 5.0)


def _trained_linear(exhibit: Exhibit) -> list[float]:
    """A linear VAE, trained, against probabilistic PCA, whose best likelihood scikit-learn computes (Tipping and Bishop 1999)."""
    from sklearn.decomposition import PCA as Theirs

    rng, D, K = exhibit.generator("factors"), 6, 2
    h, W = torch.randn(500, K, generator=rng), torch.randn(K, D, generator=rng)
    x = h @ W + 0.5 * torch.randn(500, D, generator=rng)
    best = Theirs(K).fit(x.numpy())
    variance = float(best.noise_variance_)
    score = float(best.score(x.numpy()))
    build = lambda: vae.VAE(nn.Linear(D, 2 * K), nn.Linear(K, D), K, variance)  # noqa: E731
    objective = Elbo(Gaussian(variance))
    below, weighted = [], []
    for model in _train_models(exhibit, _fit(build, x, objective, 1000, lr=0.1, batch_size=len(x)), "linear"):
        with torch.no_grad():
            many = x.repeat(40, 1)
            below.append(score + float(objective(model, Batch(x=many, noise=torch.randn(len(many), K, generator=rng))).loss()))
        weighted.append(float(objective.log_likelihood(model, x, 500, rng).mean()) - score)
    exhibit.below("linear VAE: ELBO below the best log-likelihood of probabilistic PCA, nats (a code turns slowly)", below, 0.1)
    exhibit.above("linear VAE: the ELBO is not above it (20,000 draws spread by 0.01)", below, -0.03)
    exhibit.below("linear VAE: importance-weighted bound less it, nats", weighted, 0.01)
    return below


def _digit_codes(exhibit: Exhibit) -> list[float]:
    """A VAE with a code of two numbers on digits of black and white pixels; a plane of digits comes out."""
    data = load("digits", seed=exhibit.seed, standardize=False)
    assert data.test is not None
    rng = exhibit.generator("pixels")
    test = binarize(data.test[:], rng).x
    train = data.train[:].x
    pixel_logits = (train.mean(0).clamp(1e-3, 1 - 1e-3)).logit().expand_as(test)
    objective = Elbo()
    independent = float(objective.log_p(pixel_logits, test).mean())
    build = partial(vae.dense, (1, 8, 8), (128,), 2)
    bounds, weighted = [], []
    recipe = _fit(build, replace(data, valid=None, test=None), objective, 800, lr=5e-3, augment=binarize)
    for model in (models := _train_models(exhibit, recipe, "digits")):
        with torch.no_grad():
            bounds.append(-float(objective(model, Batch(x=test)).loss()))
        weighted.append(float(objective.log_likelihood(model, test, 200, rng).mean()))
    exhibit.above("digits: test ELBO above that of independent pixels, nats", [bound - independent for bound in bounds], 1.5)
    exhibit.above("digits: importance-weighted bound above the ELBO by", [w - bound for w, bound in zip(weighted, bounds)], 0.0)
    with torch.no_grad():
        line = Normal(0.0, 1.0).icdf(torch.linspace(0.04, 0.96, 12))
        grid = torch.stack([line.repeat(8), Normal(0.0, 1.0).icdf(torch.linspace(0.96, 0.04, 8)).repeat_interleave(12)], 1)
        plane, drawn = models[0].mean(grid), models[0].mean(models[0].codes(24, exhibit.generator("samples")))
    note = "Both numbers of the code go through the quantiles of the prior; a pixel is its probability of being black."
    exhibit.show(_sheet("A plane of digits", [1 - plane.reshape(-1, 8, 8)], note))
    exhibit.show(
        _sheet(
            "Digits drawn from the prior",
            [1 - drawn.reshape(-1, 8, 8)],
            f"Test ELBO {spread(bounds, '.2f')} nats per digit over {len(bounds)} seeds.",
        )
    )
    return bounds


def ae_09(exhibit: Exhibit) -> str:
    """Three sigmoid layers pretrained one by one without labels, then fine-tuned with 50: better than from random weights.

    Checked for sigmoid layers alone, which learn slowly from random weights and so have the most to gain.
    """
    widths = (100, 100, 100)
    scores: dict[str, list[float]] = {"random": [], "pre-trained": []}
    for seed in exhibit.seeds(8):
        data = load("digits", seed=seed)
        stage = partial(layer, activation="sigmoid", noise=0.5, lr=3e-3, epochs=15)
        unlabeled = Data(TensorSource(data.train[:].x), name="digits without labels")
        train = partial(_train_seed, exhibit, seed)
        encoders = greedy(unlabeled, widths, stage, partial(_model_under, exhibit, seed))
        labeled = data.train[:][_per_class(data.train[:].y, 5, seed)]
        few = Data(TensorSource(labeled.x, labeled.y), test=data.test, name="50 digits", task="classes", classes=data.classes)
        tuned = Recipe(
            model=partial(MLP, (64, *widths, 10), "sigmoid"),
            data=few,
            objective=Categorical(10),
            optimizer=optimizer("adam", lr=3e-3),
            batch_size=50,
            steps=100,
        )
        for name, recipe in {"random": tuned, "pre-trained": tuned.replace(initialize=first_layers(encoders))}.items():
            scores[name].append(train(recipe, name).result["metrics"]["test/accuracy"])
    gains = [b - a for a, b in zip(*scores.values())]
    exhibit.expect("labels of each seed", len(few.train), 50)
    exhibit.above("accuracy gained by pre-training sigmoid layers", gains, 0.0, mean=True)
    exhibit.above("pre-trained test accuracy", scores["pre-trained"], 0.6)
    bars = {"test accuracy": [float(np.mean(values)) for values in scores.values()]}
    note = f"Three sigmoid layers, the only kind checked; 50 labeled digits, 5 of each class; bars are means, dots the {len(gains)} seeds."
    exhibit.show(
        Bars(
            "Layers learned without labels",
            bars,
            note=note,
            labels=list(scores),
            dots={"test accuracy": list(scores.values())},
        )
    )
    ours, plain = (spread(scores[name], ".1%") for name in ("pre-trained", "random"))
    return f"sigmoid layers: {ours} pre-trained, {plain} from random weights, {len(gains)} seeds"


def _train_seed(exhibit: Exhibit, seed: int, recipe: Recipe, name: str) -> Any:
    return exhibit.train(recipe, f"{name} {seed}", seed=seed)


def _model_under(exhibit: Exhibit, seed: int, recipe: Recipe, name: str) -> Any:
    return _train_seed(exhibit, seed, recipe, name).model()


def _per_class(y: Tensor, many: int, seed: int) -> Tensor:
    """So many examples of each class, drawn by the seed."""
    order = torch.randperm(len(y), generator=generator(seed, "few labels"))
    return torch.cat([order[y[order] == label][:many] for label in range(int(y.max()) + 1)])


def _fit(
    build: Callable[[], nn.Module], data: Data | Tensor, objective: Any, steps: int, lr: float = 2e-3, batch_size: int = 256, **more: Any
) -> Recipe:
    """A run of Adam under a cosine, the whole data at each step where they are few."""
    dataset = data if isinstance(data, Data) else Data(TensorSource(data))
    return Recipe(
        model=build,
        data=dataset,
        objective=objective,
        optimizer=optimizer("adam", lr=lr),
        schedule=cosine(),
        batch_size=batch_size,
        steps=steps,
        **more,
    )


def _train_models(exhibit: Exhibit, recipe: Recipe, name: str) -> list[Any]:
    """The model of each seed."""
    return [exhibit.train(recipe, f"{name} {seed}", seed=seed).model() for seed in exhibit.seeds(3)]


def _digits(seed: int) -> Data:
    """Digits with pixels between 0 and 1, in two parts."""
    data = load("digits", seed=seed, standardize=False, valid=0)
    return replace(data, valid=None)


def _count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@torch.no_grad()
def _loss(model: nn.Module, x: Tensor) -> float:
    return float(Reconstruction()(model, Batch(x=x)).loss())


@torch.no_grad()
def _error(model: nn.Module, x: Tensor) -> float:
    return float((model(x) - x).square().mean())


@torch.no_grad()
def _code(model: AutoEncoder, x: Tensor) -> Tensor:
    return model.encode(x)


def _active(model: AutoEncoder, x: Tensor) -> float:
    return float((_code(model, x) > 0).float().mean())


def _inactive_fraction(model: AutoEncoder, x: Tensor, rate: float) -> float:
    return float((_code(model, x).mean(0) - rate).abs().mean())


def _sheet(title: str, rows: Sequence[Tensor], note: str) -> Reading:
    """Small images (N, H, W), twelve a row."""
    return Images(title, {"pictures": torch.cat(list(rows)).clamp(0, 1)}, note=note, dense=True)


def ae_10(exhibit: Exhibit) -> str:
    """A GAN, an autoregressive model, a flow and a diffusion model learn the same points of the plane."""
    return generative(exhibit)
