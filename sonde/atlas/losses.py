"""Chapter 5, losses as likelihoods and as lengths of codes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch import distributions as D
from torch.distributions import constraints

from ..core.batch import Batch, Data
from ..core.reading import Bars, Heat, Lines, Plane, Table
from ..core.recipe import Recipe
from ..data.tensors import TensorSource
from ..objectives import penalized
from ..objectives.bernoulli import Bernoulli
from ..objectives.categorical import Categorical
from ..objectives.distribution import Distribution, mixture
from ..objectives.gaussian import Gaussian
from ..objectives.information import codes, measures
from ..objectives.laplace import Laplace
from ..optim.build import optimizer
from .exhibit import Exhibit

P, UNIFORM = (0.5, 0.25, 0.25), (1 / 3, 1 / 3, 1 / 3)


class Logistic(D.Distribution):
    """A user's own distribution: torch has none of this name."""

    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}
    support = constraints.real

    def __init__(self, loc: Tensor, scale: Tensor, validate_args: bool | None = None) -> None:
        self.loc, self.scale = torch.broadcast_tensors(loc, scale)
        super().__init__(self.loc.shape, validate_args=validate_args)

    def log_prob(self, value: Tensor) -> Tensor:
        z = (value - self.loc) / self.scale
        return -z - self.scale.log() - 2 * nn.functional.softplus(-z)


def loss_01(exhibit: Exhibit) -> str:
    """A loss in three steps from any distribution; the product of 2000 likelihoods is 0, their sum of logarithms is not."""
    from scipy import stats
    from scipy.special import expit, log_softmax, logsumexp

    raw = torch.randn(9, 6, generator=exhibit.generator("raw")).double().numpy()
    first, second, spread = raw[:, :3], raw[:, 3:], np.logaddexp(raw[:, 3:], 0)
    y, y0, label = np.sin(raw[:, ::-1][:, :3] * 2), np.arange(27).reshape(9, 3) % 2, np.arange(9) % 6
    mixed = log_softmax(raw[:, :2], -1) + stats.norm.logpdf(y[:, :1], raw[:, 2:4], np.logaddexp(raw[:, 4:6], 0))
    cases: dict[str, tuple[Distribution, np.ndarray, np.ndarray, np.ndarray]] = {
        "Gaussian": (Distribution(D.Normal), raw, y, -stats.norm.logpdf(y, first, spread)),
        "Bernoulli": (Distribution(D.Bernoulli), first, y0, -stats.bernoulli.logpmf(y0, expit(first))),
        "categorical": (Distribution(D.Categorical), raw, label, -log_softmax(raw, -1)[np.arange(9), label]),
        "a user's own (logistic)": (Distribution(Logistic), raw, y, -stats.logistic.logpdf(y, first, spread)),
        "Student t, 4 degrees": (Distribution(D.StudentT, fixed={"df": 4.0}), raw, y, -stats.t.logpdf(y, 4, first, spread)),
        "Beta": (Distribution(D.Beta), raw, expit(y), -stats.beta.logpdf(expit(y), np.logaddexp(first, 0), spread)),
        "Poisson, exp": (Distribution(D.Poisson, links={"rate": "exp"}), second, y0, -stats.poisson.logpmf(y0, np.exp(second))),
        "mixture of 2 Gaussians": (mixture(D.Normal), raw, y[:, 0], -logsumexp(mixed, -1)),
    }
    table: dict[str, list] = {"likelihood": [], "the model gives": [], "scipy.stats": [], "largest difference": []}
    for name, (objective, output, target, exact) in cases.items():
        batch = Batch(x=torch.tensor(output), y=torch.tensor(target))
        objective.check(batch)
        gap = exhibit.expect(f"{name}: -log Pr of every target", objective.each(batch.x, batch.y), exact, within=1e-9)
        exhibit.expect(f"{name}: loss is the mean", objective(nn.Identity(), batch).loss(), exact.mean(), within=1e-9)
        domains = ", ".join(objective.domains)
        for column, cell in zip(table.values(), (name, domains, float(exact.mean()), gap), strict=True):
            column.append(cell)
    bad = Batch(x=torch.zeros(2, 6), y=torch.tensor([[0.5, 0.5, 0.5], [0.5, 1.5, 0.5]]))
    exhibit.refuses("a target outside the support", lambda: cases["Beta"][0].check(bad))

    flips = (torch.rand(2000, generator=exhibit.generator("coin")) < 0.3).double()
    ones = int(flips.sum())
    probabilities = torch.arange(1, 100).double() / 100
    pairs = torch.stack([1 - probabilities, probabilities])[flips.long()]  # (2000, 99): the likelihood of every flip under every chance
    products = pairs.prod(0)
    coin = Distribution(D.Bernoulli)
    outputs = torch.log(probabilities / (1 - probabilities)).expand(2000, -1)
    sums = -coin.each(outputs, flips.unsqueeze(1).expand_as(outputs)).sum(0)
    exact_product = [Fraction(k, 100) ** ones * Fraction(100 - k, 100) ** (2000 - ones) for k in range(1, 100)]
    best = max(range(99), key=exact_product.__getitem__)
    exhibit.expect("largest product of 2000 factors in float64", products.max(), 0.0)
    exhibit.expect("sums of logarithms that are finite", int(sums.isfinite().sum()), 99)
    exhibit.expect("best chance by the sum, and by the product in exact fractions", int(sums.argmax()), best)
    # The probabilities lie 0.01 apart, and the likelihood has one peak: the best of them is a neighbor of the fraction of ones.
    exhibit.below("best chance is next to the share of ones: 0.01 steps apart", abs(best + 1 - ones / 20), 1)
    exhibit.show(Table("Losses made from distributions", table, note="9 targets each; mean cost in nats"))
    shown = {"log-likelihood": sums}
    note = f"The product is {float(products.max()):g} at every chance; the best one is {float(probabilities[best]):.2f} with {ones} ones."
    exhibit.show(Lines("The sum of logarithms keeps the maximum", shown, axes=["chance of a one"], note=note, x=probabilities))
    worst = max(table["largest difference"])
    return f"{len(cases)} likelihoods within {worst:.0e} of scipy.stats; product 0, log-sum {float(sums.max()):.1f} at the same probability"


