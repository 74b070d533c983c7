"""Diffusion model: data is noised step by step, and a network predicts the noise so that the steps can be reversed.

    x_t = sqrt(a_t) x + sqrt(1 - a_t) e,   e ~ N(0, I),   a_t = product of (1 - beta_1) .. (1 - beta_t)
    loss = |e - e_model(x_t, t)|^2

A reverse step from t to s < t predicts x = (x_t - sqrt(1 - a_t) e_model) / sqrt(a_t) and adds the noise of step s:

    x_s = sqrt(a_s) x + sqrt(1 - a_s - v) e_model + sqrt(v) n,   v = eta^2 (1 - a_s) / (1 - a_t) (1 - a_t / a_s)

eta = 1 over all steps is the ancestral sampler (Ho, Jain and Abbeel, 2020); eta = 0 is deterministic and may skip steps
(Song, Meng and Ermon, DDIM, 2021).

Trained by `objectives.denoised`.  B batch, T steps, D width.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal, final

import torch
from torch import Tensor, nn

from ..core.batch import Batch
from ..core.errors import BadInput
from ..core.options import Count, Range, checked
from ..nn.positions import sinusoidal
from ._shape import Shape, check_shape, noise, numbers, quarters
from .mlp import MLP

NoiseSchedule = Literal["cosine", "linear"]


@checked
def alphas_cumprod(steps: Count, schedule: NoiseSchedule = "cosine") -> Tensor:
    """a_0 = 1, a_1, ..., a_T: cumulative products of 1 - beta, the fraction of the data's variance left after each step.  Float64.

    cosine: a_t = cos^2((t/T + 0.008) / 1.008 pi/2), with no beta above 0.999 (Nichol and Dhariwal, 2021)
    linear: beta from 1e-4 to 0.02 for 1000 steps, and proportionally larger for fewer steps, so that the total noise is the same
    """
    if schedule == "cosine":
        angle = (torch.arange(steps + 1, dtype=torch.float64) / steps + 0.008) / 1.008 * math.pi / 2
        wave = angle.cos().square()
        betas = (1 - wave[1:] / wave[:-1]).clamp(max=0.999)
    else:
        betas = (torch.linspace(1e-4, 0.02, steps, dtype=torch.float64) * 1000 / steps).clamp(max=0.999)
    return torch.cat([betas.new_ones(1), (1 - betas).cumprod(0)])


@final
class Diffusion(nn.Module):
    """`model(x_t, t)` predicts the noise in x_t, shaped like it; `add_noise` is the forward process, `sample` the reverse one.

    The noise is sqrt(1 - a_t) x_t + sqrt(a_t) v with v = sqrt(a_t) e - sqrt(1 - a_t) x (Salimans and Ho, 2022).  The network
    predicts v: where almost none of the data is left, the noise is x_t itself, whatever the network's error.

    Args:
        denoiser: (x_t, t) -> v; t (B,) are floats from 1 to T
        shape: of one example
        steps: T
        schedule: noise schedule
        span: lowest and highest value of the data, to which predictions are clipped; None does not clip
        unit: the network sees (x - middle of the span) / unit; a standard deviation near 1 is best
    """

    alphas_cumprod: Tensor

    @checked
    def __init__(
        self,
        denoiser: nn.Module,
        shape: Shape,
        steps: Count = 100,
        schedule: NoiseSchedule = "cosine",
        span: tuple[float, float] | None = None,
        unit: Annotated[float, Range(above=0)] = 1.0,
    ) -> None:
        super().__init__()
        if span is not None and not span[0] < span[1]:
            raise BadInput(f"span must be a lower and a higher number, not {span!r}", where="Diffusion")
        self.denoiser, self.shape, self.steps, self.unit = denoiser, tuple(shape), steps, unit
        self.middle = 0.0 if span is None else (span[0] + span[1]) / 2
        self.reach = math.inf if span is None else (span[1] - span[0]) / 2 / unit
        self.register_buffer("alphas_cumprod", alphas_cumprod(steps, schedule).float())

    def forward(self, x: Tensor, time: Tensor | None = None) -> Tensor:
        """The noise in x at steps `time` (B,), integers from 1 to T; step 1 by default."""
        at = torch.ones(len(x), dtype=torch.long, device=x.device) if time is None else time
        a = self._alpha_bar(at, check_shape(x, self.shape, "Diffusion"))
        return (1 - a).sqrt() * x + a.sqrt() * self.denoiser(x, at.to(x.dtype))

    def add_noise(self, x: Tensor, noise: Tensor, time: Tensor) -> Tensor:
        """The forward process: data x (B, *shape) after `time` (B,) steps, with this noise."""
        a = self._alpha_bar(time, x)
        return a.sqrt() * ((check_shape(x, self.shape, "Diffusion") - self.middle) / self.unit) + (1 - a).sqrt() * noise

    @torch.no_grad()
    def sample(self, n: int, generator: torch.Generator | None = None, steps: int | None = None, eta: float = 1.0) -> Tensor:
        """n examples.

        Args:
            steps: how many of the T steps to take, evenly spaced; all by default
            eta: amount of fresh noise in each step: 1 for ancestral sampling (DDPM), 0 for none (DDIM)
        """
        taken = self.steps if steps is None else steps
        if not (1 <= taken <= self.steps and 0 <= eta <= 1):
            raise BadInput(
                f"cannot sample with {taken} steps and eta {eta:g}", where="sample", fix=f"use 1 to {self.steps} steps and eta from 0 to 1"
            )
        x = noise(self, n, self.shape, generator)
        times = torch.linspace(self.steps, 0, taken + 1).round().long().tolist()
        for now, then in zip(times, times[1:]):
            fresh = noise(self, n, self.shape, generator) if eta and then else None
            x = self.reverse_step(x, now, then, fresh, eta)
        return self.middle + self.unit * x

    def reverse_step(self, x: Tensor, now: int, then: int, fresh: Tensor | None = None, eta: float = 1.0) -> Tensor:
        """One reverse step: x at step `now` -> x at the earlier step `then`, with fresh noise or none."""
        epsilon = self(x, torch.full((len(x),), now, device=x.device))
        a, b = self.alphas_cumprod[now], self.alphas_cumprod[then]
        # Where little of the data is left, a small error of the network predicts values outside the range of the data.
        clean = ((x - (1 - a).sqrt() * epsilon) / a.sqrt()).clamp(-self.reach, self.reach)
        epsilon = (x - a.sqrt() * clean) / (1 - a).sqrt()
        variance = eta**2 * (1 - b) / (1 - a) * (1 - a / b) if fresh is not None else torch.zeros_like(b)
        x = b.sqrt() * clean + (1 - b - variance).clamp(min=0).sqrt() * epsilon
        return x if fresh is None else x + variance.sqrt() * fresh

    def _alpha_bar(self, time: Tensor, x: Tensor) -> Tensor:
        return self.alphas_cumprod[time].view(-1, *(1,) * (x.ndim - 1))


@final
class PointDenoiser(nn.Module):
    """An MLP that reads a point and the sinusoidal embedding of the time."""

    def __init__(self, size: int, width: int, depth: int) -> None:
        super().__init__()
        self.waves = width
        self.net = MLP((size + width, *(width,) * depth, size), "silu")

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        return self.net(torch.cat([x, sinusoidal(time, self.waves).to(x.dtype)], 1))


@final
class ImageDenoiser(nn.Module):
    """A small U-Net: two downsamplings and two upsamplings with skip connections; every block gets the time embedding."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.time_embedding = nn.Sequential(nn.Linear(width, 4 * width), nn.SiLU())
        self.first = nn.Conv2d(channels, width, 3, padding=1)
        self.down1, self.down2 = TimedResidual(width, width, 4 * width), TimedResidual(width, 2 * width, 4 * width)
        self.middle = TimedResidual(2 * width, 2 * width, 4 * width)
        self.up2, self.up1 = TimedResidual(4 * width, width, 4 * width), TimedResidual(2 * width, width, 4 * width)
        self.last = nn.Sequential(nn.GroupNorm(1, width), nn.SiLU(), nn.Conv2d(width, channels, 3, padding=1))

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        embedding = self.time_embedding(sinusoidal(time, self.width).to(x.dtype))
        whole = self.down1(self.first(x), embedding)
        half = self.down2(nn.functional.avg_pool2d(whole, 2), embedding)
        quarter = self.middle(nn.functional.avg_pool2d(half, 2), embedding)
        half = self.up2(torch.cat([_double(quarter), half], 1), embedding)
        return self.last(self.up1(torch.cat([_double(half), whole], 1), embedding))


