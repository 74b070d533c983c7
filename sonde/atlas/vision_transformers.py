"""Chapter 20, vision transformers."""

from __future__ import annotations

import itertools
import math
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..core.batch import Batch, Data
from ..core.reading import Images, Subject
from ..core.recipe import Recipe
from ..data import augment
from ..data.catalog import load
from ..data.tensors import TensorSource
from ..lenses import overlay
from ..models.pixels import Pixels, quantize_pixels
from ..models.published import published_model, size
from ..models.vit import ViT, patchify, unpatchify
from ..nn.mixers.attention import scores
from ..objectives.categorical import Categorical
from ..optim.build import optimizer
from ..optim.schedules import warmup_cosine
from ..recipes.tools.parts import apply_with_chance
from ..report.draw import draw
from .exhibit import Exhibit, spread

EPOCHS, STEPS = 16, 160
PENALTIES = (0.03, 0.1, 0.3, 1.0, 3.0)
"""inverse strengths of the linear model's penalty, of which each split's validation part chooses one"""
LEVELS = 17
"""values of a pixel in the bundled digits"""


def vit_01(exhibit: Exhibit) -> str:
    """An image is 196 patches of 768 numbers; their learned linear map is a convolution that steps by a patch."""
    x = torch.randn(2, 3, 224, 224, dtype=torch.float64, generator=torch.Generator().manual_seed(exhibit.seed))
    patches = patchify(x, 16)
    exhibit.expect("patches of a 224 x 224 image, and numbers of each", list(patches.shape[1:]), [196, 768])
    corner = x[:, :, 16:32, 208:224].flatten(1)
    exhibit.expect("the last patch of the second row, cut by hand", patches[:, 27], corner.numpy())
    model = ViT(width=24, depth=1, heads=2, classes=2).double()
    linear = F.linear(patches, model.patches.weight.flatten(1), model.patches.bias)
    gap = exhibit.expect(
        "convolution of stride 16 against the linear map", model.patches(x).flatten(2).mT.detach(), linear.detach().numpy(), 1e-10
    )
    exhibit.expect("patches put together again", unpatchify(patches, 16, (224, 224)), x.numpy())
    exhibit.refuses("a side that is no multiple of the patch", lambda: patchify(x[:, :, :-1], 16))
    shown = load("shapes", seed=exhibit.seed, n=10, size=64, color=True, noise=0.05).train[:1].x
    cut = [each.movedim(0, -1) for each in patchify(shown, 16).unflatten(2, (3, 16, 16))[0].clamp(0, 1)]
    exhibit.show(Images("One image as 16 patches", {"patches": cut}, axes=["patch", "row", "column"], note="Read row by row."))
    return (
        f"{patches.shape[1]} patches of {patches.shape[2]} numbers; linear map = convolution to {gap:.0e}; put together again bit for bit"
    )


def vit_02(exhibit: Exhibit) -> str:
    """Patches, a token for the answer, positions, an encoder, a linear map: above what a linear model reads from the pixels."""
    model: Any = published_model("vit_b16")
    number, tokens = size(model), model.features(torch.zeros(1, 3, 224, 224, device="meta")).shape[1]
    exhibit.expect("numbers of ViT-B/16", number, 86_567_656)
    exhibit.expect("tokens in its encoder", tokens, 197)
    accuracies, linear, strengths = [], [], []
    for seed in exhibit.seeds(3):
        data = load("digits", seed=seed)
        assert data.test is not None
        model, test = exhibit.train(_digits(data), f"digits {seed}", seed=seed).model().eval(), data.test[:]
        with torch.no_grad():
            accuracies.append(float((model(test.x).argmax(1) == test.y).float().mean()))
        peer = _linear(data)
        linear.append(float(peer.score(test.x.flatten(1).numpy(), test.y.numpy())))
        strengths.append(f"{peer.C:g}")
    gains = [ours - theirs for ours, theirs in zip(accuracies, linear)]
    exhibit.above("test accuracy above scikit-learn's logistic regression on the same split", gains, 0.0, mean=True)
    exhibit.above("test accuracy of a ViT on 8 x 8 digits, patches of 4 x 4", accuracies, 0.945)
    seen = overlay.weights(model, test[:6])
    exhibit.expect("what a token takes of all others adds up to", seen[-1].sum(-1), torch.ones(seen[-1].shape[:-1]).numpy(), 1e-5)
    overlay_reading = overlay.read(Subject(model, test, data=data), n=6)
    exhibit.above("bytes of the saved attention overlay", draw(overlay_reading, exhibit.folder / "overlay.png").stat().st_size, 1000)
    exhibit.show(overlay_reading)
    return (
        f"{number:,} numbers, {tokens} tokens; digits {spread(accuracies, '.1%')}, linear {spread(linear, '.1%')} "
        f"(C = {', '.join(strengths)} by validation), {len(linear)} splits"
    )


def _digits(data: Data) -> Recipe:
    """A small ViT that sees training images only; its rate and epochs were chosen by the validation parts."""
    return Recipe(
        model=partial(ViT, (8, 8), patch=4, width=64, depth=2, heads=4, classes=10, channels=1, ffn=2.0),
        data=Data(data.train, name=data.name, task=data.task, classes=data.classes),
        objective=Categorical(10),
        optimizer=optimizer("adamw", lr=4e-3, weight_decay=0.05),
        schedule=warmup_cosine(),
        augment=apply_with_chance(augment.shift(1), 0.25),
        clip_norm=1.0,
        batch_size=64,
        epochs=EPOCHS,
    )


