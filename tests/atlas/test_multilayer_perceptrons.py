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
from tests.atlas.mistakes import two_seeds, wrong


def test_mlp_01_notices_phi_0_counted_thrice(monkeypatch) -> None:
    """The printed form of E-24: every unit carries its own phi_0."""
    right = piecewise.from_layers
    monkeypatch.setattr(piecewise, "from_layers", lambda layers: right([*layers[:-1], (layers[-1][0], 3 * np.asarray(layers[-1][1]))]))
    assert wrong("MLP-01") == ["phi_0 counted once: net against the sum written out"]


def test_mlp_02_notices_on_and_off_exchanged(monkeypatch) -> None:
    right = piecewise._cut_interval
    monkeypatch.setattr(piecewise, "_cut_interval", lambda *args: right(*args)[::-1])
    assert "units that are on, region by region" in wrong("MLP-02")


def test_mlp_04_notices_another_activation(monkeypatch) -> None:
    monkeypatch.setattr(multilayer_perceptrons, "MLP", lambda widths, activation: MLP(widths, activation="tanh"))
    assert wrong("MLP-04") == ["batch through MLP, against a loop over neurons"]


def test_mlp_05_notices_a_forgotten_bias(monkeypatch) -> None:
    right = piecewise.dense_layers
    monkeypatch.setattr(piecewise, "dense_layers", lambda model: [(w, 0 * b) for w, b in right(model)])
    assert all(name.startswith("one layer W2 W1") for name in wrong("MLP-05"))


def test_mlp_07_notices_slopes_in_place_of_their_changes(monkeypatch) -> None:
    def bad(knots, values):
        return piecewise.from_layers([(np.ones((len(knots) - 1, 1)), -knots[:-1]), ((np.diff(values) / np.diff(knots))[None], values[:1])])

    monkeypatch.setattr(constructive, "interpolant", bad)
    two_seeds(monkeypatch)
    assert any(name.startswith("ReLU interpolant") for name in wrong("MLP-07"))


def test_mlp_08_notices_units_that_do_not_share_the_work(monkeypatch) -> None:
    right = constructive.barron_units
    monkeypatch.setattr(constructive, "barron_units", lambda d, r, n, draw: right(d, r, 8, draw))
    assert "slope of log error against log n, d=5" in wrong("MLP-08")


def test_mlp_09_notices_a_sum_that_ends_one_early(monkeypatch) -> None:
    monkeypatch.setattr(piecewise, "region_bound", lambda inputs, hidden: sum(math.comb(hidden, j) for j in range(inputs)))
    assert "sum over j <= 2 of C(3, j)" in wrong("MLP-09")


def test_mlp_09_notices_a_counter_that_forgets_the_last_line(monkeypatch) -> None:
    right = piecewise.regions
    monkeypatch.setattr(piecewise, "regions", lambda net, low, high: right(net, low, high)[1:])
    assert "regions of three lines in general position" in wrong("MLP-09")


def test_mlp_10_notices_a_wrong_sign(monkeypatch) -> None:
    bad = piecewise.from_layers([(np.ones((3, 1)), [1.0, 1 / 3, -1 / 3]), ([[3.0, 6.0, 6.0]], [-1.0])])
    monkeypatch.setattr(constructive, "zigzag", lambda: bad)
    names = wrong("MLP-10")
    assert "the zig-zag as written" in names and any(name.startswith("pieces on [-1, 1]") for name in names)


def test_mlp_11_notices_a_transposed_matrix(monkeypatch) -> None:
    right = piecewise.merge

    def bad(inner, outer):
        first, (w, b), last = piecewise.dense_layers(right(inner, outer))
        return piecewise.from_layers([first, (w.T, b), last])

    monkeypatch.setattr(piecewise, "merge", bad)
    assert "random: merged against composed" in wrong("MLP-11")


def test_mlp_12_notices_monomials_counted_again_and_again(monkeypatch) -> None:
    """The printed claim of E-22 confuses the two counts and the two ways to grow."""
    monkeypatch.setattr(constructive, "monomials", constructive.tensor_entries)
    names = wrong("MLP-12")
    assert "distinct monomials of order 3" in names and "order growing with D: one more dimension multiplies by 4" in names


def test_mlp_13_notices_the_minority(monkeypatch) -> None:
    right = multilayer_perceptrons._block_votes
    monkeypatch.setattr(multilayer_perceptrons, "_block_votes", lambda x, y, side: right(x, 1 - y, side))
    assert "accuracy: share known + half of the rest" in wrong("MLP-13")


def test_mlp_14_notices_the_printed_decay(monkeypatch) -> None:
    """E-20: the notes print exp(-3 eps^2 / 2 sigma^2) near the mode."""

    def printed(r: float, inputs: int, sigma: float) -> float:
        mode = sigma * math.sqrt(inputs - 1)
        return -1.5 * (r - mode) ** 2 / sigma**2

    monkeypatch.setattr(multilayer_perceptrons, "_radial_log_density", printed)
    assert "log p(r*+0.1) - log p(r*): -eps^2, not the printed -3 eps^2/2" in wrong("MLP-14")


def test_mlp_15_notices_an_estimate_of_twice_the_dimension(monkeypatch) -> None:
    right = intrinsic.two_nn
    monkeypatch.setattr(intrinsic, "two_nn", lambda x: 2 * right(x))
    assert "intrinsic dimension of a curved sheet in R^50" in wrong("MLP-15")


def test_mlp_16_notices_the_other_order_of_the_grid(monkeypatch) -> None:
    """E-48: without the order stated, the grid is transposed."""
    right = torch.meshgrid
    monkeypatch.setattr(torch, "meshgrid", lambda *lines, indexing: right(*lines, indexing="xy"))
    assert wrong("MLP-16") == ["order 'ij': the second coordinate runs first"]


def test_mlp_16_notices_a_straight_boundary(monkeypatch) -> None:
    """Weights so small that every sigmoid is nearly a line."""
    right = MLP.forward

    def flat(self, x):
        self.layers.dense1.weight.data.mul_(1e-3)
        return right(self, x)

    monkeypatch.setattr(MLP, "forward", flat)
    assert wrong("MLP-16") == ["it is curved: share that a straight boundary gets wrong, as a power of 10"]


def test_mlp_06_notices_a_net_that_trains_half_as_long(monkeypatch) -> None:
    right = xor.recipe
    monkeypatch.setattr(xor, "recipe", lambda hidden: right(hidden=hidden, steps=right().steps // 2))
    two_seeds(monkeypatch)
    assert wrong("MLP-06") == ["XOR with 8 hidden units: cross-entropy"]


def test_mlp_06_notices_hidden_units_where_none_should_be(monkeypatch) -> None:
    right = xor.recipe
    monkeypatch.setattr(xor, "recipe", lambda hidden: right(hidden=hidden or (2,)))
    two_seeds(monkeypatch)
    assert "XOR without hidden units: cross-entropy" in wrong("MLP-06")


def test_mlp_06_notices_weights_copied_in_the_wrong_order(monkeypatch) -> None:
    right = piecewise.from_layers

    def bad(layers, activation):
        model = right(layers, activation)
        model.layers.dense2.weight.data = model.layers.dense2.weight.data.flip(0)
        return model

    monkeypatch.setattr(piecewise, "from_layers", bad)
    two_seeds(monkeypatch)
    assert any("against scikit-learn" in name for name in wrong("MLP-06"))