def loss_02(exhibit: Exhibit) -> str:
    """Squared error and Gaussian likelihood: the same best weights for every fixed variance, gradients in proportion."""
    n = 40
    x = torch.randn(n, 3, generator=exhibit.generator("x")).double()
    y = x @ torch.tensor([1.0, -2.0, 0.5]).double() + 0.3 * torch.randn(n, generator=exhibit.generator("noise")).double()
    design = torch.cat([x, torch.ones(n, 1)], 1)
    exact = torch.linalg.lstsq(design, y.unsqueeze(1)).solution[:, 0]
    away = exact + torch.tensor([0.5, -0.3, 0.2, 1.0])
    error = (y - design @ away).square()
    mse_slope = -2 / n * design.mT @ (y - design @ away)
    table: dict[str, list] = {"s": [], "NLL of all": [], "slope / slope of the MSE": [], "distance of the minimizers": []}
    for s in (0.1, 0.5, 1.0, 3.0):
        likelihood = Gaussian(variance=s * s)
        value, slope = _loss_at(likelihood, design, y, away)
        constant = float(likelihood.constant(y).sum())
        formula = n / 2 * math.log(2 * math.pi * s * s) + float(error.sum()) / (2 * s * s)
        exhibit.expect(f"s={s}: NLL = N/2 log(2 pi s^2) + SSE / 2 s^2", n * value + constant, formula, within=1e-9 * abs(formula))
        exhibit.expect(f"s={s}: slope is that of the MSE over 2 s^2", slope, mse_slope / (2 * s * s), within=1e-10)
        # The loss is a quadratic: one Newton step from anywhere, on slopes alone, ends at its minimum.
        bend = torch.stack([_loss_at(likelihood, design, y, away + shift)[1] - slope for shift in torch.eye(4).double()])
        best = away - torch.linalg.solve(bend, slope)
        gap = exhibit.expect(f"s={s}: minimizer of the NLL is that of least squares", best, exact, within=1e-9)
        for column, cell in zip(table.values(), (s, formula, 1 / (2 * s * s), gap), strict=True):
            column.append(cell)
    half, plain = (_loss_at(Gaussian(variance=v), design, y, away) for v in (1.0, 0.5))
    exhibit.expect("variance 1/2 is the mean of squares without a half", plain[0], float(error.mean()), within=1e-10)
    exhibit.expect("with a half the slope is halved", plain[1] / half[1], [2.0] * 4, within=1e-10)
    total = Gaussian(variance=0.5)(nn.Identity(), Batch(x=design @ away, y=y))["nll"].sum
    exhibit.expect("sum in place of mean: N times as much", total / plain[0], float(n), within=1e-9)
    shifts = torch.linspace(-2, 2, 81).double()
    drawn = {}
    for s in (0.5, 1.0, 3.0):
        values = torch.tensor([_loss_at(Gaussian(variance=s * s), design, y, exact + t * (away - exact))[0] for t in shifts.tolist()])
        drawn[f"s = {s}"] = values + float(Gaussian(variance=s * s).constant(y).mean())
    note = "Mean NLL along a line through the least-squares solution, which is at 0 for every s."
    exhibit.show(Lines("One minimum, whatever the variance", drawn, axes=["step away from least squares"], note=note, x=shifts))
    exhibit.show(Table("Fixed standard deviations", table))
    worst = max(table["distance of the minimizers"])
    return f"minimizers for s = 0.1 to 3 within {worst:.0e} of least squares; slopes in proportion 1 / 2 s^2"


