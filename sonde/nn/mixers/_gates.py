"""Shared by the gates of several mixers: precision, initial values, unit-length keys."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def at_least_float32(x: Tensor) -> Tensor:
    """At least float32: a gate near one rounded to eight bits would forget everything, or nothing."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def step_sizes(n: int, low: float = 1e-3, high: float = 0.1) -> Tensor:
    """n time steps, log-uniform."""
    return torch.empty(n).uniform_(math.log(low), math.log(high)).exp()


def step_bias(n: int) -> Tensor:
    """Inverse softplus of `step_sizes`."""
    dt = step_sizes(n)
    return dt + torch.log(-torch.expm1(-dt))


def unit(x: Tensor) -> Tensor:
    """x with its last axis scaled to length one; zero stays zero."""
    x = at_least_float32(x)
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)
