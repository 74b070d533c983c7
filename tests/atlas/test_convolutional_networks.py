"""Mistakes about convolutions, made on purpose, that turn chapter 11 red."""

from __future__ import annotations

import pytest
import torch

from sonde.atlas import convolutional_networks
from sonde.nn import convolution
from tests.atlas.mistakes import any_of, wrong


def test_cnn_01_notices_a_kernel_that_is_not_turned(monkeypatch):
    right = convolutional_networks.convolve
    monkeypatch.setattr(convolutional_networks, "convolve", lambda x, w, flip=False, **how: right(x, w, flip=False, **how))
    assert any_of(wrong("CNN-01"), "is f * g")


def test_cnn_02_notices_a_kernel_that_is_always_turned(monkeypatch):
    right = convolutional_networks.convolve
    monkeypatch.setattr(convolutional_networks, "convolve", lambda x, w, flip=False, **how: right(x, w, flip=True, **how))
    names = wrong("CNN-02")
    assert any_of(names, "cross-correlation with (7, 6, 5)") and not any_of(names, "by NumPy")


def test_cnn_04_notices_a_dilation_that_is_ignored(monkeypatch):
    right = convolutional_networks.correlate
    monkeypatch.setattr(convolutional_networks, "correlate", lambda x, w, dilation=1, **how: right(x, w, **how))
    assert any_of(wrong("CNN-04"), "kernel of 5 with zeros")


def test_cnn_05_and_09_notice_a_matrix_that_is_transposed(monkeypatch):
    right = convolutional_networks.matrix
    monkeypatch.setattr(convolutional_networks, "matrix", lambda w, size, **how: right(w.flip(tuple(range(2, w.ndim))), size, **how))
    assert any_of(wrong("CNN-05"), "does what the layer does")
    assert any_of(wrong("CNN-09"), "rows (w1 w2 0 w3 w4 0 0 0 0)")


def test_cnn_06_notices_channels_that_are_not_checked(monkeypatch):
    right = convolutional_networks.correlate
    monkeypatch.setattr(convolutional_networks, "correlate", lambda x, w, **how: right(x[:, : w.shape[1]], w, **how))
    assert any_of(wrong("CNN-06"), "a kernel of 3 channels")


def test_cnn_07_notices_a_formula_without_the_strides(monkeypatch):
    right = convolutional_networks.cost

    def flat(net, size):
        cost = right(net, size)
        field = 1
        for row, layer in zip(cost.rows, net, strict=True):
            field += layer.kernel_size[0] - 1
            object.__setattr__(row, "field", (field, field))
        return cost

    monkeypatch.setattr(convolutional_networks, "cost", flat)
    names = wrong("CNN-07")
    assert any_of(names, "strides") and any_of(names, "dilations") and not any_of(names, "3, 3, 3")


def test_cnn_08_notices_a_transposed_kernel(monkeypatch):
    right = convolutional_networks.correlate
    monkeypatch.setattr(
        convolutional_networks,
        "correlate",
        lambda x, w, **how: right(x, w.transpose(2, 3), **how) if w.shape[2] == w.shape[3] else right(x, w, **how),
    )
    assert any_of(wrong("CNN-08"), "(0 1; 2 3)")


def test_cnn_10_notices_a_division_that_rounds_up(monkeypatch):
    monkeypatch.setattr(convolutional_networks, "output_size", lambda size, f, s=1, padding=0: -(-(size + 2 * padding - f) // s) + 1)
    names = wrong("CNN-10")
    assert any_of(names, "rounded down") and any_of(names, "the two formulas differ")


def test_cnn_13_notices_windows_at_the_wrong_places(monkeypatch):
    monkeypatch.setattr(
        convolutional_networks, "output_size", lambda size, f, s=1, padding=0: convolution.output_size(size, f, s, padding) - 1
    )
    assert any_of(wrong("CNN-13"), "pool 5/2")


def test_cnn_14_notices_a_border_that_breaks_the_symmetry(monkeypatch):
    right = torch.nn.Conv2d
    monkeypatch.setattr(convolutional_networks.nn, "Conv2d", lambda *args, padding_mode="zeros", **how: right(*args, **how))
    assert any_of(wrong("CNN-14"), "shifting by 1") and any_of(wrong("CNN-14"), "global pooling")


def test_cnn_15_notices_weights_that_differ_from_place_to_place(monkeypatch):
    right = torch.autograd.functional.jacobian

    def untied(function, x):
        jacobian = right(function, x)
        return jacobian * torch.linspace(1, 2, jacobian.shape[1])[:, None, None, None, None]

    monkeypatch.setattr(torch.autograd.functional, "jacobian", untied)
    assert any_of(wrong("CNN-15"), "the same weights")


def test_cnn_17_notices_a_corner_detector_that_likes_lines(monkeypatch):
    right = convolutional_networks.correlate
    monkeypatch.setattr(convolutional_networks, "correlate", lambda x, w, **how: right(x, w, **how) + 1.5 * (w.shape[1] == 2))
    assert any_of(wrong("CNN-17"), "two-layer net fires")


@pytest.mark.slow
def test_cnn_18_notices_a_network_that_learns_nothing(monkeypatch):
    right = convolutional_networks.optimizer
    monkeypatch.setattr(convolutional_networks, "optimizer", lambda name, lr: right(name, lr=1e-9))
    assert any_of(wrong("CNN-18"), "a series")