def _loss_at(likelihood: Gaussian | Laplace, design: Tensor, y: Tensor, weights: Tensor) -> tuple[float, Tensor]:
    """Mean loss of a linear model, and its gradient in the weights."""
    w = weights.clone().requires_grad_()
    loss = likelihood(nn.Identity(), Batch(x=design @ w, y=y)).loss()
    return loss.item(), torch.autograd.grad(loss, w)[0]


def loss_03(exhibit: Exhibit) -> str:
    """The best constant under absolute error is the median, under squared error the mean; absolute error is Laplace's likelihood."""
    from scipy import stats
    from scipy.optimize import minimize_scalar

    y = torch.tensor([1.0, 2.0, 2.5, 4.0, 30.0]).double()

    def cost(likelihood: Gaussian | Laplace, constant: float) -> float:
        return likelihood(nn.Identity(), Batch(x=torch.full_like(y, constant), y=y)).loss().item()

    for name, likelihood, exact in (("absolute", Laplace(), 2.5), ("squared", Gaussian(), 7.9)):
        minimum = minimize_scalar(
            lambda c, likelihood=likelihood: cost(likelihood, c), bounds=(0, 40), method="bounded", options={"xatol": 1e-9}
        )
        exhibit.expect(f"best constant under {name} error", minimum.x, exact, within=1e-5)
    exhibit.expect("median and mean by NumPy", [float(np.median(y.numpy())), float(np.mean(y.numpy()))], [2.5, 7.9], within=1e-12)
    many = torch.randn(101, generator=exhibit.generator("many")).double().exp()
    at = torch.sort(many).values
    middle = [Laplace()(nn.Identity(), Batch(x=c.expand(101), y=many)).loss() for c in at]
    exhibit.expect("best of 101 skewed values as constant, by rank", int(torch.stack(middle).argmin()), 50)
    output = torch.linspace(-3, 3, 5).double()
    for b in (0.5, 1.0, 2.0):
        likelihood = Laplace(scale=b)
        full = likelihood.factor * likelihood.each(output, y) + likelihood.constant(y)
        exhibit.expect(
            f"b={b}: |y - m| / b + log 2b is Laplace's -log Pr", full, -stats.laplace.logpdf(y.numpy(), output.numpy(), b), within=1e-12
        )
        mae = float((output - y).abs().mean())
        exhibit.expect(f"b={b}: the loss itself is the mean absolute error over b", _loss_of(likelihood, output, y), mae / b, within=1e-12)
    shown = torch.linspace(0, 12, 241).double()
    curves = {
        "absolute error": [cost(Laplace(), c) for c in shown.tolist()],
        "squared / 20": [cost(Gaussian(), c) / 10 for c in shown.tolist()],
    }
    note = "Targets 1, 2, 2.5, 4 and 30: the outlier draws the mean to 7.9 and leaves the median at 2.5."
    exhibit.show(Lines("Loss of a constant prediction", curves, axes=["constant"], note=note, x=shown))
    return "best constant of 1, 2, 2.5, 4, 30: median 2.5 for MAE, mean 7.9 for MSE; MAE = Laplace NLL but for log 2b"


