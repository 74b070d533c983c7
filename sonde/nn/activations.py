"""Activations by name, each with its formula, its range and its derivative.

An activation is a function here; its keyword arguments are its settings, its first docstring line is its formula:

    activation("leaky_relu", slope=0.2)      a new module
    describe("gelu")                         with range and derivative
    register(my_function)                    adds one of your own, found by its name like the others

`measure` confirms interval and derivative by computing both, so what a table shows was measured.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, final

import torch
from torch import Tensor, nn

from ..core.errors import BadInput, nearest
from ..core.options import Range, resolve
from .threshold import StepActivation

Slope = Callable[[Tensor], Tensor]
INF = math.inf


@final
class Interval(NamedTuple):
    """An interval: '(' and ')' are open ends, '[' and ']' closed ends, '{}' two values."""

    low: float = -INF
    high: float = INF
    ends: str = "()"

    def __str__(self) -> str:
        return f"{self.ends[0]}{_end_text(self.low)}, {_end_text(self.high)}{self.ends[1]}"


@final
@dataclass(frozen=True)
class Activation:
    """A module with its range and derivative."""

    module: nn.Module
    range: Interval = Interval()
    slope: str = ""
    """the derivative in symbols; g stands for the value itself"""
    derivative: Slope | None = None
    """the same as a function: elementwise, or (..., C) -> (..., C, C) where one output looks at all inputs"""
    elementwise: bool = True


def activation(name: str, **settings: Any) -> nn.Module:
    """A new activation module."""
    return describe(name, **settings).module


def describe(name: str, **settings: Any) -> Activation:
    """A new activation with formula, range and derivative."""
    if name not in _KNOWN:
        raise BadInput(f"no activation '{name}'", fix=nearest(name, _KNOWN))
    known = _KNOWN[name]
    new_activation = known(**resolve(known, settings, f"activation '{name}'")) if settings else known()
    return new_activation if isinstance(new_activation, Activation) else Activation(new_activation)


def names() -> list[str]:
    """Names that `activation` takes, a user's own last; 'swish' is another name of 'silu'."""
    return [name for name, make in _KNOWN.items() if make.__name__ == name]


def formula(name: str) -> str:
    """The definition in symbols: the first line of the docstring."""
    return (inspect.getdoc(_KNOWN[name]) or "").split("\n")[0].rstrip(".")


def register(make: Callable[..., nn.Module | Activation]) -> Callable[..., nn.Module | Activation]:
    """Add an activation under the name of the function that makes it; it returns a module, or an Activation with range and derivative."""
    name = getattr(make, "__name__", "")
    if not name.isidentifier():
        raise BadInput("an activation is registered under the name of a function", where="register", fix="write def my_name(): ...")
    if name in _OWN:
        raise BadInput(f"'{name}' is an activation of Sonde", where="register", fix="choose another name")
    new_activation = make()
    if not isinstance(new_activation.module if isinstance(new_activation, Activation) else new_activation, nn.Module):
        raise BadInput(f"'{name}' gives {type(new_activation).__name__}", where="register", fix="return an nn.Module or an Activation")
    _KNOWN[name] = make
    return make


def forget(name: str) -> None:
    """Take back what `register` added."""
    if name not in _KNOWN or name in _OWN:
        raise BadInput(f"no activation '{name}' was registered", where="forget", fix=nearest(name, set(_KNOWN) - set(_OWN)))
    del _KNOWN[name]


def identity() -> Activation:
    """a."""
    return Activation(nn.Identity(), Interval(), "1", torch.ones_like)


def step(at_zero: Annotated[float, Range(0, 1)] = 1.0) -> Activation:
    """1 if a >= 0 else 0.

    Args:
        at_zero: the value at exactly 0: 1, 0 or 0.5
    """
    return Activation(StepActivation(at_zero), Interval(0, 1, "{}"), "0", torch.zeros_like)


def sigmoid() -> Activation:
    """1 / (1 + e^-a)."""
    return Activation(nn.Sigmoid(), Interval(0, 1), "g (1 - g)", lambda a: a.sigmoid() * (-a).sigmoid())


def tanh() -> Activation:
    """(e^a - e^-a) / (e^a + e^-a)."""
    return Activation(nn.Tanh(), Interval(-1, 1), "1 - g^2", lambda a: 1 - a.tanh() ** 2)


def relu() -> Activation:
    """max(a, 0)."""
    return Activation(nn.ReLU(), Interval(0, INF, "[)"), "1 if a > 0 else 0", lambda a: (a > 0).to(a))


def leaky_relu(slope: Annotated[float, Range(0, 1)] = 0.01) -> Activation:
    """max(a, 0) + alpha min(a, 0).

    Args:
        slope: alpha, the slope below 0; 0 is ReLU and 1 the identity
    """
    interval = Interval() if slope > 0 else Interval(0, INF, "[)")
    return Activation(nn.LeakyReLU(slope), interval, "1 if a > 0 else alpha", lambda a: torch.where(a > 0, torch.ones_like(a), slope))


def softplus() -> Activation:
    """log(1 + e^a)."""
    # torch returns a itself above a threshold: an error of 2e-9 at the default of 20, none at 50.
    return Activation(nn.Softplus(threshold=50), Interval(0, INF), "sigmoid(a)", torch.sigmoid)


