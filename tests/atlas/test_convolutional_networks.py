"""Mistakes about convolutions, made on purpose, that turn chapter 11 red."""

from __future__ import annotations

import torch
from torch import nn

from sonde.atlas import convolutional_networks
from sonde.lenses.cost import _Walk
from sonde.nn import convolution
from tests.atlas.mistakes import Mistakes

mistakes = Mistakes()

mistakes.add("CNN-01", "a kernel that is not turned", red="is f * g").replace(
    convolutional_networks, "convolve", lambda right, x, w, flip=False, **how: right(x, w, flip=False, **how)
)
mistakes.add("CNN-02", "a kernel that is always turned", red="cross-correlation with (7, 6, 5)", green="by NumPy").replace(
    convolutional_networks, "convolve", lambda right, x, w, flip=False, **how: right(x, w, flip=True, **how)
)
mistakes.add("CNN-04", "a dilation that is ignored", red="kernel of 5 with zeros").replace(
    convolutional_networks, "correlate", lambda right, x, w, dilation=1, **how: right(x, w, **how)
)
mistakes.add("CNN-05", "a matrix that is transposed", red="does what the layer does").replace(
    convolutional_networks, "matrix", lambda right, w, size, **how: right(w.flip(tuple(range(2, w.ndim))), size, **how)
)
mistakes.add("CNN-06", "channels that are not checked", red="a kernel of 3 channels").replace(
    convolutional_networks, "correlate", lambda right, x, w, **how: right(x[:, : w.shape[1]], w, **how)
)
mistakes.add("CNN-08", "a transposed kernel", red="(0 1; 2 3)").replace(
    convolutional_networks,
    "correlate",
    lambda right, x, w, **how: right(x, w.transpose(2, 3), **how) if w.shape[2] == w.shape[3] else right(x, w, **how),
)
mistakes.add("CNN-09", "a matrix that is transposed", red="rows (w1 w2 0 w3 w4 0 0 0 0)").replace(
    convolutional_networks, "matrix", lambda right, w, size, **how: right(w.flip(tuple(range(2, w.ndim))), size, **how)
)
mistakes.add("CNN-10", "a division that rounds up", red=("rounded down", "the two formulas differ")).replace(
    convolutional_networks, "output_size", lambda size, f, s=1, padding=0: -(-(size + 2 * padding - f) // s) + 1
)
mistakes.add("CNN-12", "biases counted as weights", only=("weights", "biases")).replace(
    _Walk, "parameters", lambda right, self, module, whole: (sum(right(self, module, whole)), 0)
)
mistakes.add("CNN-13", "windows at the wrong places", red="pool 5/2").replace(
    convolutional_networks, "output_size", lambda size, f, s=1, padding=0: convolution.output_size(size, f, s, padding) - 1
)
mistakes.add("CNN-14", "a border that breaks the symmetry", red=("shifting by 1", "global pooling")).replace(
    convolutional_networks.nn, "Conv2d", lambda right, *args, padding_mode="zeros", **how: right(*args, **how)
)
mistakes.add("CNN-16", "forgotten biases", count=3).replace(
    convolutional_networks,
    "MLP",
    lambda widths: nn.Sequential(nn.Flatten(), *(nn.Linear(a, b, bias=False) for a, b in zip(widths, widths[1:], strict=False))),
)
mistakes.add("CNN-17", "a corner detector that likes lines", red="two-layer net fires").replace(
    convolutional_networks, "correlate", lambda right, x, w, **how: right(x, w, **how) + 1.5 * (w.shape[1] == 2)
)
mistakes.add("CNN-18", "a network that learns nothing", red="a series", slow=True).replace(
    convolutional_networks, "optimizer", lambda right, name, lr: right(name, lr=1e-9)
)


@mistakes.add("CNN-07", "a formula without the strides", red=("strides", "dilations"), green="3, 3, 3").replace(
    convolutional_networks, "cost"
)
def flat(right, net, size):
    cost = right(net, size)
    field = 1
    for row, layer in zip(cost.rows, net, strict=True):
        field += layer.kernel_size[0] - 1
        object.__setattr__(row, "field", (field, field))
    return cost


@mistakes.add("CNN-12", "another network", red=("output sizes", "parameters in all")).replace(convolutional_networks, "example_network")
def unpadded():
    convolutions = nn.Conv2d(1, 5, 3), nn.MaxPool2d(2), nn.Conv2d(5, 10, 5), nn.MaxPool2d(2), nn.Conv2d(10, 20, 2, 2)
    return nn.Sequential(*convolutions, nn.MaxPool2d(5, 2), nn.Flatten(), nn.Linear(20 * 9 * 13, 6))


@mistakes.add("CNN-15", "weights that differ from place to place", red="the same weights").replace(torch.autograd.functional, "jacobian")
def untied(right, function, x):
    jacobian = right(function, x)
    return jacobian * torch.linspace(1, 2, jacobian.shape[1])[:, None, None, None, None]


@mistakes.each
def test_notices(mistake, monkeypatch):
    mistake.assert_noticed(monkeypatch)