def _loss_of(likelihood: Laplace | Gaussian | Bernoulli | Categorical, output: Tensor, y: Tensor) -> float:
    return likelihood(nn.Identity(), Batch(x=output, y=y)).loss().item()


def loss_04(exhibit: Exhibit) -> str:
    """Binary cross-entropy: its value at 0.9, its sign over the whole bracket, logits of 1000, and the gradient p - y."""
    from scipy import stats

    def cost(p: float, y: float) -> float:
        return _loss_of(Bernoulli(), torch.tensor([math.log(p / (1 - p))]).double(), torch.tensor([y]).double())

    value = cost(0.9, 1.0)
    exhibit.expect("y=1, p=0.9", value, 0.10536, within=5e-6)
    exhibit.expect("y=0, p=0.9: the minus sign covers both terms", cost(0.9, 0.0), 2.302585, within=5e-7)
    printed = -(0.0 * math.log(0.9)) + (1 - 0.0) * math.log(1 - 0.9)
    exhibit.expect("the form with the sign on the first term alone has the other sign", printed, -2.302585, within=5e-7)
    p = torch.linspace(0.02, 0.98, 49).double()
    z = torch.log(p / (1 - p))
    for label in (0, 1):
        each = Bernoulli().each(z, torch.full_like(z, label))
        exhibit.expect(f"y={label}: -log of Bernoulli's probability", each, -stats.bernoulli.logpmf(label, p.numpy()), within=1e-12)
    for y, logit, exact in ((1.0, 1000.0, 0.0), (1.0, -1000.0, 1000.0), (0.0, 1000.0, 1000.0), (0.0, -1000.0, 0.0)):
        exhibit.expect(f"y={y:g}, logit {logit:g}", _loss_of(Bernoulli(), torch.tensor([logit]), torch.tensor([y])), exact)
    far = torch.cat([z, torch.tensor([-1000.0, 1000.0]).double()]).requires_grad_()
    y_far = (torch.arange(51) % 2).double()
    (slope,) = torch.autograd.grad(Bernoulli()(nn.Identity(), Batch(x=far, y=y_far))["nll"].sum, far)
    p_far = torch.cat([p, torch.tensor([0.0, 1.0]).double()])
    gap = exhibit.expect("gradient in the logit is p - y, also at +-1000", slope, p_far - y_far, within=1e-12)
    curves = {"y = 1: -log p": Bernoulli().each(z, torch.ones_like(z)), "y = 0: -log(1 - p)": Bernoulli().each(z, torch.zeros_like(z))}
    exhibit.show(Lines("Cost of a probability", curves, axes=["p"], x=p))
    return f"-log 0.9 = {value:.5f}; 1000 at a logit of -1000, not infinity; gradient p - y to {gap:.0e}"


