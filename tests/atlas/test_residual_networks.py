"""Mistakes about residual networks and norms, made on purpose, that turn chapter 12 red."""

from __future__ import annotations

import torch
from torch import nn

from sonde.atlas import residual_networks
from sonde.nn import residual
from tests.atlas.mistakes import Mistakes


def untrained(monkeypatch):
    """Training takes two steps: for mistakes that show without it."""
    right = residual_networks._recipe
    monkeypatch.setattr(residual_networks, "_recipe", lambda model, data, steps, **more: right(model, data, 2, **more))


mistakes = Mistakes()

mistakes.add("RES-01", "a block that forgets its input", red="H(x) - F(x)").replace(
    residual.Residual, "forward", lambda self, x: self.branch(x)
)
mistakes.add("RES-01", "a branch that does not begin as zero", red=("F = 0, nothing after the sum", "F = 0, ReLU")).replace(
    residual_networks.resnet, "ResNet", lambda right, *args, zero=False, **more: right(*args, **more)
)
mistakes.add(
    "RES-02", "a skip that is not scaled", red=("lambda 0.5: gradient", "50 blocks with F = 0, lambda 0.9"), green="lambda 1:"
).replace(residual.Residual, "forward", lambda self, x: self.branch(x) + x)
mistakes.add("RES-03", "layers that are no identity", red="36 identity layers", setup=untrained).replace(
    residual_networks, "_zero", lambda layer: layer
)
mistakes.add("RES-04", "a residual block without its skip", red="distance of H(x) from x").replace(
    residual.Residual, "forward", lambda self, x: self.branch(x)
)
mistakes.add("RES-05", "weights of another size", red="over 2, 4, 8, 16", green="over 2, 3, 4, 5").replace(
    residual_networks.torch, "relu", lambda right, h: 0.7 * right(h)
)
mistakes.add("RES-06", "a variance that is not divided out", red="with torch's layer").replace(
    residual_networks, "_normalize", lambda right, x, axes, eps=1e-5: right(x, axes, 1.0)
)
mistakes.add("RES-07", "statistics over the batch", red=("one token", "of an image")).replace(
    residual_networks, "_normalize", lambda right, x, axes: right(x, (0,))
)
mistakes.add("RES-08", "a padding that is not there", red=("572 x 572", "IoU on held-out"), setup=untrained).replace(
    residual_networks.UNet, "output_size", lambda right, self, size: tuple(n + 2 for n in right(self, size))
)
mistakes.add("RES-10", "layers that are not frozen", red=("layers that learn", "bit for bit"), setup=untrained).replace(
    residual_networks, "freeze", lambda right, model, *patterns: right(model, "0.1.bias")
)


# Variances may be right where no block does anything but scale what it is given.
@mistakes.add("RES-05", "sums that grow without a branch", red=("over 1/2", "over 1/(k + 1)"), count=2).replace(
    residual_networks, "_states"
)
def scaled(width, blocks, norm, rng):
    k = torch.arange(blocks + 1.0)[:, None, None]
    return (k + 1 if norm else 2**k).sqrt() * torch.randn(32, width)


@mistakes.add("RES-09", "a layer too many", check=lambda names: len(names) >= 5).replace(residual_networks, "published_model")
def longer(right, name):
    net = right(name)
    net.extra = nn.Linear(1000, 10, device="meta")
    return net


@mistakes.each
def test_notices(mistake, monkeypatch):
    mistake.assert_noticed(monkeypatch)
