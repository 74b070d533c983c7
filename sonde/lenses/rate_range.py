"""Learning-rate range test: the rate rises at every step until the loss explodes; where it fell fastest is a good rate.

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

BLOWN = 4.0
"""the test ends where the smoothed loss is this many times above its lowest"""
ROOM = 0.25
"""of the first loss, above it in the picture: the fall is to be seen, not the height of the explosion"""
LOGARITHMIC = 20
"""a fall by more than this factor is drawn on a logarithmic axis"""
LEAST = 1e-3
"""share of the first loss that must go for a rate to count as one that works"""


def why_not(subject: Subject) -> str:
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
    """Loss of each training batch against the rate of its step, with the rate to try first.

    Args:
        rule: optimizer by name
        lowest: rate of the first step
        highest: rate of the last step
        steps: updates, if the loss does not explode before
        batch_size: examples per update
        start: weights drawn afresh, or here, as they are
    """
    if not lowest < highest:
        raise BadInput(f"the lowest rate {lowest:g} must lie below the highest {highest:g}", where="lens 'rate_range'")

    maker = entrant(rule)
    if not maker.rates:
        raise BadInput(f"'{rule}' finds its own rate", where="lens 'rate_range'", fix="'sgd' or 'adam' have one to find")
    with on_a_copy():
        trial = Trial(subject, start, batch_size)
        limit, why = _limit(trial, subject.objective) if rule == "sgd" else (None, "")
        rates, losses, ended = _rise(trial, maker.make, lowest, highest, steps)
    smooth = smooth_losses(losses)
    best = suggestion(rates, smooth)
    lowest_at = rates[smooth.index(min(smooth))]
    notes = [
        f"Try {best:.2g} with {rule}: there the loss falls fastest." if best else f"No rate up to {rates[-1]:.2g} lowers the loss.",
        f"It is lowest at {lowest_at:.2g}" + (f" and explodes at {rates[-1]:.2g}." if ended else " and has not exploded by the last step."),
        f"At the start, curvature lets plain descent converge below 2 / lambda_max = {limit:.2g}." if limit else why,
        f"One pass of {len(rates)} steps, batches of {trial.order.batch_size}.",
        trial.note(),
    ]
    marks = {f"try {best:.2g}": best} if best else {}
    marks[f"lowest loss at {lowest_at:.2g}"] = lowest_at
    if ended:
        marks[f"explodes at {rates[-1]:.2g}"] = rates[-1]
    top = smooth[0] + ROOM * abs(smooth[0])
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
        results={"suggestion": best, "limit": limit, "ended": ended},
    )


def _limit(trial, objective) -> tuple[float | None, str]:
    """2 over the largest curvature of the loss at the start, the rate beyond which gradient descent diverges; or why it is not known."""
    trial.whole.eval()
    try:
        curvature = hessian_spectrum(trial.whole.model, objective, trial.examples, steps=30).high
    except (RuntimeError, NotImplementedError) as error:  # not every layer can be differentiated twice
        return None, f"Curvature unknown: {str(error).splitlines()[0]}."
    return (2 / curvature, "") if curvature > 0 else (None, "The loss curves upwards in no direction.")


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
        if len(now) > 10 and now[-1] - min(now) > (BLOWN - 1) * max(abs(min(now)), 0.1 * abs(now[0])):
            return rates, losses, True
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
    return rates, losses, False


def smooth_losses(losses: list[float], keep: float = 0.8) -> list[float]:
    """Rolling average that forgets a fifth at each step, corrected for its start at 0."""
    out, mean = [], 0.0
    for count, loss in enumerate(losses, 1):
        mean = keep * mean + (1 - keep) * loss
        out.append(mean / (1 - keep**count))
    return out


def suggestion(rates: list[float], smooth: list[float], reach: int = 2) -> float | None:
    """The rate at which the smoothed loss falls most per decade, before its lowest point; None where it hardly falls."""
    end = smooth.index(min(smooth))
    if smooth[0] - smooth[end] <= LEAST * abs(smooth[0]):
        return None
    falls = {
        rates[i]: (smooth[i + reach] - smooth[i - reach]) / math.log10(rates[i + reach] / rates[i - reach])
        for i in range(reach, min(end + 1, len(rates) - reach))
    }
    return min(falls, key=lambda rate: falls[rate], default=None)


def tiny() -> Subject:
    return values()
