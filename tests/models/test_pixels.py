"""Autoregressive pixels: probabilities of all images add up to 1, nothing leaks, samples follow the model's own distribution."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

import sonde
from sonde.core.batch import Batch, Data
from sonde.core.errors import BadInput
from sonde.core.recipe import Recipe
from sonde.data.tensors import TensorSource
from sonde.models.pixels import Pixels, quantize_pixels
from sonde.objectives.categorical import Categorical
from sonde.optim.build import optimizer


def make(image: tuple[int, int], levels: int, classes: int, mixer: str = "attention heads=2", width: int = 12) -> Pixels:
    torch.manual_seed(0)
    model = Pixels(image, levels, classes, width, 2, mixer).double().eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return model


def every(image: tuple[int, int], levels: int) -> torch.Tensor:
    """All images there are."""
    return torch.tensor(list(itertools.product(range(levels), repeat=image[0] * image[1]))).view(-1, *image)


@torch.no_grad()
@pytest.mark.parametrize("mixer", ["attention heads=2", "gru"])
@pytest.mark.parametrize("classes", [0, 3])
def test_the_probabilities_of_all_images_add_up_to_one(classes, mixer):
    model, x = make((2, 3), 3, classes, mixer), every((2, 3), 3)
    log_probs = []
    for kind in range(max(classes, 1)):
        label = torch.full((len(x),), kind) if classes else None
        log_probs.append(model.log_prob(x, label))
        torch.testing.assert_close(log_probs[-1].exp().sum(), torch.ones((), dtype=torch.float64), rtol=1e-10, atol=1e-10)
    if classes:
        assert not torch.allclose(log_probs[0], log_probs[1])


@torch.no_grad()
def test_a_pixel_is_told_by_earlier_ones_alone():
    model, x = make((3, 4), 5, 2), torch.randint(5, (2, 3, 4), generator=torch.Generator().manual_seed(1))
    label = torch.tensor([1, 0])
    logits = model(x, label).flatten(1, 2)
    for place in range(12):
        other = x.flatten(1).clone()
        other[:, place] = (other[:, place] + 1) % 5
        other_logits = model(other.view(2, 3, 4), label).flatten(1, 2)
        assert torch.equal(other_logits[:, : place + 1], logits[:, : place + 1])
        assert place == 11 or not torch.equal(other_logits[:, place + 1], logits[:, place + 1])
    assert not torch.equal(model(x, 1 - label)[:, 0, 0], model(x, label)[:, 0, 0])  # the kind reaches the first pixel


@torch.no_grad()
def test_samples_come_as_often_as_the_model_says():
    model, x = make((2, 2), 2, 2), every((2, 2), 2)
    n = 8000
    label = torch.full((n,), 1)
    drawn = model.sample(n, label, torch.Generator().manual_seed(3))
    often = torch.bincount((drawn.flatten(1) * torch.tensor([8, 4, 2, 1])).sum(1), minlength=16) / n
    expected = model.log_prob(x, torch.full((16,), 1)).exp()
    # four standard deviations of a fraction of n draws
    assert bool(((often - expected).abs() < 4 * (expected * (1 - expected) / n).sqrt() + 1e-9).all())
    other = model.log_prob(x, torch.zeros(16, dtype=torch.long)).exp()
    assert float((often - other).abs().max()) > 0.02
    again = model.sample(n, label, torch.Generator().manual_seed(3))
    assert torch.equal(again, drawn) and not torch.equal(model.sample(n, label, torch.Generator().manual_seed(4)), drawn)


def test_sampling_leaves_the_mode_alone():
    model = Pixels((2, 2), 3, dropout=0.5)
    assert model.sample(4).shape == (4, 2, 2) and model.training


def test_levels_and_back():
    x = torch.rand(3, 1, 4, 5)
    levels = quantize_pixels(x, 17)
    assert levels.shape == (3, 4, 5) and levels.dtype == torch.int64
    assert float((levels / 16 - x.squeeze(1)).abs().max()) <= 0.5 / 16 + 1e-6
    assert torch.equal(quantize_pixels(levels.unsqueeze(1) / 16, 17), levels)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: Pixels((1, 1)), "two pixels or more"),
        (lambda: Pixels((2, 3))(torch.zeros(1, 3, 2, dtype=torch.long)), r"takes levels \(batch, 2, 3\)"),
        (lambda: Pixels((2, 3))(torch.zeros(1, 2, 3)), "whole numbers, not .* float32"),
        (lambda: Pixels((2, 3), 4)(torch.full((1, 2, 3), 4)), "token out of range: 4"),
        (lambda: Pixels((2, 3), classes=3)(torch.zeros(1, 2, 3, dtype=torch.long)), "needs a label for each image"),
        (lambda: Pixels((2, 3)).sample(2, torch.zeros(2, dtype=torch.long)), "takes no labels"),
        (lambda: Pixels((2, 3), classes=3).sample(1, torch.tensor([3])), "no class 3"),
        (lambda: Pixels((2, 3), classes=3).sample(2, torch.tensor([1])), "one label for each"),
        (lambda: quantize_pixels(torch.zeros(1, 3, 2, 2), 4), "gray images"),
        (lambda: quantize_pixels(torch.full((1, 1, 2, 2), -0.5), 4), "from 0 to 1"),
    ],
)
def test_errors(call, message):
    with pytest.raises(BadInput, match=message):
        call()


def test_learns_two_images_by_kind_through_the_engine(tmp_path):
    torch.manual_seed(0)
    pair = torch.tensor([[[0, 1, 2], [2, 1, 0]], [[2, 2, 1], [0, 0, 1]]])
    label = torch.arange(16) % 2
    source = TensorSource(pair[label], pair[label], label=label)
    model = Pixels((2, 3), 3, 2, 16, 1, "gru")
    recipe = Recipe(
        model=model, data=Data(source, source), objective=Categorical(3), optimizer=optimizer("adamw", lr=2e-2), batch_size=16, steps=80
    )
    run = sonde.train(recipe, run=tmp_path / "run", quiet=True, threads=1)
    trained: nn.Module = run.model()
    with torch.no_grad():
        assert float(trained.log_prob(pair, torch.arange(2)).exp().min()) > 0.5
    batch = Batch(**source.fields)
    assert torch.equal(trained.sample(16, batch.label, torch.Generator().manual_seed(0))[:2], pair)
