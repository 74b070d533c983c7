"""The evidence lower bound: against torch.distributions, and against exact log-likelihoods of models that have them."""

from __future__ import annotations

import pytest
import torch
from torch import distributions, nn

import sonde
from sonde.core.batch import Batch, Data
from sonde.core.errors import BadInput
from sonde.core.recipe import Recipe
from sonde.data.tensors import TensorSource
from sonde.objectives.bernoulli import Bernoulli
from sonde.objectives.elbo import Elbo, kl
from sonde.objectives.gaussian import Gaussian
from sonde.optim.build import optimizer

B, D, K = 6, 5, 3


class Net(nn.Module):
    """Encoder and decoder as one linear layer each."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.back = nn.Linear(D, 2 * K), nn.Linear(K, D)

    def encode(self, x):
        return self.into(x).chunk(2, -1)

    def decode(self, h):
        return self.back(h)

    def forward(self, x):
        return self.decode(self.encode(x)[0])


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net().double()


def noise() -> torch.Tensor:
    return torch.randn(B, K, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def test_kl_equals_torch_distributions():
    torch.manual_seed(1)
    mean, log_variance = torch.randn(2, B, K, dtype=torch.float64)
    q = distributions.Normal(mean, (log_variance / 2).exp())
    p = distributions.Normal(torch.zeros(K, dtype=torch.float64), torch.ones(K, dtype=torch.float64))
    torch.testing.assert_close(kl(mean, log_variance), distributions.kl_divergence(q, p).sum(1), rtol=1e-12, atol=0)
    assert torch.equal(kl(torch.zeros(2, K), torch.zeros(2, K)), torch.zeros(2))


@pytest.mark.parametrize("beta", [1.0, 0.25])
@pytest.mark.parametrize("family", ["bernoulli", "gaussian"])
def test_terms_and_gradients_equal_torch_distributions(net, family, beta):
    x = torch.rand(B, D, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    x = (x > 0.5).double() if family == "bernoulli" else x
    objective = Elbo(Bernoulli() if family == "bernoulli" else Gaussian(0.7), beta)
    terms = objective(net, Batch(x=x, noise=noise()))
    mean, log_variance = net.encode(x)
    q = distributions.Normal(mean, (0.5 * log_variance).exp())
    h = mean + q.stddev * noise()
    p = distributions.Bernoulli(logits=net.decode(h)) if family == "bernoulli" else distributions.Normal(net.decode(h), 0.7**0.5)
    nll, cost = -p.log_prob(x).sum(1).mean(), distributions.kl_divergence(q, distributions.Normal(0.0, 1.0)).sum(1).mean()
    assert terms.means() == pytest.approx({"nll": nll.item(), "kl": cost.item()}, rel=1e-10)
    ours, theirs = (torch.autograd.grad(loss, list(net.parameters()), retain_graph=True) for loss in (terms.loss(), nll + beta * cost))
    for grad, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(grad, expected, rtol=1e-9, atol=1e-11)


def test_bounds_come_closer_to_the_exact_likelihood_from_below(net):
    """x = W h + b + noise: log p(x) is exact.  The bound of one code, of ten, of many, and the truth, in this order."""
    x = torch.randn(4, D, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    W, b = net.back.weight.detach(), net.back.bias.detach()
    exact = distributions.MultivariateNormal(b, W @ W.T + 0.7 * torch.eye(D).double()).log_prob(x)
    covariance = torch.linalg.inv(W.T @ W / 0.7 + torch.eye(K).double())  # of the true posterior; q is twice as wide
    with torch.no_grad():
        net.into.weight.copy_(torch.cat([covariance @ W.T / 0.7, torch.zeros(K, D)]))
        net.into.bias.copy_(torch.cat([-covariance @ W.T @ b / 0.7, (2 * covariance.diag()).log()]))
    objective, rng, many = Elbo(Gaussian(0.7)), torch.Generator().manual_seed(5), x.repeat(2000, 1)
    bounds = [objective.log_likelihood(net, many, samples, rng).view(2000, 4).mean(0) for samples in (1, 10)]
    bounds.append(objective.log_likelihood(net, x, 4000, rng))
    assert (bounds[0] + 0.1 < bounds[1]).all() and (bounds[1] < exact).all()
    torch.testing.assert_close(bounds[2], exact, rtol=0, atol=0.05)  # the spread of 4,000 weighted draws
    terms = objective(net, Batch(x=many, noise=torch.randn(8000, K, generator=rng, dtype=torch.float64)))
    assert terms.loss().item() == pytest.approx(-bounds[0].mean().item(), abs=0.05)  # 8,000 draws that spread by about 1


def test_weights_of_examples(net):
    x, weight = torch.rand(B, D, dtype=torch.float64), torch.tensor([1.0, 0.0, 2.0, 0.0, 0.0, 0.0]).double()
    whole = Elbo(Gaussian())(net, Batch(x=x, noise=noise(), weight=weight))
    rows = torch.tensor([0, 2, 2])
    expected = Elbo(Gaussian())(net, Batch(x=x[rows], noise=noise()[rows]))
    assert whole.means() == pytest.approx(expected.means(), rel=1e-12)


def test_draws_are_fresh_in_training_and_fixed_in_evaluation(net):
    batch, objective = Batch(x=torch.rand(B, D, dtype=torch.float64)), Elbo(Gaussian())
    losses = [objective(net, batch).loss().item() for _ in range(2)]
    net.eval()
    fixed = [objective(net, batch).loss().item() for _ in range(2)]
    assert losses[0] != losses[1] and fixed[0] == fixed[1]


def test_errors(net):
    with pytest.raises(BadInput, match="beta"):
        Elbo(beta=-1.0)


@pytest.mark.parametrize("ask", [lambda net, batch: Elbo().check(batch), lambda net, batch: Elbo()(net, batch)], ids=["check", "call"])
def test_pixels_that_are_none_are_refused(net, ask):
    gray = torch.rand(B, D, dtype=torch.float64)
    ask(net, Batch(x=gray, noise=noise()))
    with pytest.raises(BadInput) as caught:
        ask(net, Batch(x=3 * gray.round() - 1.5, noise=noise()))
    assert str(caught.value) == (
        "Bernoulli pixels must lie between 0 and 1, and these go from -1.5 to 1.5; "
        "scale them to 0 ... 1, or use the likelihood Gaussian(variance)"
    )


def test_a_run_says_where_the_pixels_are(net, tmp_path):
    x = torch.rand(9, D) * 255
    recipe = Recipe(
        model=Net, data=Data(TensorSource(x), name="scans"), objective=Elbo(), optimizer=optimizer("adam", lr=0.1), steps=1, batch_size=3
    )
    with pytest.raises(BadInput, match=r"go from .* to .* \(scans, train part\); scale them"):
        sonde.train(recipe, run=tmp_path / "run", quiet=True)


def test_16_bits_are_summed_in_32(net):
    half, objective = net.bfloat16(), Elbo(Gaussian())
    terms = objective(half, Batch(x=torch.rand(B, D).bfloat16(), noise=noise().bfloat16()))
    assert {term.sum.dtype for term in terms.values()} == {torch.float32}
    assert kl(torch.ones(2, 3).half(), torch.zeros(2, 3).half()).dtype == torch.float32


def test_a_corrupted_input_is_rebuilt_clean(net):
    x, clean = torch.rand(2, B, D, dtype=torch.float64)
    objective = Elbo(Gaussian(0.7))
    terms = objective(net, Batch(x=x, clean=clean, noise=noise()))
    mean, log_variance = net.encode(x)
    h = mean + (log_variance / 2).exp() * noise()
    expected = -distributions.Normal(net.decode(h), 0.7**0.5).log_prob(clean).sum(1).mean()
    assert terms.means()["nll"] == pytest.approx(expected.item(), rel=1e-10)
    measured = objective.measures(net(x), Batch(x=x, clean=clean)).means()["squared_error"]
    assert measured == pytest.approx((net(x) - clean).square().mean().item(), rel=1e-10)
