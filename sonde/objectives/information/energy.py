"""Energy distance: how far two samples are from having the same distribution, in any number of dimensions.

    D^2 = 2 E|X - Y| - E|X - X'| - E|Y - Y'| >= 0, and 0 only if X and Y have the same distribution

Szekely and Rizzo, Energy statistics, 2013.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...core.errors import BadInput


def energy_distance(x: Tensor, y: Tensor) -> float:
    """D between the samples x (n, ...) and y (m, ...), each taken as a distribution of its own: 0 for the same points."""
    if x.shape[1:] != y.shape[1:] or not (len(x) and len(y)):
        raise BadInput(f"samples of {tuple(x.shape)} and {tuple(y.shape)} cannot be compared", where="energy_distance")
    x, y = (each.detach().reshape(len(each), -1).double() for each in (x, y))
    between, first, second = (torch.cdist(a, b).mean().item() for a, b in ((x, y), (x, x), (y, y)))
    return max(2 * between - first - second, 0.0) ** 0.5
