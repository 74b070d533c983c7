"""Convolution written out against torch's layers and SciPy, in outputs and gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from sonde.core.errors import BadInput
from sonde.nn.convolution import convolve, correlate, matrix, output_size

LAYERS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
SIZES = {1: ((11,), (3,)), 2: ((9, 13), (3, 2)), 3: ((5, 6, 7), (2, 3, 1))}


def make(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape))).requires_grad_()


@pytest.mark.parametrize(("stride", "padding", "dilation"), [(1, 0, 1), (2, 1, 1), (1, 2, 2), (3, 2, 2)])
@pytest.mark.parametrize("axes", LAYERS)
def test_equals_torch_in_outputs_and_gradients(axes, stride, padding, dilation):
    size, side = SIZES[axes]
    x, w, b = make(2, 3, *size), make(4, 3, *side), make(4)
    how = {"stride": stride, "padding": padding, "dilation": dilation}
    ours, theirs = correlate(x, w, bias=b, **how), LAYERS[axes](x, w, b, **how)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    back = torch.randn_like(ours)
    for a, e in zip(torch.autograd.grad(ours, (x, w, b), back), torch.autograd.grad(theirs, (x, w, b), back), strict=True):
        torch.testing.assert_close(a, e, rtol=1e-12, atol=1e-12)


def test_flipped_it_is_numpys_convolution():
    x, w = np.array([1.0, 2, 3, 4]), np.array([7.0, 6, 5])
    ours = convolve(torch.tensor(x)[None, None], torch.tensor(w)[None, None], padding=2, flip=True)
    assert ours.flatten().tolist() == np.convolve(x, w).tolist() == [7, 20, 38, 56, 39, 20]


@pytest.mark.parametrize("how", [{}, {"stride": 2, "padding": 1}, {"dilation": 2, "padding": 2}])
def test_the_matrix_does_the_same_and_its_transpose_is_the_transposed_convolution(how):
    x, w = make(1, 2, 6, 7), make(3, 2, 3, 2)
    wide = matrix(w, (6, 7), **how)
    y = F.conv2d(x, w, **how)
    torch.testing.assert_close((wide @ x.flatten()).reshape(y.shape), y)
    (back,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close((wide.T @ torch.ones(y.numel(), dtype=torch.float64)).reshape(x.shape), back)


@given(st.integers(1, 20), st.integers(1, 6), st.integers(1, 4), st.integers(0, 4), st.integers(1, 3))
def test_sizes_are_torchs(size, kernel, stride, padding, dilation):
    if dilation * (kernel - 1) + 1 > size + 2 * padding:
        with pytest.raises(BadInput, match="does not fit"):
            output_size(size, kernel, stride, padding, dilation)
        return
    output = F.conv1d(torch.zeros(1, 1, size), torch.zeros(1, 1, kernel), stride=stride, padding=padding, dilation=dilation)
    assert output.shape[-1] == output_size(size, kernel, stride, padding, dilation)


def test_wrong_channels_are_named():
    with pytest.raises(BadInput, match=r"x \(1, 2, 5\) does not fit a kernel of \(3, 4, 2\)"):
        correlate(torch.zeros(1, 2, 5), torch.zeros(3, 4, 2))
