"""Diffusion: schedules worked by hand, steps back as their papers write them, and a sampler that is exact for normal data."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from sonde.core.errors import BadInput
from sonde.models import diffusion
from sonde.models.diffusion import Diffusion, alphas_cumprod


def test_schedules_by_hand():
    linear = alphas_cumprod(1000, "linear")
    assert len(linear) == 1001 and float(linear[0]) == 1.0
    assert float(linear[1]) == pytest.approx(0.9999, abs=1e-12)
    assert float(linear[2]) == pytest.approx(0.9999 * (1 - 1e-4 - 0.0199 / 999), abs=1e-12)
    assert float(linear[-1]) == pytest.approx(4.036e-5, rel=1e-3)  # as published for 1000 steps
    cosine = alphas_cumprod(4)
    f = [math.cos((t / 4 + 0.008) / 1.008 * math.pi / 2) ** 2 for t in range(5)]
    assert cosine[:4].tolist() == pytest.approx([each / f[0] for each in f[:4]], abs=1e-12)
    assert float(cosine[4]) == pytest.approx(f[3] / f[0] * 0.001, abs=1e-12)  # the last beta would be 1
    for schedule in ("linear", "cosine"):
        assert (alphas_cumprod(37, schedule).diff() < 0).all() and float(alphas_cumprod(37, schedule)[-1]) < 1e-3


class Known(nn.Module):
    """v of data that are normal with this deviation: what the best network would say."""

    def __init__(self, kept: Tensor, deviation: float) -> None:
        super().__init__()
        self.alphas_cumprod, self.deviation, self.weight = kept, deviation, nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        a = self.alphas_cumprod[time.long()].view(-1, *(1,) * (x.ndim - 1))
        variance = a * self.deviation**2 + 1 - a
        noise, clean = (1 - a).sqrt() / variance * x, a.sqrt() * self.deviation**2 / variance * x
        return a.sqrt() * noise - (1 - a).sqrt() * clean


def exact(deviation: float = 0.6, steps: int = 200) -> Diffusion:
    return Diffusion(Known(alphas_cumprod(steps), deviation), (3,), steps).double()


def test_the_best_network_tells_the_mean_of_the_noise():
    model, a = exact(), alphas_cumprod(200)[25]
    x = torch.randn(4, 3, dtype=torch.float64)
    expected = (1 - a).sqrt() / (a * 0.36 + 1 - a) * x
    torch.testing.assert_close(model(x, torch.full((4,), 25)), expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("steps, eta", [(None, 1.0), (None, 0.0), (100, 0.0), (100, 0.5)])
def test_samples_have_the_spread_of_the_data(steps, eta):
    drawn = exact().sample(8000, torch.Generator().manual_seed(0), steps, eta)
    assert drawn.shape == (8000, 3) and drawn.mean().abs() < 0.02
    assert float(drawn.std()) == pytest.approx(0.6, rel=0.04)  # 100 steps are not infinitely many


def test_an_ancestral_step_is_that_of_ho_jain_and_abbeel():
    torch.manual_seed(0)
    model = diffusion.points(3, 8, 1, 20, "linear").double()
    x, fresh, t = torch.randn(5, 3, dtype=torch.float64), torch.randn(5, 3, dtype=torch.float64), 12
    a, before = model.alphas_cumprod[t], model.alphas_cumprod[t - 1]
    alpha, beta = a / before, 1 - a / before
    mean = (x - beta / (1 - a).sqrt() * model(x, torch.full((5,), t))) / alpha.sqrt()
    expected = mean + ((1 - before) / (1 - a) * beta).sqrt() * fresh
    torch.testing.assert_close(model.reverse_step(x, t, t - 1, fresh), expected)


def test_a_ddim_step_takes_the_same_noise_along():
    """x_t made of x and e, and a network that knows e: the step gives x_s of the same x and e."""
    model = exact()
    x, e = torch.randn(4, 3, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64)
    model.forward = lambda noisy, time: e  # type: ignore[method-assign]
    x_t, x_s = (model.add_noise(x, e, torch.full((4,), t)) for t in (50, 10))
    torch.testing.assert_close(model.reverse_step(x_t, 50, 10, eta=0.0), x_s)


def test_noised_keeps_data_and_noise_apart():
    model = diffusion.images((1, 8, 4), 4, 10)
    x, noise, time = torch.rand(3, 1, 8, 4), torch.randn(3, 1, 8, 4), torch.tensor([1, 5, 10])
    a = alphas_cumprod(10).float()[time].view(3, 1, 1, 1)
    torch.testing.assert_close(model.add_noise(x, noise, time), a.sqrt() * (2 * x - 1) + (1 - a).sqrt() * noise)


@pytest.mark.parametrize(
    "factory, shape", [(lambda: diffusion.points(3, 7, 2, 9), (3,)), (lambda: diffusion.images((2, 8, 12), 6, 9), (2, 8, 12))]
)
def test_networks_fit_their_data_and_know_the_time(factory, shape):
    torch.manual_seed(0)
    model = factory()
    x = torch.randn(4, *shape)
    early, late = (model(x, torch.full((4,), t)) for t in (1, 8))
    assert early.shape == x.shape and not torch.allclose(early / late, torch.ones_like(x))
    torch.testing.assert_close(model(x), early)
    early.square().sum().backward()
    assert all(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in model.parameters())
    drawn = model.sample(3, torch.Generator().manual_seed(0))
    assert drawn.shape == (3, *shape) and torch.equal(drawn, model.sample(3, torch.Generator().manual_seed(0)))
    if len(shape) == 3:
        assert drawn.min() >= 0 and drawn.max() <= 1


@pytest.mark.parametrize(
    "call",
    [
        lambda: alphas_cumprod(10, "square"),
        lambda: diffusion.points(steps=0),
        lambda: diffusion.images((1, 9, 8)),
        lambda: diffusion.points().sample(2, steps=101),
        lambda: diffusion.points().sample(2, eta=1.5),
        lambda: diffusion.points()(torch.zeros(2, 3)),
    ],
)
def test_what_cannot_be_is_refused(call):
    with pytest.raises(BadInput):
        call()