def loss_05(exhibit: Exhibit) -> str:
    """Cross-entropy on logits: log K where nothing is known, gradient softmax - onehot, and probabilities that are checked."""
    from scipy.special import softmax

    sizes = (2, 3, 10, 1000)
    for k in sizes:
        loss = _loss_of(Categorical(), torch.full((4, k), 7.0).double(), torch.arange(4) % k)
        exhibit.expect(f"uniform logits over {k} classes", loss, math.log(k), within=1e-12)
    z = 3 * torch.randn(6, 4, generator=exhibit.generator("z")).double()
    y = torch.tensor([0, 1, 2, 3, 1, 1])
    leaf = z.clone().requires_grad_()
    terms = Categorical()(nn.Identity(), Batch(x=leaf, y=y))
    p = softmax(z.numpy(), -1)
    exhibit.expect("-log softmax(z)_y", terms.loss(), -np.log(p[np.arange(6), y.numpy()]).mean(), within=1e-12)
    exhibit.expect(
        "-sum y_i log p_i with the label as a table", measures.cross_entropy(np.eye(4)[y.numpy()], p).mean(), terms.loss(), within=1e-12
    )
    (slope,) = torch.autograd.grad(terms["nll"].sum, leaf)
    onehot = np.eye(4)[y.numpy()]
    gap = exhibit.expect("gradient in the logits: softmax - onehot", slope, p - onehot, within=1e-12)
    exhibit.expect("gradient sums to 0 over the classes", slope.sum(-1), [0.0] * 6, within=1e-12)
    probabilities = Categorical().predict(z)
    exhibit.expect("softmax of logits sums to 1", probabilities.sum(-1), [1.0] * 6, within=1e-12)
    exhibit.expect(
        "a shift of all logits changes nothing", _loss_of(Categorical(), z + 500, y), _loss_of(Categorical(), z, y), within=1e-10
    )
    exhibit.expect("what softmax gives is accepted as probabilities", measures.probabilities(probabilities, positive=True), p, within=1e-12)
    invalid = {"a sum of 1.1": [0.5, 0.6], "a probability of 0": [0.0, 1.0], "one below 0": [-0.1, 1.1], "NaN": [math.nan, 1.0]}
    for name, table in invalid.items():
        exhibit.refuses(f"probabilities with {name}", partial(measures.probabilities, table, positive=True))
    exhibit.refuses("a label beyond the classes", lambda: Categorical()(nn.Identity(), Batch(x=z, y=y + 1)))
    heat = {"softmax - onehot": slope}
    exhibit.show(
        Heat(
            "Gradient of the cross-entropy in the logits",
            heat,
            axes=["example", "logit"],
            rows=[f"label {label}" for label in y.tolist()],
            columns=[f"class {k}" for k in range(4)],
        )
    )
    return (
        f"log K for K = {', '.join(map(str, sizes))}; gradient softmax - onehot to {gap:.0e}; tables that are no probabilities are refused"
    )


