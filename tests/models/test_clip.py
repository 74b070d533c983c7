"""Pairs of images and texts: unit vectors, the learned factor, and retrieval that is learned through the engine."""

from __future__ import annotations

import math

import torch

import sonde
from sonde.core.batch import Batch, Data, call_model
from sonde.core.recipe import Recipe
from sonde.data.tensors import TensorSource
from sonde.models.clip import Clip
from sonde.models.cnn import CNN
from sonde.models.topologies import Seq2Vec
from sonde.objectives.contrastive import Contrastive
from sonde.optim.build import optimizer


def make() -> Clip:
    torch.manual_seed(0)
    return Clip(CNN((1, 4), 6, 8, image=(4, 4)), Seq2Vec(9, 6, width=8), temperature=0.1)


def test_unit_vectors_of_each_encoder():
    model = make()
    x, text, lengths = torch.randn(5, 1, 4, 4), torch.randint(9, (5, 3)), torch.tensor([3, 2, 1, 3, 2])
    outputs = call_model(model, Batch(x=x, text=text, lengths=lengths))
    for name, raw in (("image", model.image(x)), ("text", model.text(text, lengths))):
        torch.testing.assert_close(outputs[name], raw / raw.square().sum(1, keepdim=True).sqrt(), rtol=1e-6, atol=1e-6)
    padded = torch.where(torch.arange(3) < lengths.unsqueeze(1), text, 8)
    torch.testing.assert_close(model.texts(padded, lengths), outputs["text"])


def test_the_factor_is_learned_and_bounded():
    model = make()
    torch.testing.assert_close(model.scale.detach(), torch.tensor(10.0))
    model.scale.backward()
    torch.testing.assert_close(model.log_scale.grad, torch.tensor(10.0))
    with torch.no_grad():
        model.log_scale.fill_(math.log(1000))
    torch.testing.assert_close(model.scale.detach(), torch.tensor(100.0))


def test_finds_the_text_of_an_image_after_training(tmp_path):
    """Nine pictures, each with a bright pixel, and two words that say its row and column."""
    torch.manual_seed(0)
    place = torch.arange(9).repeat(4)
    x = torch.zeros(36, 1, 4, 4)
    x[torch.arange(36), 0, place // 3, place % 3] = 3.0
    text = torch.stack([place // 3, 3 + place % 3], 1)
    source = TensorSource(x + 0.1 * torch.randn_like(x), text=text, lengths=torch.full((36,), 2))
    model = make()
    recipe = Recipe(
        model=model,
        data=Data(source, source),
        objective=Contrastive(same="text"),
        optimizer=optimizer("adamw", lr=1e-2),
        batch_size=36,
        steps=60,
    )
    run = sonde.train(recipe, run=tmp_path / "run", quiet=True, threads=1)
    trained = run.model()
    with torch.no_grad():
        scores = trained.images(source.fields["x"]) @ trained.texts(text[:9], torch.full((9,), 2)).mT
    assert float((scores.argmax(1) == place).float().mean()) > 0.9
    last = [row for row in run.metrics if "valid/texts_found" in row][-1]
    assert 0 <= last["valid/images_found"] <= 1