def _linear(data: Data) -> Any:
    """A linear model of the training images, trained to its optimum, with the penalty that is best on the validation part."""
    from sklearn.linear_model import LogisticRegression

    train, valid = ((part.x.flatten(1).numpy(), part.y.numpy()) for part in (data.splits["train"][:], data.splits["valid"][:]))
    models = [LogisticRegression(C=strength, max_iter=2000).fit(*train) for strength in PENALTIES]
    return max(models, key=lambda model: model.score(*valid))


def vit_03(exhibit: Exhibit) -> str:
    """Pixel after pixel an image is a sequence; patches are needed because attention compares all pairs."""
    with torch.device("meta"):
        long = Pixels((224, 224), 256, width=8, depth=1).body.positions
        few = ViT(width=8, depth=1, heads=1, pool="mean").tokens
    assert long is not None and long.max_positions is not None
    many = long.max_positions
    exhibit.expect("tokens of 224 x 224 pixels", many, 50_176)
    exhibit.expect("pairs of them, in each head", _pairs(many), 2_517_630_976)
    exhibit.expect("pairs of patches of 16 x 16", _pairs(few), 38_416)
    whole = Pixels((2, 2), 3, classes=2, width=8, depth=1).double()
    every = torch.tensor(list(itertools.product(range(3), repeat=4))).view(-1, 2, 2)
    with torch.no_grad():
        total = whole.log_prob(every, torch.ones(len(every), dtype=torch.long)).exp().sum()
    exhibit.expect("probabilities of all 81 images of 2 x 2 pixels and 3 levels add up to", total, 1.0, 1e-9)
    labels = torch.arange(10).repeat_interleave(20)
    bits, alone, known = [], [], []
    for seed in exhibit.seeds(3):
        data = load("digits", seed=seed, standardize=False)
        assert data.test is not None
        train, test = _levels(data.train[:]), _levels(data.test[:])
        model = exhibit.train(_pixels(train), f"pixels {seed}", seed=seed).model().eval()
        with torch.no_grad():
            bits.append(float(-model.log_prob(test.x, test.label).mean()) / 64 / math.log(2))
            drawn = model.sample(len(labels), labels, torch.Generator().manual_seed(seed))
        alone.append(_independent_pixels(train, test))
        known.append(_recognized_fraction(train, drawn, labels))
    gains = [theirs - ours for ours, theirs in zip(bits, alone)]
    exhibit.above("bits per pixel saved over pixels that only know their place and the digit, new images", gains, 0.1)
    exhibit.above("share of samples in which a classifier of real digits sees the digit asked for", known, 0.7)
    sheet = [each / (LEVELS - 1) for each in drawn[labels.sort().indices][::4].double()]
    exhibit.show(
        Images(
            "Digits drawn pixel by pixel",
            {"samples": sheet},
            axes=["sample", "row", "column"],
            note="Five of each digit asked for, none chosen by hand.",
            labels=[str(i // 5) for i in range(50)],
        )
    )
    return (
        f"{_pairs(many):,} pairs of pixels, {_pairs(few):,} of patches; 8 x 8 digits at {spread(bits)} bits per pixel "
        f"(pixels alone {spread(alone)}), {spread(known, '.0%')} of samples recognized"
    )


def _pairs(tokens: int) -> int:
    """Scores of one head."""
    x = torch.zeros(1, 1, tokens, 4, device="meta")
    return scores(x, x, torch.zeros(1, tokens, dtype=torch.long, device="meta")).numel()


def _levels(batch: Batch) -> Batch:
    x = quantize_pixels(batch.x, LEVELS)
    return Batch(x=x, y=x, label=batch.y)


def _pixels(train: Batch) -> Recipe:
    return Recipe(
        model=partial(Pixels, (8, 8), LEVELS, classes=10, width=32, depth=2),
        data=Data(TensorSource(**train.fields), name="digits"),  # type: ignore[arg-type]
        objective=Categorical(LEVELS),
        optimizer=optimizer("adamw", lr=8e-3, weight_decay=0.05),
        schedule=warmup_cosine(),
        clip_norm=1.0,
        batch_size=32,
        steps=STEPS,
    )


def _independent_pixels(train: Batch, test: Batch) -> float:
    """Bits per pixel where each pixel is drawn by how often its levels came at its position in images of the digit."""
    often = torch.full((10, 64, LEVELS), 0.1, dtype=torch.float64)
    for level in range(LEVELS):
        often[..., level].index_add_(0, train.label, (train.x == level).flatten(1).double())
    log_probabilities: Tensor = (often / often.sum(-1, keepdim=True)).log2()
    return float(-log_probabilities[test.label].gather(-1, test.x.flatten(1).unsqueeze(-1)).mean())


def _recognized_fraction(train: Batch, drawn: Tensor, labels: Tensor) -> float:
    """Fraction of samples in which a support vector machine, trained on real digits, recognizes the requested digit."""
    from sklearn.svm import SVC

    classifier = SVC(C=10, gamma=0.001).fit(train.x.flatten(1).numpy(), train.label.numpy())
    return float(classifier.score(drawn.flatten(1).numpy(), labels.numpy()))
