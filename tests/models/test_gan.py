"""GANs: shapes, seeds, and what they refuse."""

from __future__ import annotations

import pytest
import torch

from sonde.core.errors import BadInput
from sonde.models import gan


@pytest.mark.parametrize("factory, shape", [(lambda: gan.points(3, 5, 7, 2), (3,)), (lambda: gan.images((2, 8, 12), 5, 3), (2, 8, 12))])
def test_both_players_fit_each_other(factory, shape):
    torch.manual_seed(0)
    model = factory()
    x = model.sample(6, torch.Generator().manual_seed(1))
    assert x.shape == (6, *shape) and not x.requires_grad
    assert torch.equal(x, model.sample(6, torch.Generator().manual_seed(1)))
    assert model(x).shape == (6,)
    if len(shape) == 3:
        assert x.min() > 0 and x.max() < 1
    with pytest.raises(BadInput, match="GAN takes examples of"):
        model(x[:, :1])


def test_an_image_of_28_is_one():
    assert gan.images((1, 28, 28), 4, 2).sample(2).shape == (2, 1, 28, 28)


@pytest.mark.parametrize(
    "call", [lambda: gan.images((1, 10, 8)), lambda: gan.images((8, 8)), lambda: gan.points(2, 0), lambda: gan.points().sample(-1)]
)
def test_what_cannot_be_is_refused(call):
    with pytest.raises(BadInput):
        call()
