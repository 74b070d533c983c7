"""Check a gradient by finite differences: each number is changed a little, and the change of the loss is compared.

    central:  dL/dx_i ~ (L(x + h e_i) - L(x - h e_i)) / 2h     2 P passes for P numbers, error of order h^2
    one side: dL/dx_i ~ (L(x + h e_i) - L(x)) / h              P + 1 passes, error of order h

The cost of the differences is reported next to that of one backward pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from ..core.errors import BadInput
from ..core.options import checked
from .modes import Tensors, _flat, _join, _names_and_values, _one_number, gradient

EPS = torch.finfo(torch.float64).eps


@dataclass(frozen=True)
class Check:
    """The result of a check.  Errors are relative to the larger of both numbers; errors below the resolution of differences pass."""

    error: float
    """the largest relative error"""
    worst: str
    """the element with this error, such as 'x[2, 3]'"""
    claimed: float
    """the gradient of this element"""
    measured: float
    """the difference quotient of this element"""
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


@checked
def gradcheck(
    f: Callable[..., Tensor],
    x: Tensors,
    claim: Callable[[Any], Any] | None = None,
    tolerance: float = 1e-6,
    sides: Literal[1, 2] = 2,
) -> Check:
    """Compare a gradient with differences, and fail in one line that names the worst element.

    Args:
        claim: the gradient to check, as a function of x; by default that of autograd
        sides: 2 for central differences, 1 for one-sided ones, which take about half the passes
    """
    f = _one_number(f, x)
    names, flat = _flat(x)
    labels = [label.strip("'") for label in _names_and_values(x)[0]]
    if any(part.dtype != torch.float64 for part in flat):
        raise BadInput("finite differences need float64 because of rounding errors", fix="pass x.double()")
    if not any(part.numel() for part in flat):
        raise BadInput("x is empty", fix="give a tensor that is not empty")
    analytic = _claim_parts(claim(x), x) if claim else _flat(gradient(f, x))[1]
    for label, part, value in zip(labels, flat, analytic, strict=True):
        if part.shape != value.shape:
            raise BadInput(f"the gradient of {label} has size {tuple(value.shape)}, not {tuple(part.shape)}", fix="check its axes")
    measured, steps, level, passes = _differences(lambda parts: float(f(_join(x, names, tuple(parts)))), flat, sides)
    if not all(bool(part.isfinite().all()) for part in (*analytic, *measured)):
        raise BadInput("the gradient or its differences are not finite", fix="choose a point inside the domain")
    # The resolution of differences: curvature of the size of the largest entry, and a few rounding errors of the value.
    largest = max(float(part.abs().max()) for part in (*analytic, *measured) if part.numel())
    bent = 10 * _step(sides) ** sides * largest
    blurs = [bent + 4 * EPS * level / h for h in steps]
    elements = zip(labels, analytic, measured, [blur / tolerance for blur in blurs], strict=True)
    label, error, a, b = max((_worst(*element) for element in elements), key=lambda report: report[1])
    report = Check(error, label, a, b, passes, *_price(f, x, passes))
    if error > tolerance:
        raise BadInput(
            f"the gradient is wrong at {label}: it is {a:.8g}, differences give {b:.8g} (relative error {error:.2g})",
            fix="check the derivative of this element",
        )
    return report


def _claim_parts(claim: Any, x: Tensors) -> list[Tensor]:
    """The parts of a claimed gradient in the order of x."""
    if isinstance(x, Tensor):
        parts = {"x": claim}
    elif not isinstance(claim, Mapping) or claim.keys() != x.keys():
        detail = ", ".join(map(str, claim)) if isinstance(claim, Mapping) else f"a {type(claim).__name__}"
        raise BadInput(f"the gradient must name {', '.join(x)}, not {detail}", fix="give one tensor for each name in x")
    else:
        parts = {name: claim[name] for name in x}
    for name, part in parts.items():
        if not isinstance(part, Tensor):
            raise BadInput(f"the gradient of {name} is a {type(part).__name__}", fix="give a tensor")
    return list(parts.values())


def _differences(f: Callable[[list[Tensor]], float], flat: list[Tensor], sides: int) -> tuple[list[Tensor], list[Tensor], float, int]:
    """Difference quotients of every number, their steps, the largest value of f, and the number of passes."""
    passes, level = 0, 0.0

    def at(parts: list[Tensor]) -> float:
        nonlocal passes, level
        with torch.no_grad():
            value = f(parts)
        passes, level = passes + 1, max(level, abs(value))
        return value

    parts = [part.detach().clone(memory_format=torch.contiguous_format) for part in flat]
    middle = at(parts) if sides == 1 else 0.0
    quotients = [torch.zeros_like(part) for part in parts]
    steps = [_step(sides) * part.abs().clamp(min=1.0) for part in parts]
    for part, quotient, wide in zip(parts, quotients, steps, strict=True):
        line, out = part.view(-1), quotient.view(-1)
        for i in range(line.numel()):
            here, h = float(line[i]), float(wide.view(-1)[i])
            line[i] = here + h
            up, above = at(parts), float(line[i])
            if sides == 1:
                out[i] = (up - middle) / (above - here)
            else:
                line[i] = here - h
                out[i] = (up - at(parts)) / (above - float(line[i]))
            line[i] = here
    return quotients, steps, level, passes


def _step(sides: int) -> float:
    """The step at which the errors of rounding and curvature are equal."""
    return math.pow(EPS, 1 / (1 + sides))


def _worst(label: str, analytic: Tensor, measured: Tensor, floor: Tensor) -> tuple[str, float, float, float]:
    if not analytic.numel():
        return label, 0.0, 0.0, 0.0
    errors = (analytic - measured).abs() / analytic.abs().maximum(measured.abs()).maximum(floor).clamp(min=1e-300)
    worst = int(errors.argmax())
    index = [int(i) for i in torch.unravel_index(torch.tensor(worst), analytic.shape)]
    return f"{label}{index or ''}", float(errors.reshape(-1)[worst]), float(analytic.reshape(-1)[worst]), float(measured.reshape(-1)[worst])


def _price(f: Callable[..., Tensor], x: Tensors, passes: int) -> tuple[int, int]:
    from .graph import trace

    names, flat = _flat(x)

    def bound(*parts: Tensor) -> Tensor:
        return f(_join(x, names, parts))

    once = trace(bound, *flat).multiplies
    back = trace(torch.func.grad_and_value(bound, argnums=tuple(range(len(flat)))), *flat).multiplies
    return once * passes, back