def elu(alpha: Annotated[float, Range(above=0)] = 1.0) -> Activation:
    """max(a, 0) + min(alpha (e^a - 1), 0).

    Args:
        alpha: -alpha is the lower limit
    """
    return Activation(nn.ELU(alpha), Interval(-alpha, INF), "1 if a > 0 else g + alpha", lambda a: torch.where(a > 0, 1.0, alpha * a.exp()))


def silu() -> Activation:
    """a sigmoid(a); also called swish."""
    lowest = Interval(-0.27846454276107380, INF, "[)")
    return Activation(nn.SiLU(), lowest, "g + sigmoid(a) (1 - g)", lambda a: a.sigmoid() * (1 + a * (-a).sigmoid()))


def gelu() -> Activation:
    """a Phi(a), Phi the normal distribution."""
    lowest = Interval(-0.16997120747990366, INF, "[)")
    return Activation(nn.GELU(), lowest, "Phi(a) + a phi(a)", lambda a: torch.special.ndtr(a) + a * _gaussian_density(a))


def gelu_tanh() -> Activation:
    """a (1 + tanh(sqrt(2/pi) (a + 0.044715 a^3))) / 2."""

    def slope(a: Tensor) -> Tensor:
        t = torch.tanh(math.sqrt(2 / math.pi) * (a + 0.044715 * a**3))
        return (1 + t) / 2 + a / 2 * (1 - t**2) * math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * a**2)

    lowest = Interval(-0.17004075057125405, INF, "[)")
    return Activation(nn.GELU("tanh"), lowest, "(1 + t) / 2 + a t' / 2, t the tanh", slope)


def sine(frequency: Annotated[float, Range(above=0)] = 1.0) -> Activation:
    """sin(a).

    Args:
        frequency: factor on a
    """
    return Activation(_Sine(frequency), Interval(-1, 1, "[]"), "cos(a)", lambda a: frequency * torch.cos(frequency * a))


def softmax() -> Activation:
    """e^z_i / sum_j e^z_j, over the last axis."""

    def jacobian(z: Tensor) -> Tensor:
        s = z.softmax(-1)
        return torch.diag_embed(s) - s.unsqueeze(-1) * s.unsqueeze(-2)

    return Activation(nn.Softmax(-1), Interval(0, 1), "g_i (delta_ij - g_j)", jacobian, elementwise=False)


@final
class _Sine(nn.Module):
    def __init__(self, frequency: float) -> None:
        super().__init__()
        self.frequency = frequency

    def forward(self, a: Tensor) -> Tensor:
        return torch.sin(self.frequency * a)


def _gaussian_density(a: Tensor) -> Tensor:
    return torch.exp(-(a**2) / 2) / math.sqrt(2 * math.pi)


class MeasuredActivation(NamedTuple):
    """Measured range and derivative of an activation."""

    low: float
    high: float
    inside: bool
    """no value beyond the interval claimed, none on an open end, and both ends approached"""
    gap: float
    """largest difference between the derivative claimed and the one autograd gives; NaN where none is claimed"""


def measure(known: Activation, reach: float = 16.0, steps: int = 3201) -> MeasuredActivation:
    """Values and derivative of an activation on an even grid over [-reach, reach], in float64.

    One that is not elementwise is measured on (a, 0), where softmax is the sigmoid.
    """
    # At most 18: beyond it 1 - tanh rounds to 0, and an open end looks closed.
    a = torch.linspace(-reach, reach, steps, dtype=torch.float64)
    x = a if known.elementwise else torch.stack([a, torch.zeros_like(a)], 1)
    module = known.module.double()
    with torch.no_grad():
        value = module(x)
        half = value[a.abs() <= reach / 2]
    low, high = float(value.min()), float(value.max())
    fits = _approaches(low, float(half.min()), known.range.low, known.range.ends[0] == "(", -1.0)
    fits = fits and _approaches(high, float(half.max()), known.range.high, known.range.ends[1] == ")", 1.0)
    return MeasuredActivation(low, high, fits, _gap(known, module, x))


def _approaches(seen: float, halfway: float, end: float, opened: bool, side: float) -> bool:
    """The most extreme value seen lies inside the end and close to it, or still grows where there is no end."""
    if math.isinf(end):
        return side * seen > 1.1 * side * halfway > 0
    beyond = side * (seen - end)
    return -1e-4 < beyond < 0 if opened else -1e-4 < beyond <= 1e-12


def _gap(known: Activation, module: nn.Module, x: Tensor) -> float:
    if known.derivative is None:
        return math.nan
    derivative = torch.func.vmap(torch.func.jacrev(module))(x)
    return float((derivative - known.derivative(x)).abs().max())


def _end_text(end: float) -> str:
    return f"{end:.5g}" if math.isfinite(end) else "-inf" if end < 0 else "inf"


_ALL = (identity, step, sigmoid, tanh, relu, leaky_relu, softplus, elu, silu, gelu, gelu_tanh, sine, softmax)
_OWN = {make.__name__: make for make in _ALL} | {"swish": silu}
_KNOWN: dict[str, Callable[..., nn.Module | Activation]] = dict(_OWN)
