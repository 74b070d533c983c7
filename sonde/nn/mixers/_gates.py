"""What the gates of several mixers have in common: their precision, their first values, keys of length one."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def full(x: Tensor) -> Tensor:
    """At least float32: a gate near one rounded to eight bits would forget everything, or nothing."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def step_sizes(n: int, least: float = 1e-3, most: float = 0.1) -> Tensor:
    """n time steps, their logarithms spread evenly."""
    return torch.empty(n).uniform_(math.log(least), math.log(most)).exp()


def step_bias(n: int) -> Tensor:
    """What softplus turns into `step_sizes`."""
    dt = step_sizes(n)
    return dt + torch.log(-torch.expm1(-dt))


def unit(x: Tensor) -> Tensor:
    """x with its last axis scaled to length one; zero stays zero."""
    x = full(x)
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)
