"""Mistakes made on purpose in what chapter 7 measures: each turns its exhibit red."""

from __future__ import annotations

import pytest
import torch

from sonde.atlas import optimizers
from sonde.atlas.exhibit import run
from sonde.optim import build, line_search, newton, race, schedules
from sonde.optim.rules.lion import Lion
from tests.atlas.mistakes import any_of, wrong


def test_opt_01_notices_a_wrong_sign(monkeypatch):
    right = optimizers._build
    monkeypatch.setattr(optimizers, "_build", lambda name, weights, rate, **options: right(name, weights, rate, maximize=True, **options))
    names = wrong("OPT-01")
    assert any_of(names, "what happens") and any_of(names, "one step is")


@pytest.mark.parametrize("row, word", [("OPT-02", "cosine of successive gradients"), ("OPT-03", "ratio at each of 12 steps")])
def test_a_search_that_stops_short_is_noticed(monkeypatch, row, word):
    right = line_search.exact

    def short(line, first=1.0):
        rate = 0.97 * right(line, first).rate
        return line_search.LinePoint(rate, *line(rate))

    monkeypatch.setitem(line_search.SEARCHES, "exact", short)
    assert any_of(wrong(row), word)


def test_opt_02_notices_one_rate_for_all_steps(monkeypatch):
    """The erratum's reading: a line search finds the constant rate."""
    kept: list[float] = []

    def constant(line, first=1.0):
        kept[1:] = []
        kept.extend([] if kept else [line_search.exact(line, first).rate])
        return line_search.LinePoint(kept[0], *line(kept[0]))

    monkeypatch.setitem(line_search.SEARCHES, "exact", constant)
    assert any_of(wrong("OPT-02"), "a new one every time")


def test_opt_04_notices_another_rate(monkeypatch):
    right = optimizers._sgd
    monkeypatch.setattr(optimizers, "_sgd", lambda weights, rate, **options: right(weights, 0.8 * rate, **options))
    names = wrong("OPT-04")
    assert any_of(names, "steps to 1e-6") and any_of(names, "logistic loss")


def test_opt_07_notices_a_model_without_its_bell(monkeypatch):
    monkeypatch.setattr(optimizers, "gabor_model", lambda w, x, kind="textbook": torch.sin(w[..., :1] + (w[..., None, 1:] * x).sum(-1)))
    assert any_of(wrong("OPT-07"), "value at weights")


def test_opt_08_notices_a_rate_that_does_not_fall(monkeypatch):
    monkeypatch.setattr(schedules, "inverse_time", lambda half=1.0: lambda step, steps: 1.0)
    assert any_of(wrong("OPT-08"), "last loss with 1/t")


def test_opt_09_notices_momentum_that_is_plain_descent(monkeypatch):
    """The printed form of an erratum."""
    right = optimizers._build
    plain = {"momentum": 0.0, "nesterov": False}
    monkeypatch.setattr(
        optimizers,
        "_build",
        lambda name, weights, rate, **o: right(name, weights, rate, **{k: plain.get(k, v) for k, v in o.items() if k != "ema"}),
    )
    result = run("OPT-09")
    assert not result.passed


def test_opt_09_notices_dampening_in_place_of_an_average(monkeypatch):
    right = optimizers._build

    def damped(name, weights, rate, **options):
        if options.pop("ema", False):
            options["dampening"] = options["momentum"]
        return right(name, weights, rate, **options)

    monkeypatch.setattr(optimizers, "_build", damped)
    assert wrong("OPT-09") == ["ema=True is the sum at a rate (1 - beta) times as large"]


@pytest.mark.parametrize("row, word", [("OPT-10", "one step, 3 weights"), ("OPT-11", "M = H is Newton")])
def test_the_direction_h_g_is_noticed(monkeypatch, row, word):
    """The printed form of an erratum: H g in place of H^-1 g."""
    right = newton._derivatives

    def printed(loss, params):
        gradient, hessian = right(loss, params)
        return gradient, torch.linalg.inv(hessian)

    monkeypatch.setattr(newton, "_derivatives", printed)
    assert any_of(wrong(row), word)


def test_opt_10_notices_a_hessian_taken_for_definite(monkeypatch):
    right = newton._derivatives

    def bent(loss, params):
        gradient, hessian = right(loss, params)
        values, axes = torch.linalg.eigh(hessian)
        return gradient, axes @ torch.diag(values.abs()) @ axes.T

    monkeypatch.setattr(newton, "_derivatives", bent)
    assert any_of(wrong("OPT-10"), "a step where the Hessian is indefinite")


def test_opt_11_notices_a_sum_in_place_of_a_rolling_mean(monkeypatch):
    monkeypatch.setattr(optimizers, "_rmsprop", optimizers._adagrad)
    assert wrong("OPT-11") == ["100 steps of rmsprop against the framework"]


def test_opt_12_notices_a_switch_that_does_nothing(monkeypatch):
    monkeypatch.setitem(build._switches(), "adam", ("bias_correction", False, "adam"))
    names = wrong("OPT-12")
    assert any_of(names, "the same without bias correction") and any_of(names, "library against formula")


def test_opt_13_notices_swapped_betas(monkeypatch):
    right = Lion.update
    monkeypatch.setattr(Lion, "update", lambda self, p, g, group: right(self, p, g, {**group, "betas": group["betas"][::-1]}))
    names = wrong("OPT-13")
    assert any_of(names, "momenta after 3 steps") and not any_of(names, "size of all moves")


def test_opt_14_notices_momentum_that_is_left_out(monkeypatch):
    right = optimizers._sgd
    monkeypatch.setattr(optimizers, "_sgd", lambda *args, momentum=0.0, **options: right(*args, **options))
    assert any_of(wrong("OPT-14"), "momentum: below -1 after 120 steps")


def test_opt_14_notices_steps_without_noise(monkeypatch):
    right = optimizers._two_wells
    monkeypatch.setattr(optimizers, "_two_wells", lambda start, seed: right(start, None))
    assert any_of(wrong("OPT-14"), "end in the wide well")


def test_opt_15_notices_steps_that_are_miscounted(monkeypatch):
    monkeypatch.setattr(optimizers, "EVERYONE", ("exact", "damped_newton"))
    monkeypatch.setattr(race.Track, "steps", property(lambda self: len(self.losses) if self.fate == "reached" else None))
    names = wrong("OPT-15")
    assert any_of(names, "Newton on the quadratic") and any_of(names, "exact line search on the quadratic")
