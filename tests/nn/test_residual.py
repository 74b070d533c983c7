"""Residual connections: the sum, its gradient by hand, and shapes that do not fit."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sonde.core.errors import BadInput
from sonde.nn.residual import Residual


@pytest.mark.parametrize("skip", [1.0, 0.5, -2.0])
def test_sum_and_gradient_are_those_of_the_formula(skip):
    torch.manual_seed(0)
    w = torch.randn(4, 4, dtype=torch.float64)
    branch = nn.Linear(4, 4, bias=False).double()
    branch.weight.data.copy_(w)
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    y, g = Residual(branch, skip=skip)(x), torch.randn(3, 4, dtype=torch.float64)
    torch.testing.assert_close(y, x @ w.T + skip * x)
    torch.testing.assert_close(torch.autograd.grad(y, x, g)[0], g @ (w + skip * torch.eye(4, dtype=torch.float64)))


def test_a_projection_fits_other_shapes_and_without_it_there_is_an_error():
    assert Residual(nn.Linear(3, 5), nn.Linear(3, 5))(torch.zeros(2, 3)).shape == (2, 5)
    with pytest.raises(BadInput, match=r"the branch gives \(2, 5\), the shortcut \(2, 3\)"):
        Residual(nn.Linear(3, 5))(torch.zeros(2, 3))
