"""Activations by name."""

from __future__ import annotations

from torch import nn

from ..core.errors import BadInput, nearest

_KNOWN: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "softplus": nn.Softplus,
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
    "identity": nn.Identity,
}


def activation(name: str) -> nn.Module:
    """A new activation module."""
    if name not in _KNOWN:
        raise BadInput(f"no activation '{name}'", fix=nearest(name, _KNOWN))
    return _KNOWN[name]()