def loss_06(exhibit: Exhibit) -> str:
    """The empirical distribution sums to 1; KL is 0 for equals alone and not symmetric; its gradient is that of the likelihood."""
    from scipy import stats

    exhibit.expect("KL(p, uniform) in bits", measures.kl(P, UNIFORM, "bits"), 0.08496, within=5e-6)
    exhibit.expect("KL(uniform, p) in bits", measures.kl(UNIFORM, P, base=2), 0.08170, within=5e-6)
    exhibit.expect("the same by its direction", measures.kl(P, UNIFORM, 2, "reverse"), stats.entropy(UNIFORM, P, base=2), within=1e-12)
    exhibit.expect("KL(p, uniform) in nats, the default", measures.kl(P, UNIFORM), stats.entropy(P, UNIFORM), within=1e-12)
    exhibit.expect("KL(p, p)", measures.kl(P, P), 0.0, within=1e-15)
    rng = torch.rand(1000, 3, generator=exhibit.generator("tables")).double().log().neg()
    tables = rng / rng.sum(-1, keepdim=True)
    between = measures.kl(tables[:-1], tables[1:])
    exhibit.exceeds("divergences between 999 pairs of random tables are above 0: the smallest", between.min(), 0.0)
    away = measures.kl(P, [0.5 + 1e-4, 0.25 - 1e-4, 0.25])
    exhibit.expect("KL of a table moved by 1e-4 is not 0 but half of sum d^2/p", away, 0.5e-8 * (1 / 0.5 + 1 / 0.25), within=1e-11)

    outcomes = (torch.rand(200, generator=exhibit.generator("draws")) * 3.99).long()
    seen = measures.empirical(outcomes, size=5)
    exhibit.expect("empirical probabilities sum to 1", seen.sum(), 1.0, within=1e-12)
    exhibit.expect(
        "empirical probabilities are counts over N",
        seen,
        torch.tensor([Counter(outcomes.tolist())[k] for k in range(5)]) / 200.0,
        within=1e-7,
    )
    z = torch.randn(5, generator=exhibit.generator("logits")).double()
    by_kl, by_nll = z.clone().requires_grad_(), z.clone().requires_grad_()
    (slope_kl,) = torch.autograd.grad(measures.kl(seen, torch.softmax(by_kl, 0)), by_kl)
    (slope_nll,) = torch.autograd.grad(Categorical()(nn.Identity(), Batch(x=by_nll.expand(200, 5), y=outcomes)).loss(), by_nll)
    gap = exhibit.expect("gradient of KL(empirical, model) is that of the mean NLL", slope_kl, slope_nll, within=1e-12)
    exhibit.expect(
        "NLL - KL is the entropy of what was seen",
        _nll(z, outcomes) - float(measures.kl(seen, torch.softmax(z, 0))),
        stats.entropy(seen),
        within=1e-12,
    )
    at_best = measures.kl(seen[:4], torch.softmax(seen[:4].log(), 0))
    exhibit.expect("KL at the maximum likelihood", at_best, 0.0, within=1e-12)
    fraction = torch.linspace(0.01, 0.99, 99).double()
    path = torch.stack([fraction, (1 - fraction) / 2, (1 - fraction) / 2], 1)
    curves = {"KL(p, q)": measures.kl(P, path, "bits"), "KL(q, p)": measures.kl(P, path, "bits", "reverse")}
    note = "p = (1/2, 1/4, 1/4); q gives the first outcome the chance below and halves the rest."
    exhibit.show(Lines("Two directions of the divergence", curves, axes=["q of the first outcome"], note=note, x=fraction))
    grid = torch.linspace(0.02, 0.96, 48).double()
    plane = {"KL(p, q)": _triangle(grid, "forward"), "KL(q, p)": _triangle(grid, "reverse")}
    exhibit.show(
        Plane(
            "Divergence from p over all q of three outcomes, bits",
            plane,
            axes=["q1", "q2"],
            x=grid,
            y=grid,
            levels=[0.02, 0.085, 0.2, 0.5, 1.0],
            points={"p": [[0.5, 0.25]], "uniform": [[1 / 3, 1 / 3]]},
        )
    )
    forward, reverse = float(measures.kl(P, UNIFORM, 2)), float(measures.kl(UNIFORM, P, 2))
    return f"KL {forward:.5f} and {reverse:.5f} bits in the two directions; gradients of KL and NLL agree to {gap:.0e}"


def _nll(z: Tensor, outcomes: Tensor) -> float:
    return _loss_of(Categorical(), z.expand(len(outcomes), -1), outcomes)


def _triangle(grid: Tensor, direction: Literal["forward", "reverse"]) -> Tensor:
    """Divergence in bits between P and (q1, q2, 1 - q1 - q2), NaN where that is no probability."""
    second, first = torch.meshgrid(grid, grid, indexing="ij")
    tables = torch.stack([first, second, 1 - first - second], -1)
    there = tables[..., 2] > 0.01
    divergence = torch.full_like(first, math.nan)
    divergence[there] = measures.kl(P, tables[there], 2, direction)
    return divergence


