"""First weights by name: each rule fills the weights of dense and convolution layers and sets their biases to 0.

fan_in is the number of inputs one output looks at, fan_out the number of outputs one input reaches.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.nn import init
from torch.nn.modules.conv import _ConvNd

from ..core.dials import Range, resolve
from ..core.errors import BadInput, nearest

Rule = Callable[[Tensor], Any]
Scale = Annotated[float, Range(least=0)]


def initialise(name: str, **settings: Any) -> Callable[[nn.Module], None]:
    """A function that sets the first weights of a model: `initialise("he_normal")`, `initialise("normal", std=0.02)`."""
    if name not in _KNOWN:
        raise BadInput(f"no initialiser '{name}'", fix=nearest(name, _KNOWN))
    rule = _KNOWN[name](**resolve(_KNOWN[name], settings, f"initialiser '{name}'"))
    return partial(_fill, rule)


def names() -> list[str]:
    """Names that `initialise` takes."""
    return sorted(_KNOWN)


@torch.no_grad()
def _fill(rule: Rule, model: nn.Module) -> None:
    for layer in model.modules():
        if isinstance(layer, (nn.Linear, _ConvNd)):
            rule(layer.weight)
            if layer.bias is not None:
                init.zeros_(layer.bias)


def xavier_uniform(gain: Scale = 1.0) -> Rule:
    """Uniform, variance gain^2 * 2 / (fan_in + fan_out): signals and gradients of linear layers keep their size."""
    return partial(init.xavier_uniform_, gain=gain)


def xavier_normal(gain: Scale = 1.0) -> Rule:
    """Normal, variance gain^2 * 2 / (fan_in + fan_out)."""
    return partial(init.xavier_normal_, gain=gain)


def he_uniform() -> Rule:
    """Uniform, variance 2 / fan_in: signals keep their size through layers with ReLU, which drops half of them."""
    return partial(init.kaiming_uniform_, nonlinearity="relu")


def he_normal() -> Rule:
    """Normal, variance 2 / fan_in."""
    return partial(init.kaiming_normal_, nonlinearity="relu")


def lecun_normal() -> Rule:
    """Normal, variance 1 / fan_in: signals of linear layers keep their size."""
    return partial(init.kaiming_normal_, nonlinearity="linear")


def orthogonal(gain: Scale = 1.0) -> Rule:
    """A random rotation: products of many such matrices neither grow nor shrink."""
    return partial(init.orthogonal_, gain=gain)


def normal(std: Scale = 0.02) -> Rule:
    """Normal with a given standard deviation."""
    return partial(init.normal_, std=std)


def uniform(std: Scale = 0.02) -> Rule:
    """Uniform around 0 with a given standard deviation."""
    return partial(init.uniform_, a=-std * math.sqrt(3), b=std * math.sqrt(3))


def constant(value: float = 0.1) -> Rule:
    """The same number everywhere, which shows why symmetry must be broken."""
    return partial(init.constant_, val=value)


def zeros() -> Rule:
    """All zero."""
    return init.zeros_


_RULES = (xavier_uniform, xavier_normal, he_uniform, he_normal, lecun_normal, orthogonal, normal, uniform, constant, zeros)
_KNOWN: dict[str, Callable[..., Rule]] = {rule.__name__: rule for rule in _RULES}
