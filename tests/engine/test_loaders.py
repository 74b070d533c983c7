"""Recipes over torch's own data: loaders with workers, data sets with random transforms, data that can only be read from the start."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from sonde import train
from sonde.core.batch import Data
from sonde.core.errors import BadInput, DataUnusable
from sonde.core.recipe import Recipe
from sonde.data import torch_data
from sonde.objectives.categorical import Categorical
from sonde.optim.build import optimizer
from tests.engine import harness
from tests.engine.harness import attempt, differences, digest, finished, kill_in_save, leftovers


class Pictures(Dataset):
    """Images that are cropped, turned and made noisy at random, with every generator that people use."""

    def __init__(self, many: int = 83) -> None:
        rng = torch.Generator().manual_seed(5)
        self.y = torch.randint(0, 3, (many,), generator=rng)
        self.x = torch.randn(many, 9, generator=rng) + self.y.unsqueeze(1)

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        x = self.x[index] + 0.1 * torch.randn(9) + 0.1 * random.gauss(0, 1) + 0.1 * float(np.random.randn())
        return x.roll(random.randrange(3)), int(self.y[index])


def pad(examples: list[Any]) -> dict[str, Tensor]:
    """A collate function of a user's own."""
    return {"x": torch.stack([x for x, _ in examples]) * 2, "y": torch.tensor([y for _, y in examples])}


class Counting(IterableDataset):
    """Read from its start, with a shuffle of its own."""

    def __iter__(self):
        rng = random.Random(random.random())
        for number in rng.sample(range(50), 50):
            yield torch.full((9,), float(number % 3)) + 0.1 * torch.randn(9), number % 3


def loader_recipe(kind: str = "loader", steps: int = 23, workers: int = 2) -> Recipe:
    train_part: Any = {
        "loader": lambda: DataLoader(Pictures(), 10, shuffle=True, num_workers=workers, collate_fn=pad, drop_last=True),
        "dataset": Pictures,
        "iterable": lambda: DataLoader(Counting(), 10),
    }[kind]()
    return Recipe(
        model=lambda: nn.Sequential(nn.Linear(9, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3)),
        data=Data(train_part, Pictures(21), name="pictures", task="classes"),  # type: ignore[arg-type]
        objective=Categorical(classes=3),
        optimizer=optimizer("adam", lr=0.01),
        steps=steps,
        batch_size=16,
        log_every=1,
        evaluate_every=6,
    )


@pytest.mark.parametrize("kind", ["loader", "dataset", "iterable"])
def test_killed_and_resumed_it_is_the_same_run(kind, memory):
    how = {"recipe": loader_recipe, "kind": kind}
    whole = harness.reference(**how)
    path = memory / "run"
    for rule in (kill_in_save(1, 5), kill_in_save(1, 20)):
        assert attempt(path, rule, **how).wait().killed
    assert differences(digest(finished(path, **how)), whole) == [] and leftovers(path) == []


@pytest.mark.parametrize("kind", ["loader", "dataset", "iterable"])
def test_two_processes_see_the_same_batches(kind, memory):
    how = {"recipe": loader_recipe, "kind": kind, "shards": 2}
    whole = harness.reference(**how)
    path = finished(memory / "run", **how, processes=2)
    assert [name for name in differences(digest(path), whole) if name != "random states"] == []


def test_the_number_of_workers_changes_no_bit(memory):
    one = digest(finished(memory / "one", recipe=loader_recipe, workers=1))
    none = digest(finished(memory / "none", recipe=loader_recipe, workers=0))
    assert differences(one, harness.reference(recipe=loader_recipe, kind="loader")) == []
    assert differences(none, one) == []


def test_a_worker_seed_that_is_not_restored_is_noticed(memory):
    """Planted: what an example draws follows from the number of calls, not from (seed, step)."""
    how = {"recipe": loader_recipe, "kind": "loader", "workers": 0}
    calls = iter(range(10**6))
    real = torch_data.own_randomness

    def by_calls(seed, *parts, **more):
        return real(seed, "call", next(calls)) if parts[0] == "worker" else real(seed, *parts, **more)

    def plant() -> None:
        torch_data.own_randomness = by_calls  # type: ignore[assignment]

    path, whole = memory / "run", memory / "whole"
    finished(whole, before=plant, **how)
    assert attempt(path, kill_in_save(1, 5), plant, **how).wait().killed
    finished(path, before=plant, **how)
    assert "parameters" in differences(digest(path), digest(whole))


def test_an_epoch_is_that_of_the_loader(tmp_path):
    run = train(loader_recipe(steps=12, workers=0), run=tmp_path / "run", quiet=True, threads=1)
    assert run.info["steps_per_epoch"] == 8, "83 examples in batches of 10, the last one dropped"
    assert run.info["data"]["train"]["n"] == 83 and run.info["data"]["valid"]["n"] == 21


def test_a_data_set_that_changed_is_refused(memory):
    how = {"recipe": loader_recipe, "kind": "dataset"}
    assert attempt(memory / "run", kill_in_save(1, 5), **how).wait().killed
    outcome = attempt(memory / "run", before=lambda: setattr(Pictures.__init__, "__defaults__", (70,)), **how).wait()
    assert outcome.code == 3 and "data changed since the run began" in outcome.parts["what"]


class Nothing(Dataset):
    def __len__(self) -> int:
        return 0

    def __getitem__(self, index: int) -> Tensor:
        raise IndexError


class Silent(IterableDataset):
    def __iter__(self):
        return iter(())


class Words(Pictures):
    def __getitem__(self, index: int) -> Any:
        return "a word", 1


@pytest.mark.parametrize(
    "part, message",
    [
        (Nothing(), "the training part is empty"),
        (Words(), "'x' of a batch is a (list|tuple), not a tensor"),
        (DataLoader(Pictures(), batch_size=None), "batch_size=None has no batches"),
        (Silent(), "gave no example"),
    ],
)
def test_data_that_cannot_serve_are_named(part, message, tmp_path):
    recipe = loader_recipe(workers=0)
    with pytest.raises((BadInput, DataUnusable), match=message):
        train(recipe.replace(data=Data(part)), run=tmp_path / "run", quiet=True, threads=1)
    assert not (tmp_path / "run" / "run.json").exists()
