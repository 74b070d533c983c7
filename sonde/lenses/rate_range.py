"""Learning-rate range test: the rate rises at every step until the loss explodes; where the loss falls fastest is a good rate.

The rate of step t is  lowest * (highest / lowest)^(t / (steps - 1))  (Smith 2017).  The suggestion is the rate at which the
smoothed loss falls most per decade, well below the one at which it turns up.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Annotated, Literal

from ..core.errors import BadInput
from ..core.options import Range
from ..core.reading import Lines, Reading, Subject
from ..optim.race import entrant, with_gradient
from .spectrum import hessian_spectrum
from .tools.readonly import guard, no_gradient
from .tools.tiny import values
from .tools.trial import Trial, on_a_copy

EXPLODED = 4.0
"""the test ends where the smoothed loss is this many times its minimum"""
HEADROOM = 0.25
"""the y axis ends this fraction above the first loss, so that the explosion does not hide the descent"""
LOGARITHMIC = 20
"""a loss that falls by more than this factor is drawn on a logarithmic axis"""
MIN_DECREASE = 1e-3
"""fraction by which the loss must fall for a rate to be suggested"""


def why_not(subject: Subject) -> str:
    """Why the lens does not apply to a subject, or ''; `guard` turns it into an error."""
    return no_gradient(subject)


@guard
def read(
    subject: Subject,
    rule: str = "sgd",
    lowest: Annotated[float, Range(above=0)] = 1e-5,
    highest: Annotated[float, Range(above=0)] = 10.0,
    steps: Annotated[int, Range(10, 10_000)] = 120,
    batch_size: Annotated[int, Range(1, 65536)] = 64,
    start: Literal["fresh", "here"] = "fresh",
) -> Reading:
    """Loss of each training batch against the learning rate of its step, with a suggested rate.

    Args:
        rule: optimizer by name
        lowest: rate of the first step
        highest: rate of the last step
        steps: number of updates, unless the loss explodes first
        batch_size: examples per update
        start: new random weights, or here: the weights of the run
    """
    if not lowest < highest:
        raise BadInput(f"the lowest rate {lowest:g} must be below the highest {highest:g}", where="lens 'rate_range'")

    maker = entrant(rule)
    if not maker.rates:
        raise BadInput(f"'{rule}' has no learning rate", where="lens 'rate_range'", fix="use 'sgd' or 'adam'")
    with on_a_copy():
        trial = Trial(subject, start, batch_size)
        limit, why = _limit(trial, subject.objective) if rule == "sgd" else (None, "")
        rates, losses, exploded = _rise(trial, maker.make, lowest, highest, steps)
    smooth = smooth_losses(losses)
    best = suggestion(rates, smooth)
    lowest_at = rates[smooth.index(min(smooth))]
    notes = [
        f"Try {best:.2g} with {rule}, where the loss falls fastest." if best else f"No rate up to {rates[-1]:.2g} lowers the loss.",
        f"The loss is lowest at {lowest_at:.2g}"
        + (f" and explodes at {rates[-1]:.2g}." if exploded else " and has not exploded by the last step."),
        f"At the start, gradient descent is stable below 2 / lambda_max = {limit:.2g}." if limit else why,
        f"One pass of {len(rates)} steps, batches of {trial.order.batch_size}.",
        trial.note(),
    ]
    marks = {f"try {best:.2g}": best} if best else {}
    marks[f"lowest loss at {lowest_at:.2g}"] = lowest_at
    if exploded:
        marks[f"explodes at {rates[-1]:.2g}"] = rates[-1]
    top = smooth[0] + HEADROOM * abs(smooth[0])
    log = ["x", "y"] if 0 < LOGARITHMIC * min(losses) < top else ["x"]
    return Lines(
        "Learning-rate range test",
        {"batch loss": losses, "smoothed": smooth},
        axes=["learning rate", "loss"],
        note=" ".join(filter(None, notes)),
        x=rates,
        log=log,
        top=top,
        marks=marks,
        results={"suggestion": best, "limit": limit, "ended": exploded},
    )


def _limit(trial, objective) -> tuple[float | None, str]:
    """2 / lambda_max at the start, the rate above which gradient descent diverges; or why it is not known."""
    trial.whole.eval()
    try:
        curvature = hessian_spectrum(trial.whole.model, objective, trial.examples, steps=30).high
    except (RuntimeError, NotImplementedError) as error:  # not every layer can be differentiated twice
        return None, f"Curvature unknown: {str(error).splitlines()[0]}."
    return (2 / curvature, "") if curvature > 0 else (None, "The Hessian has no positive eigenvalue.")


def _rise(trial, make, lowest: float, highest: float, steps: int) -> tuple[list[float], list[float], bool]:
    """Rates and losses up to the step at which the loss explodes, and whether it did."""
    weights = [weight.clone().requires_grad_() for weight in trial.weights]
    optimizer = make(weights, lowest)
    rates: list[float] = []
    losses: list[float] = []
    for step in range(steps):
        rate = lowest * (highest / lowest) ** (step / (steps - 1))
        value = float(with_gradient(weights, partial(trial.loss, weights), step))
        if not math.isfinite(value):
            return rates, losses, True
        rates.append(rate)
        losses.append(value)
        now = smooth_losses(losses)
        if len(now) > 10 and now[-1] - min(now) > (EXPLODED - 1) * max(abs(min(now)), 0.1 * abs(now[0])):
            return rates, losses, True
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
    return rates, losses, False


def smooth_losses(losses: list[float], keep: float = 0.8) -> list[float]:
    """Exponential moving average with decay `keep`, corrected for its start at 0."""
    out, mean = [], 0.0
    for count, loss in enumerate(losses, 1):
        mean = keep * mean + (1 - keep) * loss
        out.append(mean / (1 - keep**count))
    return out


def suggestion(rates: list[float], smooth: list[float], reach: int = 2) -> float | None:
    """The rate at which the smoothed loss falls most per decade, before its minimum; None where it hardly falls."""
    end = smooth.index(min(smooth))
    if smooth[0] - smooth[end] <= MIN_DECREASE * abs(smooth[0]):
        return None
    falls = {
        rates[i]: (smooth[i + reach] - smooth[i - reach]) / math.log10(rates[i + reach] / rates[i - reach])
        for i in range(reach, min(end + 1, len(rates) - reach))
    }
    return min(falls, key=lambda rate: falls[rate], default=None)


def tiny() -> Subject:
    """A small subject for the contract tests."""
    return values()
