"""Step size along a direction: exact, Armijo and strong-Wolfe line search, and steepest descent with any of them.

    phi(eta) = L(theta + eta d)        phi'(0) = g.d < 0, the direction points downhill

    exact     phi'(eta) = 0                                       on a quadratic with d = -g:  eta = g.g / g.A g
    armijo    phi(eta) <= phi(0) + c1 eta phi'(0)                 enough decrease (Armijo 1966)
    wolfe     armijo, and |phi'(eta)| <= c2 |phi'(0)|             and a small enough slope (Wolfe 1969)

Every search returns rate 0 where no step lowers the loss by more than rounding: it is at a minimum.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple, final

import torch
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from ..core.errors import BadInput, NumericalStop
from ..core.options import Range, checked

LineFunction = Callable[[float], tuple[float, float]]
"""eta -> phi(eta), phi'(eta)"""
Search = Literal["exact", "armijo", "wolfe"]
MAX_EVALUATIONS = 100
"""evaluations after which a search has failed; doubling as often reaches 2^100"""


class LinePoint(NamedTuple):
    """A point on the line: its step size, the loss and the slope along the line."""

    rate: float
    value: float
    slope: float

    @property
    def finite(self) -> bool:
        return math.isfinite(self.value) and math.isfinite(self.slope)


def exact(line: LineFunction, first: float = 1.0) -> LinePoint:
    """A minimum along the line: double the rate until the slope turns up, then close in on where it is 0."""
    from scipy.optimize import brentq

    start = _start(line, first)
    if start.slope == 0:
        return start
    low, high = start, _at(line, first)
    for _ in range(MAX_EVALUATIONS):
        if not high.finite:  # too far: go back half of the distance
            high = _at(line, (low.rate + high.rate) / 2)
        elif high.slope < 0:
            low, high = high, _at(line, 2 * high.rate)
        else:
            root = brentq(lambda rate: line(rate)[1], low.rate, high.rate, xtol=1e-300, rtol=8.9e-16, maxiter=MAX_EVALUATIONS, disp=False)
            return _at(line, root)
    raise _endless(low)


def armijo(line: LineFunction, first: float = 1.0, c1: float = 1e-4) -> LinePoint:
    """The first of  first, first/2, first/4, ...  that lowers the loss by at least c1 times what the slope predicts."""
    start = _start(line, first)
    rate = first
    for _ in range(MAX_EVALUATIONS):
        if -rate * start.slope <= _rounding(start):
            break
        here = _at(line, rate)
        if here.finite and here.value <= start.value + c1 * rate * start.slope:
            return here
        rate /= 2
    return start


def wolfe(line: LineFunction, first: float = 1.0, c1: float = 1e-4, c2: float = 0.9) -> LinePoint:
    """A rate that meets both conditions: double it until an interval must hold one, then close in (Nocedal & Wright 3.5, 3.6)."""
    if not 0 < c1 < c2 < 1:
        raise BadInput(f"a Wolfe search needs 0 < c1 < c2 < 1, not c1={c1:g} and c2={c2:g}", fix="1e-4 and 0.9 suit most losses")
    start = _start(line, first)

    def too_high(here: LinePoint, low: LinePoint) -> bool:
        return not here.finite or here.value > start.value + c1 * here.rate * start.slope or here.value >= low.value

    def flat(here: LinePoint) -> bool:
        return abs(here.slope) <= -c2 * start.slope

    if start.slope == 0:
        return start
    low, high = start, _at(line, first)
    for _ in range(MAX_EVALUATIONS):
        if too_high(high, low):
            break
        if flat(high):
            return high
        if high.slope >= 0:
            low, high = high, low
            break
        low, high = high, _at(line, 2 * high.rate)
    else:
        raise _endless(low)
    # Between low and high lies a rate that meets both: low meets the first, and its slope points toward high.
    for _ in range(MAX_EVALUATIONS):
        if abs((high.rate - low.rate) * low.slope) <= _rounding(start):
            break
        here = _at(line, _cubic_minimum(low, high))
        if too_high(here, low):
            high = here
        elif flat(here):
            return here
        else:
            if here.slope * (high.rate - low.rate) >= 0:
                high = low
            low = here
    return low


