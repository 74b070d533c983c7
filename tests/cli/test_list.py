"""`sonde list` names exactly what the parts themselves know, without importing them."""

from __future__ import annotations

import pytest

from sonde.cli import _catalogue
from sonde.cli.main import main
from sonde.core import shelf
from sonde.data import catalogue
from sonde.optim import build, initialise, schedules

AUTHORITIES = {
    "recipes": lambda: shelf.names("recipes"),
    "models": lambda: shelf.names("models"),
    "mixers": lambda: shelf.names("nn.mixers"),
    "objectives": lambda: shelf.names("objectives"),
    "lenses": lambda: shelf.names("lenses"),
    "data": catalogue.names,
    "optimisers": build.names,
    "schedules": schedules.names,
    "initialisers": initialise.names,
}


@pytest.mark.parametrize("kind", _catalogue.KINDS)
def test_lists_are_complete_and_say_what_things_are(kind: str, capsys: pytest.CaptureFixture) -> None:
    entries = _catalogue.entries(kind)
    assert sorted(entries) == sorted(AUTHORITIES[kind]())
    assert all(entries.values())
    assert main(["list", kind]) == 0
    shown = capsys.readouterr().out
    assert all(f"  {name} " in shown for name in entries)


def test_the_overview_names_everything(capsys: pytest.CaptureFixture) -> None:
    assert main(["list"]) == 0
    shown = capsys.readouterr().out
    assert all(kind in shown and all(name in shown for name in _catalogue.entries(kind)) for kind in _catalogue.KINDS)


def test_a_wrong_kind_gets_the_nearest(capsys: pytest.CaptureFixture) -> None:
    assert main(["list", "recipies"]) == 2
    assert capsys.readouterr().err == "error: there is no list of 'recipies'; did you mean 'recipes'?\n"
