"""Mistakes made on purpose in what chapter 7 measures: each turns its exhibit red."""

from __future__ import annotations

import torch

from sonde.atlas import optimizers
from sonde.core.terms import Terms
from sonde.data.order import Order
from sonde.engine import job
from sonde.optim import build, line_search, newton, race, schedules
from sonde.optim.rules.lion import Lion
from tests.atlas.mistakes import Mistakes

mistakes = Mistakes()

mistakes.add("OPT-01", "a wrong sign", red=("what happens", "one step is")).replace(
    optimizers, "_build", lambda right, name, weights, rate, **options: right(name, weights, rate, maximize=True, **options)
)
mistakes.add("OPT-04", "another rate", red=("steps to 1e-6", "logistic loss")).replace(
    optimizers, "_sgd", lambda right, weights, rate, **options: right(weights, 0.8 * rate, **options)
)
mistakes.add("OPT-05", "sums in place of means and a log without words", red=("variance at B=8", "slope", "the run log at B=1")).replace(
    Terms, "factors", lambda self, counts=None: [(self["nll"], 1.0)]
).replace(job.Job, "regime", "training")
mistakes.add("OPT-07", "a model without its bell", red="value at weights").replace(
    optimizers, "gabor_model", lambda w, x, kind="textbook": torch.sin(w[..., :1] + (w[..., None, 1:] * x).sum(-1))
)
mistakes.add("OPT-08", "a rate that does not fall", red="last loss with 1/t").replace(
    schedules, "inverse_time", lambda half=1.0: lambda step, steps: 1.0
)
mistakes.add("OPT-11", "a sum in place of a rolling mean", only="100 steps of rmsprop against the framework").replace(
    optimizers, "_rmsprop", optimizers._adagrad
)
mistakes.add("OPT-12", "a switch that does nothing", red=("the same without bias correction", "library against formula")).replace(
    build._switches(), "adam", ("bias_correction", False, "adam")
)
mistakes.add("OPT-13", "swapped betas", red="momenta after 3 steps", green="size of all moves").replace(
    Lion, "update", lambda right, self, p, g, group: right(self, p, g, {**group, "betas": group["betas"][::-1]})
)
mistakes.add("OPT-14", "momentum that is left out", red="momentum: below -1 after 120 steps").replace(
    optimizers, "_sgd", lambda right, *args, momentum=0.0, **options: right(*args, **options)
)
mistakes.add("OPT-14", "steps without noise", red="end in the wide well").replace(
    optimizers, "_two_wells", lambda right, start, seed: right(start, None)
)
mistakes.add("OPT-15", "steps that are miscounted", red=("Newton on the quadratic", "exact line search on the quadratic")).replace(
    optimizers, "EVERYONE", ("exact", "damped_newton")
).replace(race.Track, "steps", property(lambda self: len(self.losses) if self.fate == "reached" else None))


@mistakes.add("OPT-02", "a search that stops short", red="cosine of successive gradients").replace(line_search.SEARCHES, "exact")
@mistakes.add("OPT-03", "a search that stops short", red="ratio at each of 12 steps").replace(line_search.SEARCHES, "exact")
def short(right, line, first=1.0):
    rate = 0.97 * right(line, first).rate
    return line_search.LinePoint(rate, *line(rate))


@mistakes.add("OPT-02", "one rate for all steps", red="a new one every time")
def keep_the_first_rate(monkeypatch):
    """The erratum's reading: a line search finds the constant rate."""
    kept: list[float] = []

    def constant(line, first=1.0):
        kept[1:] = []
        kept.extend([] if kept else [line_search.exact(line, first).rate])
        return line_search.LinePoint(kept[0], *line(kept[0]))

    monkeypatch.setitem(line_search.SEARCHES, "exact", constant)


@mistakes.add("OPT-05", "drawing with replacement", red="mean of the batch gradients").replace(Order, "at")
@mistakes.add("OPT-06", "drawing with replacement", red=("draws of each index", "most draws")).replace(Order, "at")
def draw_with_replacement(right, self, step):
    generator = torch.Generator().manual_seed(step)
    return torch.randint(self.n, (len(right(self, step)),), generator=generator)


# The printed form of an erratum.
@mistakes.add("OPT-09", "momentum that is plain descent", why="").replace(optimizers, "_build")
def plain_descent(right, name, weights, rate, **options):
    plain = {"momentum": 0.0, "nesterov": False}
    return right(name, weights, rate, **{key: plain.get(key, value) for key, value in options.items() if key != "ema"})


@mistakes.add("OPT-09", "dampening in place of an average", only="ema=True is the sum at a rate (1 - beta) times as large").replace(
    optimizers, "_build"
)
def damped(right, name, weights, rate, **options):
    if options.pop("ema", False):
        options["dampening"] = options["momentum"]
    return right(name, weights, rate, **options)


# The printed form of an erratum: H g in place of H^-1 g.
@mistakes.add("OPT-10", "the direction H g", red="one step, 3 weights").replace(newton, "_derivatives")
@mistakes.add("OPT-11", "the direction H g", red="M = H is Newton").replace(newton, "_derivatives")
def printed(right, loss, params):
    gradient, hessian = right(loss, params)
    return gradient, torch.linalg.inv(hessian)


@mistakes.add("OPT-10", "a Hessian taken for definite", red="a step where the Hessian is indefinite").replace(newton, "_derivatives")
def bent(right, loss, params):
    gradient, hessian = right(loss, params)
    values, axes = torch.linalg.eigh(hessian)
    return gradient, axes @ torch.diag(values.abs()) @ axes.T


@mistakes.each
def test_notices(mistake, monkeypatch):
    mistake.assert_noticed(monkeypatch)