SEARCHES: dict[str, Callable[..., LinePoint]] = {"exact": exact, "armijo": armijo, "wolfe": wolfe}


@final
class Descent(torch.optim.Optimizer):
    """Steepest descent whose rate is searched anew at every step:  theta <- theta - eta_t g.

    `step(closure)` takes what `torch.optim.LBFGS` takes: a function that clears the gradients, computes the loss, calls
    `backward` and returns the loss.  It must give the same loss for the same weights, so use one batch per step.

    Args:
        lr: first rate to try; later steps try twice the one before
        search: exact, armijo or wolfe

    rate: after a step, the rate it used
    """

    elementwise = False

    @checked
    def __init__(self, params: Any, lr: Annotated[float, Range(above=0)] = 1.0, search: Search = "wolfe") -> None:
        super().__init__(params, {"lr": lr, "rate": None})
        self.search = SEARCHES[search]

    @property
    def rate(self) -> float:
        """The rate of the last step."""
        return self.param_groups[0]["rate"]

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        if closure is None:
            raise BadInput("a line search needs the loss as a function", where="Descent.step", fix="call step(closure), as with L-BFGS")
        params = [p for group in self.param_groups for p in group["params"] if p.requires_grad]
        with torch.enable_grad():
            loss = closure()
        here, gradient = parameters_to_vector(params).clone(), _gradient(params)
        evaluated = {0.0: (float(torch.as_tensor(loss).detach()), -float(gradient @ gradient))}

        def line(rate: float) -> tuple[float, float]:
            if rate not in evaluated:
                vector_to_parameters(here - rate * gradient, params)
                with torch.enable_grad():
                    value = float(torch.as_tensor(closure()).detach())
                evaluated[rate] = value, -float(gradient @ _gradient(params))
            return evaluated[rate]

        group = self.param_groups[0]
        first = 2 * group["rate"] if group["rate"] else group["lr"]
        rate = 0.0
        try:
            rate = group["rate"] = self.search(line, first).rate
        finally:  # a search that fails leaves the weights where they were
            vector_to_parameters(here - rate * gradient, params)
        return loss


def _gradient(params: list[Tensor]) -> Tensor:
    return torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in params])


def _at(line: LineFunction, rate: float) -> LinePoint:
    return LinePoint(rate, *line(rate))


def _start(line: LineFunction, first: float) -> LinePoint:
    if not (math.isfinite(first) and first > 0):
        raise BadInput(f"the first rate to try must be a number above 0, not {first!r}", where="line search")
    start = _at(line, 0.0)
    if not start.finite:
        raise NumericalStop(f"the loss is {start.value:g} with slope {start.slope:g} before the step", where="line search")
    if start.slope > 0:
        raise BadInput(f"the direction points uphill: slope {start.slope:g}", where="line search", fix="turn its sign")
    return start


def _rounding(start: LinePoint) -> float:
    """The smallest change of the loss that its own digits can show."""
    return 4 * 2.0**-53 * max(abs(start.value), 1e-280)


def _cubic_minimum(low: LinePoint, high: LinePoint) -> float:
    """Minimum of the cubic through two points and their slopes, at least a tenth of the interval from its ends; else the midpoint."""
    width = high.rate - low.rate
    middle = low.rate + width / 2
    if not high.finite:
        return middle
    d1 = low.slope + high.slope - 3 * (high.value - low.value) / width
    square = d1 * d1 - low.slope * high.slope
    if not square >= 0:
        return middle
    d2 = math.copysign(math.sqrt(square), width)
    bottom = high.slope - low.slope + 2 * d2
    fraction = 1 - (high.slope + d2 - d1) / bottom if bottom else 0.5
    return low.rate + width * min(max(fraction, 0.1), 0.9)


def _endless(low: LinePoint) -> NumericalStop:
    return NumericalStop(
        f"the loss still falls at rate {low.rate:.3g}, where it is {low.value:.3g}",
        where="line search",
        fix="a loss without a lower bound has no best rate; add a penalty",
    )
