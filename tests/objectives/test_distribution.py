"""A loss from any distribution, against scipy.stats: -log Pr in value, central differences in gradient."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.special import expit, log_softmax, logsumexp
from torch import distributions as D
from torch import nn
from torch.distributions import constraints

from sonde.api.training import train
from sonde.core.batch import Batch, Data
from sonde.core.errors import BadInput
from sonde.core.recipe import Recipe
from sonde.data.tensors import TensorSource
from sonde.objectives.bernoulli import Bernoulli
from sonde.objectives.categorical import Categorical
from sonde.objectives.distribution import LINKS, Distribution, mixture
from sonde.objectives.gaussian import Gaussian
from sonde.optim.build import optimizer

B, V, K = 7, 3, 5
"""examples, values per target, classes or parts"""


class Logistic(D.Distribution):
    """A user's own distribution, which torch lacks."""

    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}
    support = constraints.real

    def __init__(self, loc, scale, validate_args=None):
        self.loc, self.scale = torch.broadcast_tensors(loc, scale)
        super().__init__(self.loc.shape, validate_args=validate_args)

    @property
    def mean(self):
        return self.loc

    def log_prob(self, value):
        z = (value - self.loc) / self.scale
        return -z - self.scale.log() - 2 * nn.functional.softplus(-z)


def draw(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape)


def sp(raw):
    return np.logaddexp(raw, 0)


def parts(raw, n=2):
    return np.split(raw, n, -1)


def mixed(raw, y):
    logits, loc, scale = parts(raw, 3)
    return -logsumexp(log_softmax(logits, -1) + stats.norm.logpdf(y[:, None], loc, sp(scale)), -1)


def joint(raw, y, scale):
    return np.array([-stats.multivariate_normal.logpdf(t, r[:V], scale(r[V:]) @ scale(r[V:]).T) for r, t in zip(raw, y, strict=True)])


def triangle(raw):
    """Three values: six numbers, row by row."""
    a, b, c, d, e, f = raw
    return np.array([[sp(a), 0, 0], [b, sp(c), 0], [d, e, sp(f)]])


real, positive = draw(V, B).T, np.exp(draw(V, B).T)
counts = np.arange(B * V).reshape(B, V) % 6
labels = np.arange(B) % K
CASES = {
    "Normal": (Distribution(D.Normal), 2 * V, real, lambda r, y: -stats.norm.logpdf(y, parts(r)[0], sp(parts(r)[1]))),
    "Normal, exp": (
        Distribution(D.Normal, links={"scale": "exp"}),
        2 * V,
        real,
        lambda r, y: -stats.norm.logpdf(y, parts(r)[0], np.exp(parts(r)[1])),
    ),
    "Normal, fixed scale": (Distribution(D.Normal, fixed={"scale": 0.4}), V, real, lambda r, y: -stats.norm.logpdf(y, r, 0.4)),
    "Laplace": (Distribution(D.Laplace), 2 * V, real, lambda r, y: -stats.laplace.logpdf(y, parts(r)[0], sp(parts(r)[1]))),
    "Bernoulli": (Distribution(D.Bernoulli), V, counts % 2, lambda r, y: -stats.bernoulli.logpmf(y, expit(r))),
    "Bernoulli, probs": (
        Distribution(D.Bernoulli, links={"probs": "sigmoid"}),
        V,
        counts % 2,
        lambda r, y: -stats.bernoulli.logpmf(y, expit(r)),
    ),
    "Categorical": (Distribution(D.Categorical), K, labels, lambda r, y: -log_softmax(r, -1)[np.arange(B), y]),
    "Poisson": (Distribution(D.Poisson), V, counts, lambda r, y: -stats.poisson.logpmf(y, sp(r))),
    "StudentT": (
        Distribution(D.StudentT),
        3 * V,
        real,
        lambda r, y: -stats.t.logpdf(y, sp(parts(r, 3)[0]), parts(r, 3)[1], sp(parts(r, 3)[2])),
    ),
    "Gamma": (Distribution(D.Gamma), 2 * V, positive, lambda r, y: -stats.gamma.logpdf(y, sp(parts(r)[0]), scale=1 / sp(parts(r)[1]))),
    "Beta": (Distribution(D.Beta), 2 * V, expit(real), lambda r, y: -stats.beta.logpdf(y, sp(parts(r)[0]), sp(parts(r)[1]))),
    "NegativeBinomial": (
        Distribution(D.NegativeBinomial),
        2 * V,
        counts,
        lambda r, y: -stats.nbinom.logpmf(y, sp(parts(r)[0]), expit(-parts(r)[1])),
    ),
    "VonMises": (Distribution(D.VonMises), 2 * V, real, lambda r, y: -stats.vonmises.logpdf(y, sp(parts(r)[1]), parts(r)[0])),
    "Binomial": (Distribution(D.Binomial, fixed={"total_count": 9}), V, counts, lambda r, y: -stats.binom.logpmf(y, 9, expit(r))),
    "Dirichlet": (
        Distribution(D.Dirichlet),
        V,
        positive / positive.sum(-1, keepdims=True),
        lambda r, y: np.array([-stats.dirichlet.logpdf(t, sp(a)) for a, t in zip(r, y, strict=True)]),
    ),
    "MultivariateNormal, diagonal": (
        Distribution(D.MultivariateNormal, links={"scale_tril": "diagonal"}),
        2 * V,
        real,
        lambda r, y: joint(r, y, lambda raw: np.diag(sp(raw))),
    ),
    "MultivariateNormal": (Distribution(D.MultivariateNormal), V + 6, real, lambda r, y: joint(r, y, triangle)),
    "mixture of Normal": (mixture(D.Normal), 3 * K, real[:, 0], mixed),
    "mixture, fixed scale": (
        mixture(D.Normal, fixed={"scale": 0.7}),
        2 * K,
        real[:, 0],
        lambda r, y: -logsumexp(log_softmax(r[:, :K], -1) + stats.norm.logpdf(y[:, None], r[:, K:], 0.7), -1),
    ),
    "user's own": (Distribution(Logistic), 2 * V, real, lambda r, y: -stats.logistic.logpdf(y, parts(r)[0], sp(parts(r)[1]))),
}


