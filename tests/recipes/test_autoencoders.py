"""Recipes of auto-encoders: each kind learns, says what it found and draws it; layers learned one by one fit together."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch

import sonde
from sonde.core.batch import Batch, Data
from sonde.core.errors import BadInput
from sonde.core.seeds import generator
from sonde.data import augment
from sonde.data.catalog import load
from sonde.data.tensors import TensorSource
from sonde.models.autoencoder import dense
from sonde.models.mlp import MLP
from sonde.recipes.stacked import reconstruct_by_layer
from sonde.recipes.tools.stacked import first_layers, greedy, keep_clean, layer
from sonde.recipes.vae import binarize


def event_text(run, name: str) -> str:
    return next(row["text"] for row in run.events if row["event"] == name)


@pytest.mark.parametrize("kind", ["plain", "sparse", "contractive", "denoising"])
def test_kinds(kind, tmp_path):
    more: dict = {"sparse": {"code": 32, "network": "tied"}, "contractive": {"code": 32}}.get(kind, {})
    run = sonde.train("autoencoder", run=tmp_path / "run", threads=1, quiet=True, kind=kind, epochs=10, **more)
    words = event_text(run, "squared error").split(", ")
    errors = {one.rsplit(" ", 1)[0]: float(one.rsplit(" ", 1)[1]) for one in [word.split(" per")[0] for word in words]}
    assert errors["autoencoder"] < 0.9 * errors["mean image"]
    if kind == "denoising":
        assert errors["autoencoder"] < 0.7 * errors["the noise itself"] and errors["the noise itself"] == pytest.approx(0.09, rel=0.1)
    assert (run.path / "shown" / "reconstructions.png").stat().st_size > 5000


@pytest.mark.parametrize("penalty", ["l1", "l2", "kl"])
def test_sparse_codes(penalty, tmp_path):
    """A price means fewer numbers in use, whatever it is put on."""
    used = []
    for price in (0.0, 0.3):
        options: dict = {"kind": "sparse", "penalty": penalty, "price": price, "code": 40, "rate": 0.02, "epochs": 6}
        run = sonde.train("autoencoder", run=tmp_path / f"run{price}", threads=1, quiet=True, **options)
        used.append(float(event_text(run, "code").split()[0]))
    assert used[1] < 0.8 * used[0] and f"PCA of {max(round(used[1]), 1)} " in event_text(run, "squared error")


def test_convolutional(tmp_path):
    run = sonde.train("autoencoder", run=tmp_path / "run", threads=1, quiet=True, network="convolutional", epochs=2)
    assert run.result["metrics"]["test/squared_error"] < 0.12
    with pytest.raises(BadInput, match="sparse"):
        sonde.train("autoencoder", run=tmp_path / "other", quiet=True, network="convolutional", kind="sparse")


@pytest.mark.parametrize("network, hidden", [("dense", (64,)), ("convolutional", (8, 16))])
def test_vae(network, hidden, tmp_path):
    run = sonde.train("vae", run=tmp_path / "run", threads=1, quiet=True, epochs=8, network=network, hidden=hidden, samples=20)
    elbo = float(event_text(run, "ELBO").split()[0])
    assert elbo == pytest.approx(-run.result["metrics"]["test/loss"], abs=0.3)  # other noise, and so a little off
    assert -40 < elbo < float(event_text(run, "log p(x)").split()[2]) < -20
    for name in ("samples", "reconstructions", "codes"):
        assert (run.path / "shown" / f"{name}.png").stat().st_size > 5000


def test_pixels_are_drawn_with_their_chances():
    batch = Batch(x=torch.tensor([0.0, 0.2, 0.7, 1.0]).expand(50_000, 4))
    drawn = binarize(batch, generator(0, "pixels")).x
    assert set(drawn.unique().tolist()) == {0.0, 1.0}
    torch.testing.assert_close(drawn.mean(0), batch.x[0], rtol=0, atol=0.01)


def test_denoising_keeps_the_clean_input():
    batch = Batch(x=torch.zeros(4, 3), y=torch.arange(4))
    changed = keep_clean(augment.noise(1.0))(batch, generator(0, "noise"))
    assert torch.equal(changed.clean, batch.x) and changed.x.std() > 0.5 and torch.equal(changed.y, batch.y)


def test_layers_one_by_one(tmp_path):
    """Each stage reads the codes of the one before, and all together are the first layers of a network."""
    data = replace(load("digits"), valid=None, test=None)
    stages = greedy(
        data,
        (20, 12),
        partial(layer, activation="sigmoid", noise=0.2, epochs=1),
        lambda recipe, name: sonde.train(recipe, run=tmp_path / name, threads=1, quiet=True).model(),
    )
    model, x = MLP((64, 20, 12, 10), "sigmoid"), data.train[:5].x
    first_layers(stages)(model)
    wanted = stages[1].encode(stages[0].encode(x))
    torch.testing.assert_close(torch.sigmoid(model.layers.dense2(torch.sigmoid(model.layers.dense1(x.flatten(1))))), wanted)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["layer1", "layer2"]
    with pytest.raises(BadInput, match="do not fit"):
        first_layers(stages)(MLP((64, 21, 12, 10)))


def test_a_layer_without_labels(tmp_path):
    data = Data(TensorSource(torch.rand(40, 6, generator=generator(0, "x"))))
    model = layer(data, 3, epochs=1).build_model()
    assert isinstance(model, type(dense((6,), (3,)))) and model(data.train[:].x).shape == (40, 6)


def test_noise_is_measured_by_what_a_layer_reads():
    x = 0.2 * torch.randn(3000, 5, generator=generator(0, "x"))
    recipe = layer(Data(TensorSource(x)), 3, noise=0.5)
    assert recipe.augment is not None
    batch = recipe.augment(Batch(x=x), generator(0, "noise"))
    assert (batch.x - batch.clean).std().item() == pytest.approx(0.1, rel=0.05)


def test_stacked(tmp_path):
    """Layers learned without labels come into the network, and the same without them stands beside it."""
    run = sonde.train("stacked", run=tmp_path / "run", threads=1, quiet=True, widths=(30, 20), passes=4, steps=40, labels=3)
    assert len(run.data.train) == 30 and run.data.train[:].y.bincount().tolist() == [3] * 10
    for name in ("from scratch", "linear model"):
        assert 0.1 < float(event_text(run, name).split("accuracy of ")[1].split()[0]) < 0.95
    assert (run.path / "shown" / "layers.png").stat().st_size > 5000


def test_a_stack_gives_pictures_back(tmp_path):
    """Through one layer, and through two: what their auto-encoders say, one inside the other."""
    first, second = dense((1, 3, 3), (5,), tied=True), dense((5,), (4,), tied=True)
    x = torch.rand(2, 1, 3, 3, generator=generator(0, "x"))
    (_, same), (one, shallow), (two, deep) = reconstruct_by_layer([first, second], x)
    low, high = x.min(), x.max()
    torch.testing.assert_close(same, (x - low) / (high - low))
    torch.testing.assert_close(shallow, ((first(x) - low) / (high - low)).detach())
    torch.testing.assert_close(deep, ((first.decode(second(first.encode(x))) - low) / (high - low)).detach())
    assert (one, two) == ("through 1 layer", "through 2 layers")
