"""Attention over the image against weights written out from the formula, and a rollout worked by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sonde.core.batch import Batch
from sonde.core.errors import BadInput
from sonde.core.reading import Subject
from sonde.lenses import overlay
from sonde.models.vit import ViT


def test_weights_are_the_softmax_of_queries_and_keys() -> None:
    subject = overlay.tiny()
    model, batch = subject.model.eval(), subject.batch[:3]
    weights = overlay.weights(model, batch)
    assert [tuple(each.shape) for each in weights] == [(3, 2, 13, 13)] * 2
    block = model.stack.blocks[0]
    with torch.no_grad():
        q, k, _ = block.mixer.qkv(block.norm(model.embed(batch.x))).chunk(3, -1)
    for head in (0, 1):
        mine = slice(4 * head, 4 * head + 4)
        expected = (q[..., mine] @ k[..., mine].mT / 2).softmax(-1)
        assert torch.allclose(weights[0][:, head].float(), expected, atol=1e-6)


def test_last_layer_and_rollout_by_hand() -> None:
    """A token for the answer and two patches; half of each layer is kept."""
    one = torch.tensor([[[[0.5, 0.25, 0.25], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]]], dtype=torch.float64)
    two = torch.tensor([[[[0.0, 1.0, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0]]]], dtype=torch.float64)
    last, rollout, head = overlay.patch_weights([one, two], count=2, example=0, heads=1)
    assert last.tolist() == head.tolist() == [1.0, 0.0]
    # first row of (A2 + I)/2 = 1/2 1/2 0 times (A1 + I)/2 with rows 3/4 1/8 1/8, 0 1 0, 0 0 1
    assert rollout.tolist() == [0.5 * 0.125 + 0.5, 0.5 * 0.125]


def test_without_a_token_the_mean_over_all_is_shown() -> None:
    weights = torch.rand(2, 3, 4, 4, dtype=torch.float64).softmax(-1)
    last, _, *heads = overlay.patch_weights([weights], count=4, example=1, heads=3)
    assert torch.allclose(last, weights[1].mean((0, 1))) and torch.allclose(torch.stack(heads), weights[1].mean(1))


def test_the_picture_has_a_row_for_each_image() -> None:
    model = ViT(image=(8, 12), patch=4, width=6, depth=1, heads=3, classes=2, channels=3, pool="mean")
    reading = overlay.read(Subject(model, Batch(x=torch.randn(4, 3, 8, 12))), n=2, heads=2)
    assert reading.across == 5 and len(reading.values["images"]) == 10
    assert reading.heat[0] is None and torch.tensor(reading.heat[1]).shape == (2, 3)
    assert "the mean of all tokens" in reading.note and "4 × 4 pixels" in reading.note
    whole = torch.tensor(reading.heat[2])
    assert float(whole.sum()) == pytest.approx(1.0, abs=1e-6)


def test_other_networks_are_refused() -> None:
    with pytest.raises(BadInput, match="no attention over image patches"):
        overlay.read(Subject(nn.Conv2d(1, 2, 3), Batch(x=torch.randn(2, 1, 8, 8))))