def near(case):
    return 1e-7 if case == "VonMises" else 1e-9  # torch's Bessel functions are polynomials good to about 1e-8


def identity(x):
    return x


@pytest.mark.parametrize("case", CASES)
def test_equals_scipy_in_value_and_gradient(case):
    objective, width, y, exact = CASES[case]
    raw = draw(B, width)
    x = torch.tensor(raw, requires_grad=True)
    batch = Batch(x=x, y=torch.tensor(y))
    objective.check(batch)
    terms = objective(identity, batch)
    assert terms["nll"].sum.item() == pytest.approx(exact(raw, y).sum(), rel=near(case))
    assert terms.counts() == objective.counts(batch) == {"nll": y.size}
    each = objective.each(x.detach(), batch.y)
    assert each.shape == y.shape and float(each.sum()) == pytest.approx(exact(raw, y).sum(), rel=near(case))
    (gradient,) = torch.autograd.grad(terms["nll"].sum, x)
    step = 1e-5
    for index in np.ndindex(B, width):
        up, down = raw.copy(), raw.copy()
        up[index] += step
        down[index] -= step
        slope = (exact(up, y).sum() - exact(down, y).sum()) / (2 * step)
        assert float(gradient[index]) == pytest.approx(slope, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("case", CASES)
def test_padding_counts_nothing_and_weights_count_in_full(case):
    objective, width, y, exact = CASES[case]
    raw, weight = draw(B, width), np.arange(1.0, B + 1)
    padded = torch.tensor(y).clone()
    padded[2:4] = -100
    mask = torch.arange(B) // 2 != 1
    batch = Batch(x=torch.tensor(raw, requires_grad=True), y=padded, mask=mask, weight=torch.tensor(weight))
    objective.check(batch)
    terms = objective(identity, batch)
    costs = exact(raw, y)
    weighted_costs = np.array([weight[i] * costs[i].sum() for i in range(B) if i not in (2, 3)])
    assert terms["nll"].sum.item() == pytest.approx(weighted_costs.sum(), rel=near(case))
    (gradient,) = torch.autograd.grad(terms["nll"].sum, batch.x)
    assert gradient.isfinite().all() and not gradient[2:4].any() and gradient[4:].any()


def test_equals_the_likelihoods_written_by_hand():
    raw, y = torch.tensor(draw(B, 2 * V)), torch.tensor(real)
    same = Distribution(D.Normal, links={"scale": lambda raw: torch.exp(raw / 2)})
    torch.testing.assert_close(same.each(raw, y), 0.5 * Gaussian("learned").each(raw, y) + Gaussian("learned").constant(y))
    one = Batch(x=raw[:, :V], y=torch.tensor(counts % 2))
    torch.testing.assert_close(Distribution(D.Bernoulli)(identity, one).loss(), Bernoulli()(identity, one).loss())
    several = Batch(x=raw[:, :K], y=torch.tensor(labels))
    torch.testing.assert_close(Distribution(D.Categorical)(identity, several).loss(), Categorical()(identity, several).loss())


def test_predicts_the_mean_or_the_mode():
    raw = torch.tensor(draw(B, 2 * V))
    torch.testing.assert_close(Distribution(D.Gamma).predict(raw), nn.functional.softplus(raw[:, :V]) / nn.functional.softplus(raw[:, V:]))
    torch.testing.assert_close(Distribution(D.Cauchy).predict(raw), raw[:, :V])  # it has no mean
    assert torch.equal(Distribution(D.Categorical).predict(raw), raw.argmax(-1))
    assert torch.equal(Distribution(Logistic).predict(raw), raw[:, :V])
    weights = torch.softmax(raw[:, :2], -1)
    torch.testing.assert_close(mixture(D.Normal).predict(raw), (weights * raw[:, 2:4]).sum(-1))
    undecided = Distribution(
        lambda loc: D.TransformedDistribution(D.Normal(loc, 1.0), D.SigmoidTransform()), domains={"loc": constraints.real}
    )
    with pytest.raises(BadInput, match="neither mean nor mode"):
        undecided.predict(raw)


def test_measures():
    raw = torch.tensor([[2.0, 1.0, 0.0], [0.0, 3.0, 1.0]])
    assert Distribution(D.Categorical).measures(raw, Batch(y=torch.tensor([0, 2]))).means() == {"accuracy": 0.5}
    measures = Distribution(D.Laplace).measures(torch.tensor([[1.0, 0.0], [2.0, 7.0]]), Batch(y=torch.tensor([4.0, 2.0])))
    assert measures.means() == {"squared_error": 4.5, "absolute_error": 1.5}


@pytest.mark.parametrize("shape", [(B,), (B, 1)])
@pytest.mark.parametrize("objective, width", [(Distribution(D.Normal), 2), (mixture(D.Normal), 6), (Distribution(D.Categorical), 4)])
def test_a_trailing_axis_of_one_never_broadcasts(shape, objective, width):
    raw, y = torch.tensor(draw(B, width)), torch.arange(B) % 3
    flat = objective(identity, Batch(x=raw, y=y))
    same = objective(identity, Batch(x=raw, y=y.reshape(shape)))
    assert same.counts() == {"nll": B} and same.loss().item() == pytest.approx(flat.loss().item(), rel=1e-12)
    assert objective.measures(raw, Batch(y=y.reshape(shape))).means() == objective.measures(raw, Batch(y=y)).means()


BAD = {
    "negative": (Distribution(D.LogNormal), [1.0, 2.0, -0.5, 3.0], "LogNormal targets must be numbers > 0, not -0.5 in example 12"),
    "the edge": (Distribution(D.Gamma), [1.0, 0.0, 2.0, 0.0], "numbers >= 0, with a finite density, not 0 in example 11 and 1 more"),
    "share above 1": (Distribution(D.Beta), [0.5, 0.1, 0.2, 1.5], "numbers from 0 to 1, not 1.5 in example 13"),
    "two": (Distribution(D.Bernoulli), [0.0, 1.0, 2.0, 1.0], "0 or 1, not 2 in example 12"),
    "half a count": (Distribution(D.Poisson), [0.0, 1.5, 2.0, 1.0], "whole numbers >= 0, not 1.5 in example 11"),
    "too many": (Distribution(D.Binomial, fixed={"total_count": 3}), [0, 1, 4, 2], "whole numbers from 0 to 3, not 4 in example 12"),
    "label": (Distribution(D.Categorical, size=3), [0, 1, 2, 3], "whole numbers from 0 to 2, not 3 in example 13"),
    "label below 0": (Distribution(D.Categorical), [0, -1, 2, 9], "whole numbers >= 0, not -1 in example 11"),
    "no sum of 1": (Distribution(D.Dirichlet), [[0.5, 0.5], [0.5, 0.4], [0.1, 0.9], [1.0, 0.5]], "sum to 1, not 0.5 in example 11 at (0,)"),
    "infinite": (Distribution(D.Normal), [0.0, math.inf, 1.0, 2.0], "real numbers, not inf in example 11"),
    "nan": (Distribution(D.StudentT), [0.0, math.nan, 1.0, 2.0], "numbers, not nan in example 11"),
    "count in a mixture": (mixture(D.Poisson), [0.0, 1.0, -1.0, 2.0], "whole numbers >= 0, not -1 in example 12"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_targets_are_named(case):
    objective, y, words = BAD[case]
    with pytest.raises(BadInput) as caught:
        objective.check(Batch(x=torch.zeros(4, 1), y=torch.tensor(y), ids=torch.tensor([10, 11, 12, 13])))
    assert words in str(caught.value)


def test_a_mask_takes_an_outcome_as_a_whole():
    batch = Batch(y=torch.zeros(4, 3), mask=torch.ones(4, 3, dtype=torch.bool))
    Distribution(D.Normal).check(batch)
    with pytest.raises(BadInput, match="bool mask"):
        Distribution(D.MultivariateNormal).check(batch)


def test_a_support_that_the_model_decides_is_not_judged_before():
    Distribution(D.Pareto).check(Batch(y=torch.tensor([0.01, 5.0])))


def test_an_unchecked_target_outside_costs_infinity_and_bends_no_gradient():
    x = torch.zeros(3, 2, dtype=torch.float64, requires_grad=True)
    total = Distribution(D.Gamma)(identity, Batch(x=x, y=torch.tensor([1.0, -1.0, 2.0])))["nll"].sum
    (gradient,) = torch.autograd.grad(total, x)
    assert total == math.inf and gradient.isfinite().all() and not gradient[1].any()


def test_a_model_that_gives_nan_shows_in_the_loss():
    assert Distribution(D.Normal)(identity, Batch(x=torch.full((3, 2), torch.nan), y=torch.zeros(3)))["nll"].sum.isnan()


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: Distribution(D.Normal, links={"scael": "exp"}), "no parameter 'scael'; did you mean 'scale'"),
        (lambda: Distribution(D.Normal, links={"scale": "softpluss"}), "no link 'softpluss' .*did you mean 'softplus'"),
        (lambda: Distribution(D.Binomial), "fixed={'total_count'"),
        (lambda: Distribution(D.Uniform), "domains="),
        (lambda: Distribution(D.LowRankMultivariateNormal), "cov_factor"),
        (lambda: Distribution(D.Poisson, fixed={"rate": 1.0}), "leave one to the model"),
        (lambda: Distribution(lambda loc: D.Normal(loc, 1.0)), "are unknown"),
    ],
)
def test_bad_settings_are_named(make, words):
    with pytest.raises(BadInput, match=words):
        make()


