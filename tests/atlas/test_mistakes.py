"""The table of deliberate mistakes: its verdicts on made-up results, what a replacement receives, what it refuses."""

from __future__ import annotations

import math

import pytest

from sonde.atlas.exhibit import Finding, Result
from tests.atlas import mistakes
from tests.atlas.mistakes import Mistakes

NUMBERS = {"one": 1}


def show(monkeypatch, error: str = "", **expectations: bool) -> None:
    """Every exhibit ends with these expectations, held or not."""
    findings = tuple(Finding(name.replace("_", " "), "", "", passed) for name, passed in expectations.items())
    monkeypatch.setattr(mistakes, "run", lambda row: Result(row, "", 0.0, "", findings, error=error))


@pytest.mark.parametrize(
    "verdict",
    [{"red": "sine"}, {"red": ("cosine", "slope")}, {"only": ("cosine", "slope of tan")}, {"red": "cosine", "green": "sine"}, {"count": 2}],
)
def test_a_verdict_that_holds(monkeypatch, verdict):
    show(monkeypatch, cosine=False, slope_of_tan=False, **({"sine": True} if "green" in verdict else {}))
    Mistakes().add("X-01", "a mistake", **verdict).assert_noticed(monkeypatch)


@pytest.mark.parametrize(
    "verdict",
    [
        {"red": "sine"},  # the name of one that holds, though a failed one contains it
        {"red": ("cosine", "tangent")},
        {"only": "slope of tan"},
        {"every": "cos"},
        {"green": "slope", "red": "cosine"},
        {"green": "tangent", "red": "cosine"},
        {"count": 3},
        {"check": lambda names: "sine" in names},
        {"why": "too close"},
    ],
)
def test_a_verdict_that_does_not(monkeypatch, verdict):
    show(monkeypatch, cosine=False, slope_of_tan=False, sine=True)
    with pytest.raises(AssertionError):
        Mistakes().add("X-01", "a mistake", **verdict).assert_noticed(monkeypatch)


def test_an_exhibit_that_passes_or_ends_with_an_error_has_not_noticed(monkeypatch):
    mistake = Mistakes().add("X-01", "a mistake", every="")
    show(monkeypatch, cosine=True)
    with pytest.raises(AssertionError, match="X-01 did not notice"):
        mistake.assert_noticed(monkeypatch)
    show(monkeypatch, error="too close to call", cosine=False)
    with pytest.raises(AssertionError, match="too close"):
        mistake.assert_noticed(monkeypatch)
    Mistakes().add("X-01", "a mistake", why="too close").assert_noticed(monkeypatch)


def test_replacements(monkeypatch):
    table = Mistakes(setup=lambda monkeypatch: monkeypatch.setitem(NUMBERS, "one", 2))
    mistake = table.add("X-01", "a mistake", red="cosine").replace(math, "cos", lambda right, x: right(x) + 1).replace(NUMBERS, "two", 4)

    @mistake.replace(math, "sin")
    def negated(x):
        return -x

    mistake.call(show, cosine=False)
    mistake.assert_noticed(monkeypatch)
    assert (math.cos(0.0), math.sin(3.0), NUMBERS) == (2.0, -3.0, {"one": 2, "two": 4})


def test_what_a_table_refuses():
    table = Mistakes()
    with pytest.raises(AssertionError, match="say what must fail"):
        table.add("X-01", "a mistake", green="cosine")
    table.each(lambda mistake: None)
    with pytest.raises(AssertionError, match="above the test"):
        table.add("X-01", "a mistake", red="cosine")
