"""A run opened where its data set is not found, and its recipe takes another one: the reason is told, not its consequence."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sonde import Data, Recipe
from sonde.api.run import open_run
from sonde.api.training import train
from sonde.core.errors import DataUnusable
from sonde.data.catalog import load
from sonde.models.mlp import MLP
from sonde.objectives.categorical import Categorical
from sonde.optim.build import optimizer


def small(data: Data, widths: tuple[int, ...]) -> Recipe:
    return Recipe(model=lambda: MLP(widths), data=data, objective=Categorical(), optimizer=optimizer("sgd", lr=0.1), epochs=1)


def recipe(seed: int = 0) -> Recipe:
    """Iris where a file says so, else moons."""
    found = Path("found").exists()
    return small(load("iris" if found else "moons"), (4, 5, 3) if found else (2, 5, 2))


def test_the_set_it_was_trained_on_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("found").touch()
    train(recipe, run="run", quiet=True, threads=1)
    assert open_run("run", recipe).model() is not None
    Path("found").unlink()
    for use in (lambda run: run.model(), lambda run: run.data, lambda run: run.look("confusion")):
        with pytest.raises(DataUnusable, match="trained on 'iris', and the data found now are 'moons'") as caught:
            use(open_run("run", recipe))
        assert "set SONDE_DATA to the folder that has 'iris'" in caught.value.render()


def test_a_set_of_another_name_with_the_same_examples_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data = load("iris")

    def named() -> Recipe:
        return small(data, (4, 5, 3))

    train(named, run="run", quiet=True, threads=1)
    data = replace(data, name="flowers")
    assert open_run("run", named).data.name == "flowers"