def loss_07(exhibit: Exhibit) -> str:
    """Huffman's code for p is as short as its entropy; the code made for another distribution costs the divergence more."""
    code = codes.huffman(P)
    exhibit.expect("words of p = (1/2, 1/4, 1/4)", list(code.values()), ["0", "10", "11"])
    lengths = [len(word) for word in code.values()]
    exhibit.expect("mean length of Huffman's code", codes.mean_length(P, lengths), 1.5)
    exhibit.expect("entropy of p in bits", measures.entropy(P, "bits"), 1.5, within=1e-12)
    exhibit.expect("lengths of the ideal code of p", measures.surprise(P, "bits"), [1.0, 2.0, 2.0], within=1e-12)
    ideal = measures.surprise(UNIFORM, "bits")
    wrong = codes.mean_length(P, ideal.tolist())
    exhibit.expect("mean length with the ideal code for the uniform distribution", wrong, 1.58496, within=5e-6)
    exhibit.expect("which is the cross-entropy", measures.cross_entropy(P, UNIFORM, "bits"), wrong, within=1e-12)
    exhibit.expect("and exceeds the entropy by the divergence", wrong - 1.5, float(measures.kl(P, UNIFORM, "bits")), within=1e-12)

    text = "the shortest code gives frequent letters short words and rare letters long words"
    counts = Counter(text)
    letters = codes.huffman(counts)
    sent = codes.encode(text, letters)
    fraction = np.array(list(counts.values())) / len(text)
    floor = float(measures.entropy(fraction, "bits"))
    mean = len(sent) / len(text)
    exhibit.expect("a text comes back from its letters without separators", "".join(codes.decode(sent, letters)), text)
    exhibit.above("mean length over the entropy of the letters", mean - floor, 0.0)
    exhibit.below("and less than one bit above it", mean - floor, 1.0)
    exhibit.expect("Kraft's sum of 2^-length, a full tree", sum(Fraction(1, 2 ** len(word)) for word in letters.values()) == 1, True)
    beginnings = sum(a != b and b.startswith(a) for a in letters.values() for b in letters.values())
    exhibit.expect("words that begin another word", beginnings, 0)
    exhibit.expect("pairs of letters in which the rarer has the shorter word", _disorder(counts, letters), 0)
    symbols = sorted(counts, key=lambda letter: (-counts[letter], letter))
    table = {
        "letter": [letter if letter != " " else "space" for letter in symbols],
        "count": [counts[letter] for letter in symbols],
        "ideal bits": [-math.log2(counts[letter] / len(text)) for letter in symbols],
        "word": [letters[letter] for letter in symbols],
    }
    note = f"{len(sent)} bits for {len(text)} letters: {mean:.3f} a letter, entropy {floor:.3f}"
    exhibit.show(Table("Huffman's words for a sentence", table, note=note))
    bars = {"bits a symbol": [1.5, 1.5, wrong], "above the entropy": [0.0, 0.0, wrong - 1.5]}
    exhibit.show(
        Bars("The price of the wrong code", bars, axes=["code"], labels=["entropy of p", "Huffman's code for p", "ideal code for uniform"])
    )
    sentence = f"a sentence at {mean:.3f} bits a letter, H {floor:.3f}"
    return f"Huffman 1.5 bits = H(p); uniform code {wrong:.5f}, {wrong - 1.5:.5f} = KL more; {sentence}"


def _disorder(counts: Counter[str], words: dict[str, str]) -> int:
    return sum(counts[a] > counts[b] and len(words[a]) > len(words[b]) for a in counts for b in counts)


