"""Recipes of auto-encoders: each kind learns, says what it found and draws it; layers learnt one by one fit together."""

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
from sonde.data.catalogue import load
from sonde.data.tensors import TensorSource
from sonde.models.autoencoder import dense
from sonde.models.mlp import MLP
from sonde.recipes._stacked import denoising, first_layers, greedy, layer
from sonde.recipes.vae import binarised


def told(run, name: str) -> str:
    return next(row["text"] for row in run.events if row["event"] == name)


@pytest.mark.parametrize("kind", ["plain", "sparse", "contractive", "denoising"])
def test_kinds(kind, tmp_path):
    more: dict = {"sparse": {"code": 32, "network": "tied"}, "contractive": {"code": 32, "lr": 0.01}}.get(kind, {})
    run = sonde.train("autoencoder", run=tmp_path / "run", threads=1, quiet=True, kind=kind, epochs=10, **more)
    words = told(run, "squared error").split(", ")
    errors = {one.rsplit(" ", 1)[0]: float(one.rsplit(" ", 1)[1]) for one in [word.split(" per")[0] for word in words]}
    assert errors["auto-encoder"] < 0.9 * errors["mean picture"]
    if kind == "denoising":
        assert errors["auto-encoder"] < 0.7 * errors["the noise itself"] and errors["the noise itself"] == pytest.approx(0.09, rel=0.1)
    assert (run.path / "figures" / "reconstructions.png").stat().st_size > 5000


def test_convolutional(tmp_path):
    run = sonde.train("autoencoder", run=tmp_path / "run", threads=1, quiet=True, network="convolutional", epochs=2)
    assert run.result["figures"]["test/squared_error"] < 0.12
    with pytest.raises(BadInput, match="sparse"):
        sonde.train("autoencoder", run=tmp_path / "other", quiet=True, network="convolutional", kind="sparse")


@pytest.mark.parametrize("network, hidden", [("dense", (64,)), ("convolutional", (8, 16))])
def test_vae(network, hidden, tmp_path):
    run = sonde.train("vae", run=tmp_path / "run", threads=1, quiet=True, epochs=8, network=network, hidden=hidden, samples=20)
    elbo = float(told(run, "ELBO").split()[0])
    assert elbo == pytest.approx(-run.result["figures"]["test/loss"], abs=0.3)  # other noise, and so a little off
    assert -40 < elbo < float(told(run, "log p(x)").split()[2]) < -20
    for name in ("samples", "reconstructions", "codes"):
        assert (run.path / "figures" / f"{name}.png").stat().st_size > 5000


def test_pixels_are_drawn_with_their_chances():
    batch = Batch(x=torch.tensor([0.0, 0.2, 0.7, 1.0]).expand(50_000, 4))
    drawn = binarised(batch, generator(0, "pixels")).x
    assert set(drawn.unique().tolist()) == {0.0, 1.0}
    torch.testing.assert_close(drawn.mean(0), batch.x[0], rtol=0, atol=0.01)


def test_denoising_keeps_the_clean_input():
    batch = Batch(x=torch.zeros(4, 3), y=torch.arange(4))
    changed = denoising(augment.noise(1.0))(batch, generator(0, "noise"))
    assert torch.equal(changed.clean, batch.x) and changed.x.std() > 0.5 and torch.equal(changed.y, batch.y)


def test_layers_one_by_one(tmp_path):
    """Each stage reads the codes of the one before, and all together are the first layers of a network."""
    data = replace(load("digits"), valid=None, test=None)
    learnt = greedy(
        data,
        (20, 12),
        partial(layer, activation="sigmoid", noise=0.2, epochs=1),
        lambda recipe, name: sonde.train(recipe, run=tmp_path / name, threads=1, quiet=True),
    )
    model, x = MLP((64, 20, 12, 10), "sigmoid"), data.train[:5].x
    first_layers(learnt)(model)
    wanted = learnt[1].encode(learnt[0].encode(x))
    torch.testing.assert_close(torch.sigmoid(model.layers.dense2(torch.sigmoid(model.layers.dense1(x.flatten(1))))), wanted)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["layer1", "layer2"]
    with pytest.raises(BadInput, match="do not fit"):
        first_layers(learnt)(MLP((64, 21, 12, 10)))


def test_a_layer_without_labels(tmp_path):
    data = Data(TensorSource(torch.rand(40, 6, generator=generator(0, "x"))))
    made = layer(data, 3, epochs=1).build_model()
    assert isinstance(made, type(dense((6,), (3,)))) and made(data.train[:].x).shape == (40, 6)
