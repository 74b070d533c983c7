"""Is a gradient right?  Each number is moved a little, and the change of the loss is compared with what the gradient said.

    central:  dL/dx_i ~ (L(x + h e_i) - L(x - h e_i)) / 2h     2 P passes for P numbers, error of order h^2
    one side: dL/dx_i ~ (L(x + h e_i) - L(x)) / h              P + 1 passes, error of order h

That is also the naive way to a gradient, and its price beside one backward pass is part of the answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from ..core.errors import BadInput
from .modes import Point, _flat, _join, _named, _one_number, gradient


@dataclass(frozen=True)
class Check:
    """What a check found.  Errors are relative to the larger of both numbers, but at least 1 % of the largest entry."""

    error: float
    """the largest relative error"""
    worst: str
    """the element it was found at, such as 'x[2, 3]'"""
    said: float
    """the gradient there"""
    measured: float
    """the difference quotient there"""
    passes: int
    """forward passes that the differences took"""
    multiplies: int
    """multiplications of those passes"""
    backward_multiplies: int
    """multiplications of the one backward pass (with its forward pass) that gives the same numbers"""

    def __str__(self) -> str:
        return (
            f"relative error {self.error:.2g} at {self.worst}; {self.passes:,} passes with {self.multiplies:,} multiplications, "
            f"backpropagation {self.backward_multiplies:,}"
        )


def gradcheck(
    f: Callable[..., Tensor],
    x: Point,
    claim: Callable[[Any], Any] | None = None,
    tolerance: float = 1e-6,
    sides: Literal[1, 2] = 2,
) -> Check:
    """Compare a gradient with differences, and fail in one line that names the worst element.

    claim: the gradient to check, as a function of x; autograd's where none is given
    """
    if sides not in (1, 2):
        raise BadInput(f"a difference has one side or two, not {sides!r}", fix="sides=2 is the more exact")
    f = _one_number(f, x)
    names, flat = _flat(x)
    labels = [label.strip("'") for label in _named(x)[0]]
    if any(part.dtype != torch.float64 for part in flat):
        raise BadInput("differences need float64: smaller numbers drown in rounding", fix="pass x.double()")
    said = _flat(claim(x) if claim else gradient(f, x))[1]
    for label, part, value in zip(labels, flat, said, strict=True):
        if part.shape != value.shape:
            raise BadInput(f"the gradient of {label} has size {tuple(value.shape)}, not {tuple(part.shape)}", fix="check its axes")
    measured, passes = _differences(lambda parts: float(f(_join(x, names, tuple(parts)))), flat, sides)
    if not all(bool(part.isfinite().all()) for part in (*said, *measured)):
        raise BadInput("the gradient or its differences are not finite", fix="choose a point inside the domain")
    scale = 0.01 * max(float(part.abs().max()) for part in (*said, *measured) if part.numel())
    label, error, a, b = max((_worst(*pair, scale) for pair in zip(labels, said, measured, strict=True)), key=lambda found: found[1])
    found = Check(error, label, a, b, passes, *_price(f, x, passes))
    if error > tolerance:
        raise BadInput(
            f"the gradient is wrong at {label}: it says {a:.8g}, differences say {b:.8g} (relative error {error:.2g})",
            fix="check the derivative of this element",
        )
    return found


def _differences(f: Callable[[list[Tensor]], float], flat: list[Tensor], sides: int) -> tuple[list[Tensor], int]:
    """Difference quotients of every number, and the passes they took."""
    passes = 0

    def at(parts: list[Tensor]) -> float:
        nonlocal passes
        passes += 1
        with torch.no_grad():
            return f(parts)

    parts = [part.detach().clone() for part in flat]
    middle = at(parts) if sides == 1 else 0.0
    found = [torch.zeros_like(part) for part in parts]
    step = math.pow(torch.finfo(torch.float64).eps, 1 / (1 + sides))  # where rounding and curvature cost the same
    for part, quotient in zip(parts, found, strict=True):
        line, out = part.view(-1), quotient.view(-1)
        for i in range(line.numel()):
            here = float(line[i])
            h = step * max(1.0, abs(here))
            line[i] = here + h
            up, above = at(parts), float(line[i])
            if sides == 1:
                out[i] = (up - middle) / (above - here)
            else:
                line[i] = here - h
                out[i] = (up - at(parts)) / (above - float(line[i]))
            line[i] = here
    return found, passes


def _worst(label: str, said: Tensor, measured: Tensor, scale: float) -> tuple[str, float, float, float]:
    if not said.numel():
        return label, 0.0, 0.0, 0.0
    errors = (said - measured).abs() / torch.maximum(said.abs(), measured.abs()).clamp(min=max(scale, 1e-300))
    place = int(errors.argmax())
    index = [int(i) for i in torch.unravel_index(torch.tensor(place), said.shape)]
    return f"{label}{index or ''}", float(errors.view(-1)[place]), float(said.reshape(-1)[place]), float(measured.reshape(-1)[place])


def _price(f: Callable[..., Tensor], x: Point, passes: int) -> tuple[int, int]:
    from .graph import trace

    names, flat = _flat(x)

    def bound(*parts: Tensor) -> Tensor:
        return f(_join(x, names, parts))

    once = trace(bound, *flat).multiplies
    back = trace(torch.func.grad_and_value(bound, argnums=tuple(range(len(flat)))), *flat).multiplies
    return once * passes, back
