"""Deliberate mistakes: what is replaced in the library or in a chapter, and which expectations of an exhibit must then fail.

Each chapter's file holds a table, one entry for each mistake:

    mistakes = Mistakes()

    mistakes.add("LM-02", "a discount that nobody gets back", red="add up to").replace(
        ngram, "_discount_counts", lambda right, *args: (right(*args)[0], right(*args)[1] * 0.9)
    )

Its test replaces `ngram._discount_counts`, runs LM-02 and demands that an expectation whose name contains "add up to" fails.
A replacement whose first parameter is called `right` also receives what it replaces.  A longer one is a function under
`@mistakes.add(...).replace(target, name)`; a mistake that needs more than replacements is a function of `monkeypatch` under
`@mistakes.add(...)`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from sonde.atlas.exhibit import Exhibit, Finding, run

Patch = Callable[[pytest.MonkeyPatch], object]
_FUNCTION_BELOW = object()


@dataclass
class Mistake:
    """A mistake and the verdict it must bring about.

    Args:
        row: the exhibit.
        name: what is wrong.
        red: expectations that must fail: the name of one or words that it contains.
        only: the names of all expectations that fail, in order.
        every: words of every expectation that fails.
        green: expectations that must hold, named likewise.
        count: how many expectations fail.
        check: a condition on the list of failed names, where words are not enough.
        why: words of the reason, where the exhibit ends with an error and not with a failed expectation.
        setup: runs first: mostly less training, where a mistake shows without it.
        slow: whether `make test` leaves it out.
        marks: other marks of its test.
    """

    row: str
    name: str
    red: str | tuple[str, ...] = ()
    only: str | tuple[str, ...] = ()
    every: str = ""
    green: str | tuple[str, ...] = ()
    count: int | None = None
    check: Callable[[list[str]], bool] | None = None
    why: str | None = None
    setup: Patch | None = None
    slow: bool = False
    marks: list[pytest.MarkDecorator] = field(default_factory=list)
    patches: list[Patch] = field(default_factory=list)

    def __call__(self, patch: Patch) -> Patch:
        """Make the mistake by a function of `monkeypatch`."""
        self.patches.append(patch)
        return patch

    def call(self, patch: Callable[..., object], *args: Any, **options: Any) -> Mistake:
        """Make the mistake by `patch(monkeypatch, *args, **options)`."""
        self.patches.append(lambda monkeypatch: patch(monkeypatch, *args, **options))
        return self

    def replace(self, target: Any, name: Any, by: Any = _FUNCTION_BELOW) -> Any:
        """Replace an attribute, or an entry if the target is a dictionary; without a value: by the function below."""
        if by is _FUNCTION_BELOW:
            return lambda function: self.replace(target, name, function) and function

        def patch(monkeypatch: pytest.MonkeyPatch) -> None:
            if isinstance(target, dict):
                monkeypatch.setitem(target, name, _give_right(by, target.get(name)))
            else:
                monkeypatch.setattr(target, name, _give_right(by, getattr(target, name)))

        self.patches.append(patch)
        return self

    def assert_noticed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Make the mistake, run the exhibit and compare what failed with what must."""
        for patch in [self.setup, *self.patches]:
            if patch is not None:
                patch(monkeypatch)
        result = run(self.row)
        if self.why is not None:
            assert not result.passed and self.why in result.why
            return
        assert not result.passed and not result.error, result.why or f"{self.row} did not notice"
        failed = [finding.name for finding in result.findings if not finding.passed]
        assert not self.only or failed == list(_as_tuple(self.only))
        for words in _as_tuple(self.red):
            assert any(not finding.passed for finding in _find(words, result.findings)), f"{words!r} holds; these do not: {failed}"
        for words in _as_tuple(self.green):
            assert all(finding.passed for finding in _find(words, result.findings)), f"{words!r} does not hold, in {failed}"
        assert all(self.every in name for name in failed), failed
        assert self.count in (None, len(failed)), failed
        assert self.check is None or self.check(failed), failed


class Mistakes:
    """The deliberate mistakes of a chapter."""

    def __init__(self, setup: Patch | None = None) -> None:
        self.setup = setup
        self.entries: list[Mistake] = []
        self.collected = False

    def add(self, row: str, name: str, **verdict: Any) -> Mistake:
        """A new entry, with the arguments of Mistake."""
        mistake = Mistake(row, name, **{"setup": self.setup, **verdict})
        assert verdict.keys() & {"red", "only", "every", "count", "check", "why"}, f"{row}, {name}: say what must fail"
        assert not self.collected, f"{row}, {name}: add it above the test"
        self.entries.append(mistake)
        return mistake

    def each(self, test: Callable[..., None]) -> Any:
        """A decorator: run the test for every entry above it."""
        self.collected, parameters = True, []
        for mistake in self.entries:
            marks = [*mistake.marks, *([pytest.mark.slow] if mistake.slow else [])]
            parameters.append(pytest.param(mistake, marks=marks, id=f"{mistake.row} {mistake.name}"))
        return pytest.mark.parametrize("mistake", parameters)(test)


def _as_tuple(words: str | tuple[str, ...]) -> tuple[str, ...]:
    return (words,) if isinstance(words, str) else words


def _find(words: str, findings: Sequence[Finding]) -> list[Finding]:
    """The expectation of that name; if there is none, those whose names contain the words."""
    matches = [finding for finding in findings if finding.name == words] or [finding for finding in findings if words in finding.name]
    assert matches, f"no expectation contains {words!r}"
    return matches


def _give_right(replacement: Any, right: Any) -> Any:
    """Bind `right`, if the replacement asks for it, to what it replaces."""
    if not inspect.isfunction(replacement):
        return replacement
    signature = inspect.signature(replacement)
    if next(iter(signature.parameters), "") != "right":
        return replacement

    def call(*args: Any, **options: Any) -> Any:
        return replacement(right, *args, **options)

    call.__signature__ = signature.replace(parameters=list(signature.parameters.values())[1:])  # type: ignore[attr-defined]
    return call


def two_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every training with two seeds: the fewest that make a spread, for mistakes that need no third."""

    def seeds(self: Exhibit, n: int = 3) -> range:
        self.trainings = n
        return range(2)

    monkeypatch.setattr(Exhibit, "seeds", seeds)
