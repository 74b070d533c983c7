"""Chapter 4 made wrong on purpose: signs, transposed matrices, printed errata; each exhibit must notice."""

from __future__ import annotations

import math

import numpy as np
import torch

from sonde.atlas import multilayer_perceptrons
from sonde.lenses import intrinsic
from sonde.models import constructive, piecewise
from sonde.models.mlp import MLP
from sonde.recipes import xor
from tests.atlas.mistakes import Mistakes, two_seeds

mistakes = Mistakes()

# The printed form of E-24: every unit carries its own phi_0.
mistakes.add("MLP-01", "phi_0 counted thrice", only="phi_0 counted once: net against the sum written out").replace(
    piecewise, "from_layers", lambda right, layers: right([*layers[:-1], (layers[-1][0], 3 * np.asarray(layers[-1][1]))])
)
mistakes.add("MLP-02", "on and off exchanged", red="units that are on, region by region").replace(
    piecewise, "_cut_interval", lambda right, *args: right(*args)[::-1]
)
mistakes.add("MLP-03", "a net without joints", red="joints of the first output").replace(
    multilayer_perceptrons, "MLP", lambda widths: MLP(widths, activation="identity")
)
mistakes.add("MLP-03", "other counts", red="parameters of (2, 3, 1)").replace(
    multilayer_perceptrons, "MLP", lambda widths: MLP(widths, norm="layer")
)
mistakes.add("MLP-04", "another activation", only="batch through MLP, against a loop over neurons").replace(
    multilayer_perceptrons, "MLP", lambda widths, activation: MLP(widths, activation="tanh")
)
mistakes.add("MLP-05", "a forgotten bias", every="one layer W2 W1").replace(
    piecewise, "dense_layers", lambda right, model: [(w, 0 * b) for w, b in right(model)]
)
mistakes.add("MLP-06", "a net that trains half as long", only="XOR with 8 hidden units: cross-entropy", setup=two_seeds).replace(
    xor, "recipe", lambda right, hidden: right(hidden=hidden, steps=right().steps // 2)
)
mistakes.add("MLP-06", "hidden units where none should be", red="XOR without hidden units: cross-entropy", setup=two_seeds).replace(
    xor, "recipe", lambda right, hidden: right(hidden=hidden or (2,))
)
mistakes.add("MLP-08", "units that do not share the work", red="slope of log error against log n, d=5").replace(
    constructive, "barron_units", lambda right, d, r, n, draw: right(d, r, 8, draw)
)
mistakes.add("MLP-09", "a sum that ends one early", red="sum over j <= 2 of C(3, j)").replace(
    piecewise, "region_bound", lambda inputs, hidden: sum(math.comb(hidden, j) for j in range(inputs))
)
mistakes.add("MLP-09", "a counter that forgets the last line", red="regions of three lines in general position").replace(
    piecewise, "regions", lambda right, net, low, high: right(net, low, high)[1:]
)
mistakes.add("MLP-10", "a wrong sign", red=("the zig-zag as written", "pieces on [-1, 1]")).replace(
    constructive, "zigzag", lambda: piecewise.from_layers([(np.ones((3, 1)), [1.0, 1 / 3, -1 / 3]), ([[3.0, 6.0, 6.0]], [-1.0])])
)
# The printed claim of E-22 confuses the two counts and the two ways to grow.
mistakes.add(
    "MLP-12",
    "monomials counted again and again",
    red=("distinct monomials of order 3", "order growing with D: one more dimension multiplies by 4"),
).replace(constructive, "monomials", constructive.tensor_entries)
mistakes.add("MLP-13", "the minority", red="accuracy: share known + half of the rest").replace(
    multilayer_perceptrons, "_block_votes", lambda right, x, y, side: right(x, 1 - y, side)
)
mistakes.add("MLP-15", "an estimate of twice the dimension", red="intrinsic dimension of a curved sheet in R^50").replace(
    intrinsic, "two_nn", lambda right, x: 2 * right(x)
)
# E-48: without the order stated, the grid is transposed.
mistakes.add("MLP-16", "the other order of the grid", only="order 'ij': the second coordinate runs first").replace(
    torch, "meshgrid", lambda right, *lines, indexing: right(*lines, indexing="xy")
)


@mistakes.add("MLP-06", "weights copied in the wrong order", red="against scikit-learn", setup=two_seeds).replace(piecewise, "from_layers")
def weights_copied_in_the_wrong_order(right, layers, activation):
    model = right(layers, activation)
    model.layers.dense2.weight.data = model.layers.dense2.weight.data.flip(0)
    return model


@mistakes.add("MLP-07", "slopes in place of their changes", red="ReLU interpolant", setup=two_seeds).replace(constructive, "interpolant")
def keep_slopes(knots, values):
    return piecewise.from_layers([(np.ones((len(knots) - 1, 1)), -knots[:-1]), ((np.diff(values) / np.diff(knots))[None], values[:1])])


@mistakes.add("MLP-11", "a transposed matrix", red="random: merged against composed").replace(piecewise, "merge")
def transpose(right, inner, outer):
    first, (w, b), last = piecewise.dense_layers(right(inner, outer))
    return piecewise.from_layers([first, (w.T, b), last])


# E-20: the notes print exp(-3 eps^2 / 2 sigma^2) near the mode.
@mistakes.add("MLP-14", "the printed decay", red="log p(r*+0.1) - log p(r*): -eps^2, not the printed -3 eps^2/2").replace(
    multilayer_perceptrons, "_radial_log_density"
)
def printed(r: float, inputs: int, sigma: float) -> float:
    mode = sigma * math.sqrt(inputs - 1)
    return -1.5 * (r - mode) ** 2 / sigma**2


# Weights so small that every sigmoid is nearly a line.
@mistakes.add("MLP-16", "a straight boundary", only="it is curved: share that a straight boundary gets wrong, as a power of 10").replace(
    MLP, "forward"
)
def flat(right, self, x):
    self.layers.dense1.weight.data.mul_(1e-3)
    return right(self, x)


@mistakes.each
def test_notices(mistake, monkeypatch):
    mistake.assert_noticed(monkeypatch)
