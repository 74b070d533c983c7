"""Recipes reach what they promise on real data."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import sonde
from sonde.core.batch import Batch
from sonde.core.errors import BadInput
from sonde.core.seeds import generator
from sonde.data import augment
from sonde.nn.affine import Affine
from sonde.recipes import table
from sonde.recipes.tools.parts import apply_with_chance


def figures(name: str, where, seed: int = 0, **options) -> dict[str, float]:
    return sonde.train(name, run=where, seed=seed, threads=1, quiet=True, **options).result["metrics"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_digits_cnn(seed, tmp_path):
    assert figures("digits_cnn", tmp_path / "run", seed)["test/accuracy"] >= 0.985


def test_digits_cnn_learns_quickly(tmp_path):
    assert figures("digits_cnn", tmp_path / "run", epochs=5)["valid/accuracy"] > 0.9


def test_xor_needs_its_hidden_layer(tmp_path):
    assert figures("xor", tmp_path / "with")["test/accuracy"] > 0.98
    assert figures("xor", tmp_path / "without", hidden=())["test/accuracy"] < 0.8


def test_wine(tmp_path):
    assert figures("wine", tmp_path / "run")["test/accuracy"] > 0.9


def test_diabetes_beats_the_mean_in_its_own_units(tmp_path):
    run = sonde.train("diabetes", run=tmp_path / "run", threads=1, quiet=True)
    train, test = run.data.train[:].y, run.data.test[:].y
    mean_error = (test - train.mean()).square().mean().item()
    assert run.result["metrics"]["test/squared_error"] < 0.75 * mean_error
    assert run.predict(run.data.test[:]).mean().item() == pytest.approx(train.mean().item(), rel=0.15)


def test_sine_finds_the_noise(tmp_path):
    metrics = figures("sine", tmp_path / "run", steps=1200)
    assert metrics["test/squared_error"] == pytest.approx(0.1**2, rel=0.5)


@pytest.mark.parametrize("task, target", [("classes", "grade"), ("values", "price"), ("counts", "rooms")])
def test_table_picks_the_likelihood(task, target, tmp_path):
    random = np.random.default_rng(0)
    size = random.uniform(20, 200, 120)
    lines = [f"{s:.1f},{1000 * s + 500:.0f},{int(s // 30)},{'big' if s > 100 else 'small'}" for s in size]
    file = tmp_path / "homes.csv"
    file.write_text("size,price,rooms,grade\n" + "\n".join(lines), encoding="utf-8")
    others = tuple({"price", "rooms", "grade"} - {target})
    recipe = table.recipe(file, target, task="auto" if task != "counts" else "counts", ignore=others)
    assert type(recipe.objective).__name__ == {"classes": "Categorical", "values": "Gaussian", "counts": "Poisson"}[task]
    metrics = figures(
        "table", tmp_path / "run", data=file, target=target, ignore=others, task="auto" if task != "counts" else "counts", batch_size=16
    )
    if task == "classes":
        assert metrics["test/accuracy"] > 0.9
    else:
        assert metrics["test/absolute_error"] < (20_000 if task == "values" else 1.0)


def test_table_with_a_wrong_column(tmp_path):
    (tmp_path / "t.csv").write_text("a,b\n1,2\n3,4\n5,6\n", encoding="utf-8")
    with pytest.raises(BadInput, match="did you mean 'b'?"):
        sonde.train("table", run=tmp_path / "run", quiet=True, data=tmp_path / "t.csv", target="bb")
    assert not (tmp_path / "run").exists()


def test_affine_by_hand():
    x = torch.tensor([[1.0, -2.0]], requires_grad=True)
    y = Affine(10.0, 3.0)(x)
    assert y.tolist() == [[13.0, 4.0]] and not list(Affine().parameters())
    assert torch.autograd.grad(y.sum(), x)[0].tolist() == [[3.0, 3.0]]


def test_sometimes_reaches_the_given_share():
    batch = Batch(x=torch.rand(4000, 1, 5, 5), y=torch.zeros(4000))
    change = apply_with_chance(augment.flip(1.0), 0.3)
    new = change(batch, generator(0, "a")).x
    flipped, kept = ((new == x).flatten(1).all(1) for x in (batch.x.flip(-1), batch.x))
    assert (flipped | kept).all() and flipped.float().mean().item() == pytest.approx(0.3, abs=0.03)
    assert torch.equal(new, change(batch, generator(0, "a")).x)
    assert torch.equal(apply_with_chance(augment.flip(1.0), 0.0)(batch, generator(0, "a")).x, batch.x)
