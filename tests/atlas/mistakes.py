"""What the files of deliberate mistakes share: run an exhibit that must not pass, and see which expectations noticed."""

from __future__ import annotations

import pytest

from sonde.atlas.exhibit import Exhibit, run


def wrong(row: str) -> list[str]:
    """Names of the expectations that did not hold."""
    result = run(row)
    assert not result.passed and not result.error, result.why or f"{row} did not notice"
    return [finding.name for finding in result.findings if not finding.passed]


def two_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every training with two seeds: the fewest that make a spread, for mistakes that need no third."""

    def seeds(self: Exhibit, n: int = 3) -> range:
        self.trainings = n
        return range(2)

    monkeypatch.setattr(Exhibit, "seeds", seeds)


def any_of(names: list[str], word: str) -> bool:
    return any(word in name for name in names)
