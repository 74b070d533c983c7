"""`sonde list` names exactly what the parts themselves know, without importing them."""

from __future__ import annotations

import pytest

from sonde.cli import _catalog
from sonde.cli.main import main
from sonde.core import registry
from sonde.data import catalog
from sonde.models.published import PUBLISHED
from sonde.optim import build, initialize, schedules

AUTHORITIES = {
    "recipes": lambda: registry.names("recipes"),
    "models": lambda: [*registry.names("models"), *PUBLISHED],
    "mixers": lambda: registry.names("nn.mixers"),
    "objectives": lambda: registry.names("objectives"),
    "lenses": lambda: registry.names("lenses"),
    "data": catalog.names,
    "optimizers": build.names,
    "schedules": schedules.names,
    "initializers": initialize.names,
}


@pytest.mark.parametrize("kind", _catalog.KINDS)
def test_lists_are_complete_and_say_what_things_are(kind: str, capsys: pytest.CaptureFixture) -> None:
    entries = _catalog.entries(kind)
    assert sorted(entries) == sorted(AUTHORITIES[kind]())
    assert all(entries.values())
    assert main(["list", kind]) == 0
    shown = capsys.readouterr().out
    assert all(f"  {name} " in shown for name in entries)


@pytest.mark.parametrize("name", [*registry.names("models"), "gpt2", "vit_b32", "resnet18"])
def test_what_is_listed_as_a_model_is_explained(name: str, capsys: pytest.CaptureFixture) -> None:
    assert name in _catalog.entries("models") and main(["explain", name]) == 0
    assert "parameters" in capsys.readouterr().out or name == "ngram"


def test_the_overview_names_everything(capsys: pytest.CaptureFixture) -> None:
    assert main(["list"]) == 0
    shown = capsys.readouterr().out
    assert all(kind in shown and all(name in shown for name in _catalog.entries(kind)) for kind in _catalog.KINDS)


def test_a_wrong_kind_gets_the_nearest(capsys: pytest.CaptureFixture) -> None:
    assert main(["list", "recipies"]) == 2
    assert capsys.readouterr().err == "error: there is no list of 'recipies'; did you mean 'recipes'?\n"
