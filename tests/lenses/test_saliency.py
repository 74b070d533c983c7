"""Saliency on networks whose slopes are known: linear ones, a product worked by hand, and class activation maps."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from sonde.core.batch import Batch
from sonde.core.errors import BadInput
from sonde.core.reading import Subject
from sonde.lenses import saliency
from sonde.lenses.overlay import tiny as seeing
from sonde.lenses.tools.tiny import images


def linear() -> tuple[nn.Module, torch.Tensor]:
    """A network without activation, and its Jacobian (classes, C, H, W) from its own answers to unit pixels."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Conv2d(3, 2, 2), nn.Flatten(), nn.Linear(2 * 3 * 4, 4)).double()
    units = torch.eye(2 * 6 * 7, dtype=torch.float64).reshape(-1, 2, 6, 7)
    with torch.no_grad():
        return net, (net(units) - net(units * 0)).T.reshape(4, 2, 6, 7)


def test_of_a_linear_network_the_slope_is_its_matrix() -> None:
    net, jacobian = linear()
    batch, classes = Batch(x=torch.randn(5, 2, 6, 7, dtype=torch.float64)), torch.tensor([0, 3, 1, 1, 2])
    assert torch.allclose(saliency.gradient(net, batch, classes), jacobian[classes], atol=1e-12)
    share = saliency.integrated_gradients(net, batch, classes, baseline=0.5, steps=1)
    assert torch.allclose(share, (batch.x - 0.5) * jacobian[classes], atol=1e-12)
    reading = saliency.read(Subject(net, batch), method="gradient")
    predictions = net(batch.x).argmax(1)
    assert torch.allclose(torch.tensor(reading.heat).double(), jacobian[predictions].abs().amax(1), atol=1e-6)
    assert reading.labels == [str(int(i)) for i in predictions]


class Product(nn.Module):
    """f = x_1 x_2, whose integrated gradients from 0 are x_1 x_2 / 2 each."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1).prod(1, keepdim=True)


def test_integrated_gradients_of_a_product() -> None:
    batch = Batch(x=torch.tensor([[[[3.0, 5.0]]], [[[-2.0, 7.0]]]]))
    share = saliency.integrated_gradients(Product(), batch, torch.zeros(2, dtype=torch.long), steps=9)
    assert torch.allclose(share.flatten(1), torch.tensor([[7.5, 7.5], [-7.0, -7.0]]).double())
    reading = saliency.read(Subject(Product(), batch))
    assert reading.details == ["sum +15.00", "sum -14.00"] and "with an error of 0.0%" in reading.note


def test_integrated_gradients_sum_to_what_the_score_gained() -> None:
    """Completeness, to what the steps leave over; more steps leave less."""
    subject = images()
    net, batch = subject.model.double().eval(), subject.batch.replace(x=3 * subject.batch.x.double())
    classes = batch.y
    with torch.no_grad():
        gained = (net(batch.x) - net(batch.x * 0 - 1)).gather(1, classes[:, None]).squeeze(1)
    off = [
        float((saliency.integrated_gradients(net, batch, classes, -1.0, steps).flatten(1).sum(1) - gained).abs().max())
        / float(gained.abs().max())
        for steps in (4, 256)
    ]
    assert off[1] < 2e-3 and off[1] < off[0] / 8


def test_grad_cam_of_averaged_maps_is_the_class_activation_map() -> None:
    """Behind a mean over places, the slope by a map is w_kc / (h w), so Grad-CAM is the CAM of Zhou et al., 2016."""

    class Averaged(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = nn.Conv2d(1, 6, 3), nn.Linear(6, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.conv(x).mean((2, 3)))

    torch.manual_seed(0)
    net, batch = Averaged(), Batch(x=torch.randn(4, 1, 9, 7))
    classes = torch.tensor([2, 0, 1, 2])
    heat, layer = saliency.grad_cam(net, batch, classes)
    with torch.no_grad():
        expected = torch.einsum("bc,bchw->bhw", net.head.weight[classes], net.conv(batch.x)).relu() / 35
    expected = nn.functional.interpolate(expected[:, None], size=(9, 7), mode="bilinear")[:, 0]
    assert layer == "conv" and torch.allclose(heat, expected, atol=1e-7) and heat.max() > 0
    reading = saliency.read(Subject(net, batch), method="grad-cam", layer="conv")
    assert "'conv'" in reading.note and len(reading.heat) == 4


def test_grad_cam_weighs_a_map_by_its_mean_slope() -> None:
    """Behind a dense layer the slope by a map is that layer's own weights."""
    torch.manual_seed(0)
    net, batch = nn.Sequential(nn.Conv2d(1, 3, 2), nn.Flatten(), nn.Linear(60, 4)), Batch(x=torch.randn(5, 1, 5, 6))
    heat, _ = saliency.grad_cam(net, batch, torch.tensor([3, 0, 1, 2, 3]))
    with torch.no_grad():
        weights = net[2].weight[[3, 0, 1, 2, 3]].reshape(5, 3, 20).mean(2)
        expected = torch.einsum("bc,bchw->bhw", weights, net[0](batch.x)).relu()
    assert torch.allclose(heat, nn.functional.interpolate(expected[:, None], size=(5, 6), mode="bilinear")[:, 0], atol=1e-7)


def test_grad_cam_reaches_the_blocks_of_a_transformer_and_frozen_networks() -> None:
    subject = seeing()
    subject.model.requires_grad_(False)
    heat, layer = saliency.grad_cam(subject.model, subject.batch, subject.batch.y, "stack.blocks.0")
    assert heat.shape == (23, 8, 6) and heat.max() > 0 and layer == "stack.blocks.0"
    with torch.inference_mode():
        saliency.read(subject, method="grad-cam", n=2)  # works wherever it is called from


def test_the_true_class_needs_labels_and_scores() -> None:
    subject = images()
    reading = saliency.read(subject, of="label", n=3, steps=2)
    assert reading.labels == ["ant", "bee", "cat"] and "the true class" in reading.note
    with pytest.raises(BadInput, match="no label for each image.*use of=answer"):
        saliency.read(replace(subject, batch=Batch(x=subject.batch.x)), of="label")
    assert saliency.why_not(Subject(nn.Conv2d(1, 2, 3), subject.batch)) == "the model does not output one score per class"
    assert "cannot be run" in saliency.why_not(Subject(nn.Conv2d(3, 2, 3), subject.batch))
    flat = Subject(nn.Sequential(nn.Flatten(), nn.Linear(48, 5)), subject.batch)
    with pytest.raises(BadInput, match="no feature maps for Grad-CAM"):
        saliency.read(flat, method="grad-cam")
    with pytest.raises(BadInput, match="must be one of gradient, integrated, grad-cam"):
        saliency.read(flat, method="guess")
