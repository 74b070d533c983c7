"""Maximum mean discrepancy: how far two samples are from having the same distribution, measured with a Gaussian kernel of one bandwidth.

    MMD^2 = E k(X, X') + E k(Y, Y') - 2 E k(X, Y) >= 0,   k(a, b) = exp(-|a - b|^2 / (2 width^2))

0 only if X and Y have the same distribution.  A narrow kernel detects fine structure, which mean distances, dominated by
distant pairs, do not.  Gretton and others, A Kernel Two-Sample Test, 2012.
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from ...core.errors import BadInput
from ...core.options import Range, checked


@checked
def discrepancy(x: Tensor, y: Tensor, width: Annotated[float, Range(above=0)]) -> float:
    """MMD^2 between the samples x (n, ...) and y (m, ...), each taken as a distribution of its own: 0 for the same points.

    Args:
        width: bandwidth of the kernel, in units of the data; much finer structure is not detected
    """
    if x.shape[1:] != y.shape[1:] or not (len(x) and len(y)):
        raise BadInput(
            f"samples of {tuple(x.shape)} and {tuple(y.shape)} cannot be compared",
            where="discrepancy",
            fix="give non-empty samples with the same shape after the first axis",
        )
    x, y = (each.detach().reshape(len(each), -1).double() for each in (x, y))

    def kernel(a: Tensor, b: Tensor) -> float:
        return float(torch.cdist(a, b).square().mul(-0.5 / width**2).exp().mean())

    return max(kernel(x, x) + kernel(y, y) - 2 * kernel(x, y), 0.0)