@pytest.mark.parametrize(
    "objective, shape",
    [(Distribution(D.Normal), (4, 3)), (Distribution(D.Normal), (4,)), (mixture(D.Normal), (4, 4)), (Distribution(D.Categorical), (3, 5))],
)
def test_an_output_that_does_not_fit_is_named(objective, shape):
    with pytest.raises(BadInput, match="does not match targets"):
        objective(identity, Batch(x=torch.zeros(shape), y=torch.zeros(4)))


@pytest.mark.parametrize("name", LINKS)
def test_links_stay_in_their_domain_far_out(name):
    far = torch.tensor([-1e4, -50.0, 0.0, 50.0, 80.0, 0.0])
    value = LINKS[name](far)
    assert value.isfinite().all()
    if name == "softplus":
        assert (value > 0).all()
    if name in ("cholesky", "diagonal"):
        assert (value.diagonal() > 0).all() and torch.equal(value.tril(), value)


def test_trains_end_to_end(tmp_path):
    """Gamma targets with mean exp(x): the trained model finds mean and spread, and beats the best constant."""
    draw = torch.Generator().manual_seed(0)
    x = torch.rand(600, 1, generator=draw) * 2 - 1
    y = -torch.rand(600, 4, generator=draw).log().sum(-1) / 4 * torch.exp(x[:, 0])  # Gamma(4) with mean exp(x)
    recipe = Recipe(
        model=lambda: nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 2)),
        data=Data(TensorSource(x[:500], y[:500]), valid=TensorSource(x[500:], y[500:])),
        objective=Distribution(D.Gamma),
        optimizer=optimizer("adam", lr=0.02),
        batch_size=100,
        steps=300,
    )
    run = train(recipe, run=tmp_path / "run", quiet=True, threads=1)
    predictions = run.predict(Batch(x=torch.tensor([[-0.5], [0.5]]))).flatten()
    torch.testing.assert_close(predictions, torch.exp(torch.tensor([-0.5, 0.5])), rtol=0.15, atol=0)  # 500 noisy examples tell no more
    at_best = stats.gamma.logpdf(y[500:].numpy(), 4, scale=np.exp(x[500:, 0].numpy()) / 4).mean()
    assert run.result["metrics"]["valid/loss"] == pytest.approx(-at_best, abs=0.05)  # the estimate costs a little more than the truth


@pytest.mark.parametrize("family", [D.RelaxedBernoulli, D.RelaxedOneHotCategorical, D.LKJCholesky])
def test_a_family_with_more_than_its_parameters_is_named(family):
    with pytest.raises(BadInput, match=f"'{family.__name__}' cannot be made from .* alone: .*; give a function of") as caught:
        Distribution(family)
    assert "\n" not in str(caught.value)


def test_the_fix_for_such_a_family_works():
    def relaxed(logits):
        return D.RelaxedBernoulli(torch.tensor(0.5), logits=logits, validate_args=False)

    law = Distribution(relaxed, domains={"logits": constraints.real})
    raw, y = torch.tensor([[0.3], [-1.0]]), torch.tensor([[0.2], [0.7]])
    torch.testing.assert_close(law.each(raw, y), -D.RelaxedBernoulli(torch.tensor(0.5), logits=raw).log_prob(y))
