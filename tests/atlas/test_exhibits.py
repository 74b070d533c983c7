"""Every exhibit passes; and each chapter has a table of mistakes, made on purpose, that turn it red."""

from __future__ import annotations

import importlib

import pytest

from sonde.atlas import _margins
from sonde.atlas.exhibit import exhibits, run

MEASURED = _margins.read()
LONG = {
    *("OPT-14", "OPT-15", "REG-06", "LIN-16", "LIN-25", "RNN-02", "RNN-12", "ATT-15"),
    *("S2S-01", "S2S-02", "S2S-03", "S2S-06", "S2S-09", "CNN-18", "RES-03", "RES-08", "VIT-02", "VIT-03"),
    *("AE-01", "AE-03", "AE-05", "AE-07", "AE-08", "AE-09", "AE-10"),
    *("LM-03", "LM-08", "LM-10", "LM-11", "LM-12", "LM-13", "LM-15", "LM-16", "LM-17", "LM-18"),
    *("APP-01", "APP-02", "APP-03", "APP-04", "APP-05", "APP-06"),
}
"""rows that train for five seconds or more; `make test-all` and `sonde atlas --check` run them too"""


@pytest.mark.parametrize("row", [pytest.param(row, marks=pytest.mark.slow) if row in LONG else row for row in exhibits()])
def test_passes(row):
    result = run(row)
    assert result.passed, result.why
    assert _margins.stale(result, MEASURED) == [], "run make margins"


def test_the_first_exhibits_are_there():
    first = {"PAR-01", "PAR-02", "PAR-03", "MISC-01", "CNN-12", "CNN-16", "MLP-03", "OPT-05", "OPT-06", "REG-05", "REG-07"}
    assert first <= set(exhibits())


def test_every_chapter_has_a_mistake_of_its_own():
    chapters = {path.stem for path in exhibits().values()}
    for chapter in chapters:
        table = importlib.import_module(f"tests.atlas.test_{chapter}").mistakes
        own = {row for row, path in exhibits().items() if path.stem == chapter}
        assert table.collected and own & {mistake.row for mistake in table.entries}, chapter
