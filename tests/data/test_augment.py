"""Augmentation against a slow loop over examples; all randomness comes from the generator."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sonde.core.batch import Batch
from sonde.core.errors import BadInput
from sonde.data import augment

CHANGES = {
    "shift": augment.shift(2),
    "flip": augment.flip(),
    "noise": augment.noise(0.3),
    "cutout": augment.cutout(3),
    "rotate": augment.rotate(30),
    "jitter": augment.jitter(0.2, 0.3, 0.4),
    "mixup": augment.mixup(0.4),
    "cutmix": augment.cutmix(),
    "all": augment.compose(augment.shift(1), augment.flip(), augment.noise(0.1), augment.cutout(2)),
}


def batch(many: int = 40, channels: int = 3, height: int = 6, width: int = 5) -> Batch:
    x = torch.arange(many * channels * height * width, dtype=torch.float32).reshape(many, channels, height, width)
    return Batch(x=x, y=torch.arange(many), ids=torch.arange(many))


def draw(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("name", CHANGES)
def test_only_the_generator_decides(name: str) -> None:
    before = torch.get_rng_state()
    first, again, other = (CHANGES[name](batch(), draw(seed)) for seed in (1, 1, 2))
    assert torch.equal(first.x, again.x) and not torch.equal(first.x, other.x)
    assert torch.equal(before, torch.get_rng_state())
    assert first.x.shape == batch().x.shape and torch.equal(first.y, batch().y) and torch.equal(first.ids, batch().ids)


@pytest.mark.parametrize("name", CHANGES)
def test_the_given_batch_is_not_changed(name: str) -> None:
    original = batch()
    CHANGES[name](original, draw())
    assert torch.equal(original.x, batch().x)


def test_shift_equals_numpy_image_by_image_and_all_places_occur() -> None:
    original, pixels = batch(400), 2
    got = augment.shift(pixels)(original, draw()).x.numpy()
    seen = set()
    for image, moved in zip(original.x.numpy(), got, strict=True):
        padded = np.pad(image, ((0, 0), (pixels, pixels), (pixels, pixels)), mode="edge")
        places = [(y, x) for y in range(5) for x in range(5) if np.array_equal(padded[:, y : y + 6, x : x + 5], moved)]
        assert len(places) == 1
        seen.add(places[0])
    assert len(seen) == 25


@pytest.mark.parametrize(("size", "padding", "places"), [(4, 0, 6), (4, 1, 20), (6, 1, 6)])
def test_crop_equals_numpy_image_by_image_and_all_places_occur(size: int, padding: int, places: int) -> None:
    original = batch(400).replace(x=batch(400).x + 1)  # no 0 in the images themselves
    got = augment.crop(size, padding)(original, draw()).x.numpy()
    assert got.shape == (400, 3, size, size)
    seen = set()
    for image, cut in zip(original.x.numpy(), got, strict=True):
        padded = np.pad(image, ((0, 0), (padding, padding), (padding, padding)))
        corners = [(y, x) for y in range(9) for x in range(9) if np.array_equal(padded[:, y : y + size, x : x + size], cut)]
        assert len(corners) == 1
        seen.add(corners[0])
    assert len(seen) == places


def test_a_shift_draws_the_places_it_always_drew() -> None:
    """Runs made with the same seed must see the same images."""
    offset = torch.randint(0, 5, (2, 40), generator=draw())
    padded = np.pad(batch().x.numpy(), ((0, 0), (0, 0), (2, 2), (2, 2)), mode="edge")
    wanted = [image[:, y : y + 6, x : x + 5] for image, y, x in zip(padded, *offset.tolist(), strict=True)]
    assert np.array_equal(augment.shift(2)(batch(), draw()).x.numpy(), np.stack(wanted))


def test_flip_mirrors_about_half_and_never_or_always_on_request() -> None:
    original = batch(200)
    got = augment.flip()(original, draw()).x
    mirrored = [torch.equal(a, b.flip(-1)) for a, b in zip(got, original.x, strict=True)]
    kept = [torch.equal(a, b) for a, b in zip(got, original.x, strict=True)]
    assert all(a != b for a, b in zip(mirrored, kept, strict=True)) and 70 < sum(mirrored) < 130
    assert torch.equal(augment.flip(0.0)(original, draw()).x, original.x)
    assert torch.equal(augment.flip(1.0)(original, draw()).x, original.x.flip(-1))


def test_noise_has_the_deviation_asked_for() -> None:
    original = Batch(x=torch.zeros(400, 50))
    added = augment.noise(0.3)(original, draw()).x
    assert abs(added.mean()) < 0.01 and abs(added.std() - 0.3) < 0.01


def test_cutout_is_one_square_in_all_channels() -> None:
    got = augment.cutout(3)(Batch(x=torch.ones(300, 2, 7, 8)), draw()).x
    sizes = set()
    for image in got:
        hole = image[0] == 0
        assert torch.equal(image[0], image[1])
        rows, columns = hole.any(1).nonzero().flatten(), hole.any(0).nonzero().flatten()
        assert hole.sum() == len(rows) * len(columns) and rows[-1] - rows[0] + 1 == len(rows)
        sizes.add((len(rows), len(columns)))
    assert max(sizes) == (3, 3) and min(sizes) == (2, 2)  # cut off at a border, never gone


def test_rotation_equals_scipy_inside_the_image() -> None:
    """An image that is not square, turned by an angle that is found again from how its center of mass moves."""
    ndimage = pytest.importorskip("scipy.ndimage")
    across, down = torch.arange(31) - 15.0, torch.arange(23) - 11.0
    x = torch.exp(-((across[None, :] - 5) ** 2 + (down[:, None] - 2) ** 2) / 18)[None, None].repeat(6, 1, 1, 1)
    got = augment.rotate(40)(Batch(x=x), draw(3)).x
    for image in got[:, 0]:
        turned = torch.atan2((image.sum(1) @ down) / image.sum(), (image.sum(0) @ across) / image.sum()) - np.arctan2(2, 5)
        assert 0.01 < abs(turned) < np.radians(40) + 0.01
        wanted = ndimage.rotate(x[0, 0].numpy(), -np.degrees(float(turned)), reshape=False, order=1)
        assert np.abs(image.numpy() - wanted)[6:-6, 8:-8].max() < 0.02  # the angle is found to a fraction of a degree


def test_jitter_changes_what_it_says() -> None:
    x = torch.rand(50, 3, 6, 5, generator=draw(1), dtype=torch.float64)
    bright = augment.jitter(brightness=0.3)(Batch(x=x), draw()).x - x
    assert (bright.amax((1, 2, 3)) - bright.amin((1, 2, 3))).max() < 1e-12 and 0.2 < bright.abs().max() <= 0.3
    spread = augment.jitter(contrast=0.5)(Batch(x=x), draw()).x
    assert torch.allclose(spread.mean((1, 2, 3)), x.mean((1, 2, 3)))
    ratio = spread.std((1, 2, 3)) / x.std((1, 2, 3))
    assert 0.5 <= ratio.min() < 0.6 and 1.4 < ratio.max() <= 1.5
    color = augment.jitter(saturation=0.5)(Batch(x=x), draw()).x
    assert torch.allclose(color.mean(1), x.mean(1)) and not torch.allclose(color, x)


def test_mixup_is_a_weighted_mean_of_two_examples() -> None:
    original = batch(60)
    got = augment.mixup(0.7)(original, draw())
    for i in range(60):
        share = got.share[i].item()
        wanted = share * original.x[i] + (1 - share) * original.x[got.other[i]]  # labels are the numbers of the examples
        assert torch.allclose(got.x[i], wanted, rtol=1e-5)
    assert torch.equal(got.y, original.y) and sorted(got.other.tolist()) == list(range(60))


def test_shares_are_drawn_from_a_beta_distribution() -> None:
    stats = pytest.importorskip("scipy.stats")
    shares = augment.mixup(0.4)(Batch(x=torch.zeros(4000, 1), y=torch.zeros(4000)), draw()).share
    assert stats.kstest(shares.numpy(), stats.beta(0.4, 0.4).cdf).pvalue > 0.01


def test_cutmix_counts_the_pixels_it_really_took() -> None:
    many = 80
    x = torch.arange(many, dtype=torch.float32).reshape(many, 1, 1, 1).expand(many, 2, 9, 7).contiguous()
    got = augment.cutmix()(Batch(x=x, y=torch.arange(many)), draw())
    for i in range(many):
        own, other = got.x[i] == i, got.x[i] == got.other[i]
        assert (own | other).all() and own.float().mean().item() == pytest.approx(got.share[i].item(), abs=1e-6) or got.other[i] == i
        if (hole := ~own[0]).any():
            assert hole.sum() == hole.any(1).sum() * hole.any(0).sum()
    assert got.share.min() < 0.25 and got.share.max() > 0.8


def test_targets_of_pixels_are_mirrored_or_nothing_moves() -> None:
    x = torch.rand(30, 2, 5, 4, generator=draw(1))
    original = Batch(x=x, y=(x[:, 0] > 0.5).long())
    got = augment.flip()(original, draw())
    assert torch.equal(got.y, (got.x[:, 0] > 0.5).long()) and not torch.equal(got.y, original.y)
    for change in (augment.shift(1), augment.crop(3), augment.rotate(20), augment.cutmix()):
        with pytest.raises(BadInput, match="but not their per-pixel targets"):
            change(original, draw())


def test_wrong_use_is_named() -> None:
    with pytest.raises(BadInput, match="shift needs images"):
        augment.shift(1)(Batch(x=torch.ones(4, 3)), draw())
    with pytest.raises(BadInput, match="crop of 9 pixels does not fit into 8 x 7"):
        augment.crop(9, padding=1)(batch(), draw())
    with pytest.raises(BadInput, match="three colors"):
        augment.jitter(saturation=0.1)(batch(channels=2), draw())
    with pytest.raises(BadInput, match="mixed already"):
        augment.compose(augment.mixup(), augment.cutmix())(batch(), draw())
