"""Recipes over images end with figures of the test part that an outside authority, or a count by hand, confirms."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import sonde
from sonde.core.batch import Batch, Data
from sonde.core.errors import BadInput
from sonde.core.seeds import generator
from sonde.data.catalog import load
from sonde.data.tensors import TensorSource, ToFloat
from sonde.recipes import cifar_cnn, images, vit_digits
from sonde.recipes.image_text import caption_number, distinct_captions, similarity
from sonde.recipes.pixels import independent_log_prob, quantize_levels
from sonde.recipes.segment import iou
from sonde.recipes.tools.linear import C_GRID, linear_baseline
from sonde.recipes.tools.samples import load_unlabeled, pixel_levels
from sonde.recipes.tools.sheets import save_image_rows


def event_text(run, name: str) -> str:
    return next(row["text"] for row in run.events if row["event"] == name)


def test_the_linear_model_is_chosen_on_the_validation_part():
    """Against scikit-learn directly; the test part has no say."""
    from sklearn.linear_model import LogisticRegression

    data = load("digits", seed=1)
    x, y = data.train[:].x.flatten(1).numpy(), data.train[:].y.numpy()
    models = [LogisticRegression(C=C, max_iter=1000).fit(x, y) for C in C_GRID]
    scores = [np.mean(model.predict(data.valid[:].x.flatten(1).numpy()) == data.valid[:].y.numpy()) for model in models]
    best = models[int(np.argmax(scores))]
    baseline = linear_baseline(data)
    assert baseline.valid == max(scores) and baseline.C == best.C and baseline.examples == 1258
    assert baseline.test == np.mean(best.predict(data.test[:].x.flatten(1).numpy()) == data.test[:].y.numpy())
    backwards = replace(data, test=TensorSource(data.test[:].x, 9 - data.test[:].y))
    assert linear_baseline(backwards)[0::2] == baseline[0::2] and f"{baseline.test:.4f}" in str(baseline)


def test_a_transformer_stands_beside_a_linear_model(tmp_path):
    run = sonde.train("vit_digits", run=tmp_path / "run", threads=1, quiet=True, width=16, depth=1, epochs=1, seed=2)
    assert event_text(run, "linear model") == str(linear_baseline(load("digits", seed=2)))


def test_a_folder_of_images_says_what_the_network_needs(tmp_path):
    """Height, width, classes and levels come from the data; 12 is divided by 4 into 3 patches, so a patch has 2 pixels."""
    from PIL import Image

    for i in range(30):
        path = tmp_path / ("dark" if i % 2 else "light") / f"{i}.png"
        path.parent.mkdir(exist_ok=True)
        Image.new("L", (16, 12), 100 * (i % 2) + i).save(path)
    model = vit_digits.recipe(str(tmp_path), width=8, depth=1, heads=1).model()
    assert model(torch.zeros(3, 1, 12, 16)).shape == (3, 2) and model.patch == 2
    assert pixel_levels(load_unlabeled(str(tmp_path), 0)) == 256 and pixel_levels(load_unlabeled("digits", 0)) == 17
    assert pixel_levels(load_unlabeled("moons", 0)) == 0


def test_overlap_by_hand():
    wanted = torch.tensor([[[0, 0, 1], [2, 2, 1]]])
    predictions = torch.tensor([[[0, 1, 1], [2, 0, 1]]])
    assert iou(predictions, wanted, 3).tolist() == pytest.approx([1 / 3, 2 / 3, 1 / 2])


def test_outlines(tmp_path):
    run = sonde.train("segment", run=tmp_path / "run", threads=1, quiet=True, images=200, size=16, width=4, depth=2, steps=30)
    assert 0.2 < float(event_text(run, "IoU").split()[0]) < 1 and (run.path / "shown" / "outlines.png").stat().st_size > 5000


def test_pixels(tmp_path):
    run = sonde.train("pixels", run=tmp_path / "run", threads=1, quiet=True, width=16, depth=1, epochs=1, levels=3)
    nats, bits = (float(event_text(run, "log p(x)").split()[place]) for place in (0, 4))
    assert nats == pytest.approx(-bits * 64 * math.log(2), abs=0.05)
    assert -nats / 64 == pytest.approx(run.result["metrics"]["test/loss"], abs=1e-3)  # the loss is a mean over pixels
    assert 0.1 <= float(event_text(run, "labels").split()[0]) <= 1 and (run.path / "shown" / "samples.png").stat().st_size > 5000


def test_pixels_that_know_only_their_place():
    """Counts by hand: two labels, two pixels, two levels, a tenth more of everything."""
    train = TensorSource(torch.tensor([[[0, 1]], [[1, 1]], [[0, 0]]]), label=torch.tensor([0, 0, 1]))
    test = Batch(x=torch.tensor([[[0, 1]], [[1, 0]]]), label=torch.tensor([0, 1]))
    chances = [1.1 / 2.2 * 2.1 / 2.2, 0.1 / 1.2 * 1.1 / 1.2]
    log_likelihood = independent_log_prob(Data(train, classes=("a", "b")), test, 2)
    assert log_likelihood == pytest.approx(np.log(chances).mean())


def test_levels_keep_labels():
    data = quantize_levels(load("digits", standardize=False), 17)
    batch = data.train[:50]
    assert batch.x.shape == (50, 8, 8) and batch.x.max() == 16 and torch.equal(batch.x, batch.y) and batch.label.max() == 9


def test_captions(tmp_path):
    """Captions kept out of training, and their images, are met again in the test part only."""
    run = sonde.train("image_text", run=tmp_path / "run", threads=1, quiet=True, images=1000, size=16, channels=(4, 8), unseen=5, steps=20)
    captions, lengths = distinct_captions(run.data)
    present = [set(caption_number(part[torch.arange(len(part))], captions).tolist()) for part in (run.data.train, run.data.test)]
    assert len(captions) == 36 and len(present[0]) == 31 and len(present[1]) > 31
    seen, unseen = (int(event_text(run, name).split(" of ")[1].split()[0]) for name in ("retrieval", "unseen"))
    assert seen + unseen == len(run.data.test) == 150 and unseen > 0
    test = run.data.test[torch.arange(150)]
    right = similarity(run.model(), test, captions, lengths).argmax(1) == caption_number(test, captions)
    kept = torch.tensor([int(i) in present[0] for i in caption_number(test, captions)])
    assert event_text(run, "unseen").startswith(f"{right[~kept].double().mean():.1%} of {int((~kept).sum())} ")
    assert (run.path / "shown" / "found.png").stat().st_size > 5000


def test_rows_of_a_sheet(tmp_path, monkeypatch):
    """Gray and colored pictures, cut to 0..1, each row begun with its name, and short rows filled up."""
    seen = []
    monkeypatch.setattr("sonde.recipes.tools.sheets.draw", lambda reading, path: seen.append((reading, path)))
    gray = 3 * torch.rand(14, 1, 4, 5, generator=generator(0, "gray")) - 1
    save_image_rows(tmp_path, "some", "Some", [("gray", gray), ("color", torch.rand(2, 3, 4, 5))], "A note.")
    ((reading, path),) = seen
    pictures = reading.values["pictures"]
    assert path == tmp_path / "shown" / "some.png" and reading.rows == ["gray", "", "color"] and len(pictures) == 36
    torch.testing.assert_close(torch.tensor(pictures[13]), gray[13, 0].clamp(0, 1))
    assert pictures[14:24] == [None] * 10 and torch.tensor(pictures[24]).shape == (4, 5, 3)


@pytest.mark.parametrize("options", [{"cutout": 4}, {"cutmix": 1.0, "residual": True}, {"cutout": 4, "cutmix": 0.5}])
def test_photographs_with_parts_taken_out_or_mixed(options, tmp_path):
    rng = torch.Generator().manual_seed(0)
    x, y = torch.randint(256, (24, 3, 32, 32), generator=rng, dtype=torch.uint8), torch.arange(24) % 10
    data = Data(TensorSource(x, y, to_float=ToFloat(1 / 255)), name="noise")
    recipe = cifar_cnn.recipe(channels=(4, 8, 16), hidden=8, batch_size=8, **options).replace(data=data, steps=3, epochs=None, log_every=1)
    run = sonde.train(recipe, run=tmp_path / "run", threads=1, quiet=True)
    losses = [row["loss"] for row in run.metrics if "loss" in row]
    assert len(losses) == 3 and all(1 < loss < 6 for loss in losses)


def test_few_pictures_are_seen_often(tmp_path):
    """600 updates at least, unless epochs are given; a file is no folder of pictures."""
    from PIL import Image

    for i in range(30):
        path = tmp_path / "photos" / ("dark" if i % 2 else "light") / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8), 100 * (i % 2) + i).save(path)
    recipe = images.recipe(tmp_path / "photos", size=8, channels=(4,), batch_size=7)
    assert len(recipe.build_data().train) == 24 and recipe.epochs == 600 / 4
    assert images.recipe(tmp_path / "photos", size=8, channels=(4,), batch_size=7, epochs=3).epochs == 3
    with pytest.raises(BadInput, match="29.png' is a file .*; give a folder that has a folder of images for each class"):
        images.recipe(tmp_path / "photos" / "dark" / "29.png")
