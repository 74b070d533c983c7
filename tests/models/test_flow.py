"""Flows and the autoregressive density against autograd's Jacobian, scipy's integrals and torch.distributions."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.integrate import dblquad, quad
from torch.distributions import Categorical, MixtureSameFamily, Normal

from sonde.core.errors import BadInput
from sonde.models.autoregressive import Autoregressive
from sonde.models.flow import EDGE, Flow


def perturb(model, size: float = 0.3):
    """In float64, with no weight left at 0."""
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            weight += size * torch.randn_like(weight)
    return model.double().eval()


SHAPES = {"plane": ((2,), 5, 0), "points": ((5,), 6, 0), "images": ((1, 3, 4), 9, 0), "pixels": ((1, 3, 4), 9, 6)}


@pytest.mark.parametrize("name", SHAPES)
def test_it_can_be_undone_and_its_volume_is_the_jacobians(name):
    shape, steps, levels = SHAPES[name]
    model = perturb(Flow(shape, steps, 7, 2, levels))
    x = torch.rand(4, *shape, dtype=torch.float64) * (0.98 if levels else 3.0)
    z, change = model.to_noise(x)
    assert z.shape == x.shape and not torch.allclose(z, x, atol=0.1)
    torch.testing.assert_close(model.from_noise(z), x, atol=1e-9, rtol=1e-9)
    for row in range(len(x)):
        jacobian = torch.autograd.functional.jacobian(lambda one: model.to_noise(one[None])[0][0], x[row])
        size = math.prod(shape)
        torch.testing.assert_close(change[row], torch.linalg.slogdet(jacobian.reshape(size, size)).logabsdet, atol=1e-9, rtol=1e-9)


def test_float32_comes_back_to_1e_5():
    model = perturb(Flow((1, 8, 8), 12, 16, 1), 0.05).float()
    x = torch.randn(9, 1, 8, 8)
    torch.testing.assert_close(model.from_noise(model.to_noise(x)[0]), x, atol=1e-5, rtol=1e-5)


def test_a_fresh_flow_is_the_identity_and_its_density_standard_normal():
    x = torch.randn(6, 3)
    torch.testing.assert_close(Flow((3,), 4, 5).log_prob(x), Normal(0.0, 1.0).log_prob(x).sum(1))


def test_any_two_numbers_are_parted_by_some_step():
    keep = torch.stack([step.mask for step in Flow((1, 3, 5), 8, 4).steps])
    assert keep.shape == (8, 15) and torch.equal(keep[::2], ~keep[1::2])
    assert all((keep[:, i] != keep[:, j]).any() for i in range(15) for j in range(i))


@pytest.mark.parametrize("shape", [(2,), (3,), (5,), (1, 5, 7)])
def test_by_default_all_numbers_are_parted_both_ways_and_each_reaches_each(shape):
    size = math.prod(shape)
    model = perturb(Flow(shape, width=9, depth=1))
    assert len(model.steps) == max(6, 2 * math.ceil(math.log2(size)))
    keep = torch.stack([step.mask for step in model.steps])
    influence = torch.stack([kept[:, None] & ~kept[None, :] for kept in keep]).any(0)  # number i says how j moves
    assert influence.sum() == size * (size - 1)
    x = torch.randn(shape, dtype=torch.float64)
    slopes = torch.autograd.functional.jacobian(lambda one: model.to_noise(one[None])[0][0], x).reshape(size, size)
    assert (slopes != 0).all()


@pytest.mark.parametrize("make", [lambda: Flow((2,), 4, 6), lambda: Autoregressive(2, 3, 6, 1)], ids=["flow", "autoregressive"])
def test_a_density_holds_1_by_scipy(make):
    torch.manual_seed(0)
    model = perturb(make(), 0.2)
    middle = (torch.arange(400, dtype=torch.float64) + 0.5) / 400 * 24 - 12
    grid = torch.cartesian_prod(middle, middle)
    with torch.no_grad():
        mass = float(model.log_prob(grid).exp().sum()) * (24 / 400) ** 2
        p = lambda b, a: float(model.log_prob(torch.tensor([[a, b]], dtype=torch.float64)).exp())  # noqa: E731
        inside, _ = dblquad(p, 0, 0.7, -0.5, 0.4, epsabs=1e-3, epsrel=1e-2)
    assert mass == pytest.approx(1.0, abs=2e-4)
    drawn = model.sample(40_000, torch.Generator().manual_seed(0))
    share = ((drawn[:, 0] > 0) & (drawn[:, 0] < 0.7) & (drawn[:, 1] > -0.5) & (drawn[:, 1] < 0.4)).double().mean()
    assert float(share) == pytest.approx(inside, abs=1e-3 + 4 * math.sqrt(inside / 40_000))
    with torch.no_grad():  # means of 1, x, y, x^2 and y^2 by the density, and by what is drawn, within four standard errors
        chance = model.log_prob(grid).exp() * (24 / 400) ** 2
    for power in (1, 2):
        seen = drawn**power
        torch.testing.assert_close(
            seen.mean(0), chance @ grid**power, rtol=0, atol=float(2e-3 + 4 * seen.std(0).max() / math.sqrt(40_000)), check_dtype=False
        )


def test_chances_of_all_images_add_up_to_what_lies_between_the_edges():
    """Two pixels of three levels: nine images, each the mean over noise; what a normal z puts beyond the edges is lost."""
    model = Flow((1, 1, 2), 2, 4, levels=3).double()
    # The identity: a pixel's chance is that of a normal y in the cell of its level, by scipy.
    edges = [EDGE + (1 - 2 * EDGE) * k / 3 for k in range(4)]
    density = Normal(torch.tensor(0.0, dtype=torch.float64), 1.0)
    cell = [
        quad(lambda y: float(density.log_prob(torch.tensor(y)).exp()), *(math.log(e / (1 - e)) for e in edges[k : k + 2]))[0]
        for k in range(3)
    ]
    u = (torch.arange(300, dtype=torch.float64) + 0.5) / 300
    place = torch.special.ndtri(torch.cartesian_prod(u, u)).view(-1, 1, 1, 2)
    for a in range(3):
        for b in range(3):
            x = torch.tensor([a / 2, b / 2], dtype=torch.float64).expand_as(place)
            with torch.no_grad():
                probability = float(model.log_prob(x, place).exp().mean())
            assert probability == pytest.approx(cell[a] * cell[b], rel=1e-3)


def test_samples_of_images_are_whole_levels():
    drawn = perturb(Flow((1, 4, 4), 3, 5, levels=17)).sample(7, torch.Generator().manual_seed(0))
    assert drawn.shape == (7, 1, 4, 4) and drawn.min() >= 0 and drawn.max() <= 1
    torch.testing.assert_close(drawn * 16, (drawn * 16).round())


def test_autoregressive_density_is_the_chain_of_torchs_mixtures():
    model = perturb(Autoregressive(3, 4, 6, 2))
    x = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    weights, means, log_scales = model.mixtures(x)
    chain = MixtureSameFamily(Categorical(logits=weights), Normal(means, log_scales.exp())).log_prob(x).sum(1)
    log_density = model.log_prob(x)
    torch.testing.assert_close(log_density, chain)
    slopes = [torch.autograd.grad(each.sum(), x, retain_graph=True)[0] for each in (log_density, chain)]
    torch.testing.assert_close(*slopes)
    for place in range(3):  # a mixture depends on earlier numbers alone
        (slope,) = torch.autograd.grad(means[:, place].sum(), x, retain_graph=True)
        assert (slope[:, :place] != 0).all() and (slope[:, place:] == 0).all()


@pytest.mark.parametrize(
    "call", [lambda: Flow((1,)), lambda: Flow((2,), levels=1), lambda: Flow(()), lambda: Flow((2,)).log_prob(torch.zeros(3, 4))]
)
def test_what_cannot_be_is_refused(call):
    with pytest.raises(BadInput):
        call()