def loss_08(exhibit: Exhibit) -> str:
    """The total that is reported is data term + lambda * penalty; with lambda 0 only the data term is left."""
    from sklearn.linear_model import Ridge

    n, d = 60, 5
    x = torch.randn(n, d, generator=exhibit.generator("x")).double()
    y = x @ torch.tensor([2.0, -1.0, 0.0, 0.5, 0.0]).double() + 1.5 + 0.5 * torch.randn(n, generator=exhibit.generator("noise")).double()
    batch = Batch(x=x, y=y)
    model = nn.Linear(d, 1).double()
    weight = model.weight.detach()
    data_term = Gaussian()(model, batch).loss().item()
    for l2, l1 in ((0.3, 0.0), (0.0, 0.2), (0.3, 0.2)):
        terms = penalized.Penalized(Gaussian(), l2=l2, l1=l1)(model, batch)
        label = f"l2={l2}, l1={l1}"
        exhibit.expect(
            f"{label}: total",
            terms.loss().item(),
            data_term + l2 * float(weight.square().sum()) + l1 * float(weight.abs().sum()),
            within=1e-12,
        )
        named = {
            "nll": data_term,
            **({"l2": float(weight.square().sum())} if l2 else {}),
            **({"l1": float(weight.abs().sum())} if l1 else {}),
        }
        exhibit.expect(f"{label}: terms by name", list(terms.means().values()), list(named.values()), within=1e-12)
        exhibit.expect(f"{label}: names", list(terms), list(named))
    bare = penalized.Penalized(Gaussian())(model, batch)
    exhibit.expect("lambda=0: total is the data term, to the last bit", bare.loss().item(), data_term)
    exhibit.expect("lambda=0: terms", list(bare), ["nll"])

    penalties = (0.0, 0.01, 0.1, 1.0, 10.0)
    paths, table = [], {"lambda": list(penalties), "loss": [], "data term": [], "penalty": [], "data term + lambda * penalty": []}
    for penalty in penalties:
        solved = _minimize(penalized.Penalized(Gaussian(), l2=penalty), d, batch)
        theirs = Ridge(alpha=2 * n * penalty).fit(x.numpy(), y.numpy())  # ours is SSE / 2N + lambda w^2, theirs SSE + alpha w^2
        exhibit.expect(f"lambda={penalty}: weights of scikit-learn's ridge", solved.weight.detach()[0], theirs.coef_, within=1e-6)
        exhibit.expect(f"lambda={penalty}: free bias", solved.bias.item(), float(theirs.intercept_), within=1e-6)
        paths.append(solved.weight.detach()[0])
        data, omega = Gaussian()(solved, batch).loss().item(), float(solved.weight.detach().square().sum())
        penalized_loss = penalized.Penalized(Gaussian(), l2=penalty)(solved, batch).loss().item()
        for name, cell in zip(list(table)[1:], (penalized_loss, data, omega, data + penalty * omega), strict=True):
            table[name].append(cell)
    moved = _minimize(penalized.Penalized(Gaussian(), l2=1.0), d, batch.replace(y=y + 100))
    exhibit.expect("y shifted by 100: weights stay, because the bias is free", moved.weight.detach()[0], paths[3], within=1e-6)
    pulled = _minimize(penalized.Penalized(Gaussian(), l2=1.0, biases=True), d, batch.replace(y=y + 100))
    exhibit.above("with the bias penalized they move", (pulled.weight.detach()[0] - paths[3]).abs().max(), 0.1)

    recipe = Recipe(
        model=lambda: nn.Linear(d, 1),
        data=Data(TensorSource(x[:48].float(), y[:48].float()), valid=TensorSource(x[48:].float(), y[48:].float())),
        objective=penalized.Penalized(Gaussian(), l2=0.05, l1=0.01),
        optimizer=optimizer("sgd", lr=0.05),
        batch_size=16,
        steps=60,
    )
    row = exhibit.train(recipe, "penalized", seed=exhibit.seed).result["metrics"]
    total = row["valid/nll"] + 0.05 * row["valid/l2"] + 0.01 * row["valid/l1"]
    exhibit.expect("a run reports valid/loss = nll + 0.05 l2 + 0.01 l1", row["valid/loss"], total, within=1e-12)
    lines = {f"w{i + 1}": [float(w[i]) for w in paths[1:]] for i in range(d)}
    exhibit.show(Lines("Weights under a growing penalty", lines, axes=["lambda"], x=list(penalties[1:]), log=["x"]))
    exhibit.show(Table("What is reported at the minimum", table))
    loss, nll, l2, l1 = (row[f"valid/{name}"] for name in ("loss", "nll", "l2", "l1"))
    return f"loss {loss:.4f} = {nll:.4f} + 0.05 * {l2:.3f} + 0.01 * {l1:.3f}; lambda 0 is the bare risk"


def _minimize(objective: Callable, inputs: int, batch: Batch) -> nn.Linear:
    """A linear model at the minimum of an objective."""
    model = nn.Linear(inputs, 1).double()
    solver = torch.optim.LBFGS(model.parameters(), max_iter=300, tolerance_grad=1e-13, tolerance_change=0, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        solver.zero_grad()
        loss = objective(model, batch).loss()
        loss.backward()
        return loss

    solver.step(closure)
    return model
