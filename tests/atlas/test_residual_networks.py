"""Mistakes about residual networks and norms, made on purpose, that turn chapter 12 red."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sonde.atlas import residual_networks
from sonde.models import resnet
from sonde.nn import residual
from tests.atlas.mistakes import any_of, wrong


@pytest.fixture
def untrained(monkeypatch):
    """Training takes two steps: for mistakes that show without it."""
    right = residual_networks._recipe
    monkeypatch.setattr(residual_networks, "_recipe", lambda model, data, steps, **more: right(model, data, 2, **more))


def test_res_01_notices_a_block_that_forgets_its_input(monkeypatch):
    monkeypatch.setattr(residual.Residual, "forward", lambda self, x: self.branch(x))
    assert any_of(wrong("RES-01"), "H(x) - F(x)")


def test_res_01_notices_a_branch_that_does_not_begin_as_zero(monkeypatch):
    right = resnet.ResNet
    monkeypatch.setattr(residual_networks.resnet, "ResNet", lambda *args, zero=False, **more: right(*args, **more))
    names = wrong("RES-01")
    assert any_of(names, "F = 0, nothing after the sum") and any_of(names, "F = 0, ReLU")


def test_res_02_notices_a_skip_that_is_not_scaled(monkeypatch):
    monkeypatch.setattr(residual.Residual, "forward", lambda self, x: self.branch(x) + x)
    names = wrong("RES-02")
    assert any_of(names, "lambda 0.5: gradient") and any_of(names, "50 blocks with F = 0, lambda 0.9") and not any_of(names, "lambda 1:")


def test_res_03_notices_layers_that_are_no_identity(monkeypatch, untrained):
    monkeypatch.setattr(residual_networks, "_zero", lambda layer: layer)
    assert any_of(wrong("RES-03"), "36 identity layers")


def test_res_04_notices_a_residual_block_without_its_skip(monkeypatch):
    monkeypatch.setattr(residual.Residual, "forward", lambda self, x: self.branch(x))
    assert any_of(wrong("RES-04"), "distance of H(x) from x")


def test_res_05_notices_weights_of_another_size(monkeypatch):
    right = torch.relu
    monkeypatch.setattr(residual_networks.torch, "relu", lambda h: 0.7 * right(h))
    names = wrong("RES-05")
    assert any_of(names, "over 2, 4, 8, 16") and not any_of(names, "over 2, 3, 4, 5")


def test_res_05_notices_sums_that_grow_without_a_branch(monkeypatch):
    """Variances may be right where no block does anything but scale what it is given."""

    def scaled(width, blocks, norm, dice):
        k = torch.arange(blocks + 1.0)[:, None, None]
        return (k + 1 if norm else 2**k).sqrt() * torch.randn(32, width)

    monkeypatch.setattr(residual_networks, "_states", scaled)
    names = wrong("RES-05")
    assert len(names) == 2 and any_of(names, "over 1/2") and any_of(names, "over 1/(k + 1)")


def test_res_06_notices_a_variance_that_is_not_divided_out(monkeypatch):
    right = residual_networks._normalize
    monkeypatch.setattr(residual_networks, "_normalize", lambda x, axes, eps=1e-5: right(x, axes, 1.0))
    assert any_of(wrong("RES-06"), "with torch's layer")


def test_res_07_notices_statistics_over_the_batch(monkeypatch):
    right = residual_networks._normalize
    monkeypatch.setattr(residual_networks, "_normalize", lambda x, axes: right(x, (0,)))
    names = wrong("RES-07")
    assert any_of(names, "one token") and any_of(names, "of an image")


def test_res_08_notices_a_padding_that_is_not_there(monkeypatch, untrained):
    right = residual_networks.UNet.output_size
    monkeypatch.setattr(residual_networks.UNet, "output_size", lambda self, size: tuple(n + 2 for n in right(self, size)))
    names = wrong("RES-08")
    assert any_of(names, "572 x 572") and any_of(names, "IoU on held-out")


def test_res_09_notices_a_layer_too_many(monkeypatch):
    right = residual_networks.published

    def longer(name):
        net = right(name)
        net.extra = nn.Linear(1000, 10, device="meta")
        return net

    monkeypatch.setattr(residual_networks, "published", longer)
    assert len(wrong("RES-09")) >= 5


def test_res_10_notices_layers_that_are_not_frozen(monkeypatch, untrained):
    right = residual_networks.freeze
    monkeypatch.setattr(residual_networks, "freeze", lambda model, *patterns: right(model, "0.1.bias"))
    names = wrong("RES-10")
    assert any_of(names, "layers that learn") and any_of(names, "bit for bit")
