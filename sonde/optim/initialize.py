"""First weights by name: each rule fills the weights of dense and convolution layers and sets their biases to 0.

fan_in is the number of inputs one output looks at, fan_out the number of outputs one input reaches.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import init
from torch.nn.modules.conv import _ConvNd

from ..core.errors import BadInput, nearest
from ..core.options import Range, resolve

Initializer = Callable[[Tensor], Any]
Scale = Annotated[float, Range(least=0)]
DistributionShape = Literal["normal", "uniform"]
"""the distribution to draw from; its variance is the same"""


def initialize(name: str, **settings: Any) -> Callable[[nn.Module], None]:
    """A function that sets the first weights of a model: `initialize("he_normal")`, `initialize("normal", std=0.02)`."""
    if name not in _KNOWN:
        raise BadInput(f"no initializer '{name}'", fix=nearest(name, _KNOWN))
    rule = _KNOWN[name](**resolve(_KNOWN[name], settings, f"initializer '{name}'"))
    return partial(_fill, rule)


def names() -> list[str]:
    """Names that `initialize` takes."""
    return sorted(_KNOWN)


@torch.no_grad()
def _fill(rule: Initializer, model: nn.Module) -> None:
    for layer in model.modules():
        if isinstance(layer, (nn.Linear, _ConvNd)):
            rule(layer.weight)
            if layer.bias is not None:
                init.zeros_(layer.bias)


def fan_in(gain: Scale = 1.0, distribution: DistributionShape = "normal") -> Initializer:
    """Variance gain^2 / fan_in: signals of linear layers keep their size on the way forward."""
    return partial(_fill_scaled, lambda inputs, outputs: inputs, gain, distribution)


def fan_out(gain: Scale = 1.0, distribution: DistributionShape = "normal") -> Initializer:
    """Variance gain^2 / fan_out: gradients of linear layers keep their size on the way back."""
    return partial(_fill_scaled, lambda inputs, outputs: outputs, gain, distribution)


def xavier(gain: Scale = 1.0, distribution: DistributionShape = "normal") -> Initializer:
    """Variance gain^2 * 2 / (fan_in + fan_out): between the two, for signals and gradients alike (Glorot, Bengio 2010)."""
    return partial(_fill_scaled, lambda inputs, outputs: (inputs + outputs) / 2, gain, distribution)


def _fill_scaled(fan: Callable[[int, int], float], gain: float, distribution: DistributionShape, weight: Tensor) -> Tensor:
    std = gain / math.sqrt(fan(*init._calculate_fan_in_and_fan_out(weight)))
    return init.normal_(weight, std=std) if distribution == "normal" else init.uniform_(weight, -std * math.sqrt(3), std * math.sqrt(3))


def xavier_uniform(gain: Scale = 1.0) -> Initializer:
    """Uniform, variance gain^2 * 2 / (fan_in + fan_out): signals and gradients of linear layers keep their size."""
    return partial(init.xavier_uniform_, gain=gain)


def xavier_normal(gain: Scale = 1.0) -> Initializer:
    """Normal, variance gain^2 * 2 / (fan_in + fan_out)."""
    return partial(init.xavier_normal_, gain=gain)


def he_uniform() -> Initializer:
    """Uniform, variance 2 / fan_in: signals keep their size through layers with ReLU, which drops half of them."""
    return partial(init.kaiming_uniform_, nonlinearity="relu")


def he_normal() -> Initializer:
    """Normal, variance 2 / fan_in."""
    return partial(init.kaiming_normal_, nonlinearity="relu")


def lecun_normal() -> Initializer:
    """Normal, variance 1 / fan_in: signals of linear layers keep their size."""
    return partial(init.kaiming_normal_, nonlinearity="linear")


def lecun_uniform() -> Initializer:
    """Uniform, variance 1 / fan_in."""
    return partial(init.kaiming_uniform_, nonlinearity="linear")


def orthogonal(gain: Scale = 1.0) -> Initializer:
    """A random rotation: products of many such matrices neither grow nor shrink."""
    return partial(init.orthogonal_, gain=gain)


def normal(std: Scale = 0.02) -> Initializer:
    """Normal with a given standard deviation."""
    return partial(init.normal_, std=std)


def uniform(std: Scale = 0.02) -> Initializer:
    """Uniform around 0 with a given standard deviation."""
    return partial(init.uniform_, a=-std * math.sqrt(3), b=std * math.sqrt(3))


def truncated_normal(std: Scale = 0.02) -> Initializer:
    """Normal with a given standard deviation before everything beyond two of them is drawn again."""
    return partial(_fill_truncated, std)


def _fill_truncated(std: float, weight: Tensor) -> Tensor:
    return init.trunc_normal_(weight, std=1.0, a=-2.0, b=2.0).mul_(std)


def constant(value: float = 0.1) -> Initializer:
    """The same number everywhere, which shows why symmetry must be broken."""
    return partial(init.constant_, val=value)


def zeros() -> Initializer:
    """All zero."""
    return init.zeros_


_SCALED = (fan_in, fan_out, xavier, xavier_uniform, xavier_normal, he_uniform, he_normal, lecun_uniform, lecun_normal)
_RULES = (*_SCALED, orthogonal, normal, uniform, truncated_normal, constant, zeros)
_KNOWN: dict[str, Callable[..., Initializer]] = {rule.__name__: rule for rule in _RULES}