@final
class TimedResidual(nn.Module):
    """Two convolutions with a shortcut; the time embedding is added between them."""

    def __init__(self, inputs: int, outputs: int, embedding: int) -> None:
        super().__init__()
        self.before = nn.Sequential(nn.GroupNorm(1, inputs), nn.SiLU(), nn.Conv2d(inputs, outputs, 3, padding=1))
        self.time = nn.Linear(embedding, outputs)
        self.after = nn.Sequential(nn.GroupNorm(1, outputs), nn.SiLU(), nn.Conv2d(outputs, outputs, 3, padding=1))
        self.shortcut = nn.Identity() if inputs == outputs else nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        return self.shortcut(x) + self.after(self.before(x) + self.time(embedding)[:, :, None, None])


def _double(x: Tensor) -> Tensor:
    return x.repeat_interleave(2, 2).repeat_interleave(2, 3)


def points(size: Count = 2, width: Count = 64, depth: Count = 3, steps: Count = 100, schedule: NoiseSchedule = "cosine") -> Diffusion:
    """For points with `size` coordinates and a standard deviation near 1; the denoiser is an MLP."""
    return Diffusion(PointDenoiser(numbers((size,), "diffusion.points"), width, depth), (size,), steps, schedule)


def images(shape: Shape = (1, 8, 8), width: Count = 32, steps: Count = 200, schedule: NoiseSchedule = "cosine") -> Diffusion:
    """For images with values in 0..1 and sides that are multiples of 4; the denoiser is a small U-Net.

    Args:
        width: channels at the full size
    """
    channels, _, _ = quarters(shape, "diffusion.images")
    return Diffusion(ImageDenoiser(channels, width), shape, steps, schedule, span=(0.0, 1.0), unit=0.5)


def tiny() -> tuple[Diffusion, Batch]:
    """A small working instance with input."""
    rng = torch.Generator().manual_seed(0)
    return points(3, width=8, depth=1, steps=5), Batch(x=torch.randn(5, 3, generator=rng))
