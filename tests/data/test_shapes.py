"""Made-up pictures: what is drawn is what labels, masks and captions say."""

from __future__ import annotations

import math

import pytest
import torch

from sonde.data.catalog import load
from sonde.data.shapes import COLORS, KINDS, Shapes, captions, random_shapes


def single_shape(kind: int, radius: float = 0.4, turn: float = 0.0) -> Shapes:
    one = torch.zeros(1, 1)
    return Shapes(torch.full((1, 1), kind), one.long(), one, one, one + radius, one + turn)


@pytest.mark.parametrize("turn", [0.0, 0.4])
@pytest.mark.parametrize("kind", range(3))
def test_areas_are_those_of_geometry(kind, turn):
    r = 0.4
    arm, width = 2 * 1.1 * r, 2 * 0.3 * r
    area = (math.pi * r**2, (2 * 0.85 * r) ** 2, 2 * arm * width - width**2)[kind]
    drawn = single_shape(kind, r, turn).inside(500).double().mean() * 4
    assert drawn == pytest.approx(area, rel=0.01)


def test_things_stay_inside_and_on_their_side():
    things = random_shapes(3000, 2, torch.Generator().manual_seed(3))
    assert (things.x.abs() + 1.1 * things.radius).max() < 1 and (things.y.abs() + 1.1 * things.radius).max() < 1
    assert things.x.abs().min() >= 0.1
    assert all(900 < n < 1100 for n in torch.bincount(things.kind[:, 0]).tolist())


def test_masks_cover_what_is_bright():
    batch = load("shapes", seed=5, n=60, size=24, many=2, target="mask", noise=0).train[:]
    assert torch.equal(batch.x[:, 0] > 0, batch.y > 0)
    assert set(batch.y.unique().tolist()) == {0, 1, 2, 3}


def test_captions_tell_what_is_there():
    data = load("shapes", seed=1, n=200, size=16, color=True, target="caption", noise=0)
    batch, words = data.train[:], data.reader.vocabulary
    for x, y, text, length in zip(batch.x, batch.y, batch.text, batch.lengths):
        caption = words.decode(text[:length]).split()
        middle = x.amax(0).sum(0) @ (torch.arange(16.0) - 7.5)
        tint = x.flatten(1).sum(1).argmax()
        assert caption[3] == KINDS[y] and caption[2] == list(COLORS)[tint] and caption[-1] == ("right" if middle > 0 else "left")


def test_a_seed_gives_the_same_pictures_and_another_seed_others():
    first, again, other = (load("shapes", seed=seed, n=30, size=12).train[:].x for seed in (4, 4, 5))
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_a_caption_names_size_and_side():
    things = single_shape(2, radius=0.25)._replace(x=torch.full((1, 1), 0.3))
    assert captions(things, color=False) == ["a small cross on the right"]
