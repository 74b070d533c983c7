"""Equivariance: layers that have it exactly, layers that lose it, and an error worked by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from sonde.core.batch import Batch
from sonde.core.reading import Subject
from sonde.lenses import equivariance
from sonde.lenses.equivariance import errors, transform
from sonde.models.cnn import CNN
from sonde.models.unet import UNet


def of(net: nn.Module, pixels: int, x: torch.Tensor | None = None) -> dict[str, dict[str, float | None]]:
    x = torch.randn(4, 2, 12, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) if x is None else x
    with torch.no_grad():
        return errors(net.to(x).eval(), Batch(x=x), pixels)


def circular(channels: int, *others: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(2, channels, 3, padding=1, padding_mode="circular"), nn.ReLU(), *others)


class Mean(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean((2, 3))


def test_a_circular_convolution_moves_with_the_image_and_its_mean_stays() -> None:
    deviations = of(circular(5, Mean(), nn.Linear(5, 3)), pixels=3)
    assert deviations["circular shift"]["0"] < 1e-14 and deviations["circular shift"]["1"] < 1e-14
    assert deviations["circular shift"]["model output"] < 1e-14, "invariant, not only equivariant"
    assert deviations["rotation"]["0"] > 0.1 and deviations["enlargement"]["0"] > 0.1
    assert deviations["shift"]["0"] > 0.01, "the edges see something else"


def test_pooling_moves_with_its_own_stride_only() -> None:
    net = circular(4, nn.MaxPool2d(2))
    assert of(net, pixels=2)["circular shift"]["2"] < 1e-14
    assert of(net, pixels=4)["circular shift"]["2"] < 1e-14
    assert 0.05 < of(net, pixels=1)["circular shift"]["2"] < 1.5


def test_what_works_on_single_pixels_has_every_symmetry() -> None:
    deviations = of(nn.Sequential(nn.Conv2d(2, 5, 1)), pixels=3)
    assert max(own["0"] for own in deviations.values()) < 1e-14


def test_a_kernel_that_looks_the_same_turned_turns_with_the_image() -> None:
    net = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1, bias=False)).double()
    net[0].weight.data = sum(net[0].weight.data.rot90(i, (2, 3)) for i in range(4))
    deviations = of(net, pixels=1)
    assert deviations["rotation"]["0"] < 1e-14 < deviations["enlargement"]["0"]


def test_valid_convolutions_are_shifted_by_pixels_not_by_shares() -> None:
    """Without padding a map is smaller than the image, but its places are as far apart: inside, a shift off the edge is exact."""
    x = torch.zeros(1, 2, 12, 12, dtype=torch.float64)
    x[:, :, 3:8, 2:7] = torch.randn(2, 5, 5, dtype=torch.float64)
    net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Conv2d(3, 2, 3))
    deviations = of(net, 2, x)
    assert deviations["shift"]["0"] < 1e-14 and deviations["shift"]["1"] < 1e-14


def test_an_error_by_hand() -> None:
    """[1, 0, 0, 0] averaged over neighbors with zeros outside: shifted by 1 around, first and last place differ."""
    net = nn.Sequential(nn.Conv2d(1, 1, (1, 3), padding=(0, 1), bias=False))
    net[0].weight.data.fill_(1.0)
    x = torch.tensor([[[[1.0, 0, 0, 0]]]]).double()
    # f(x) = 1 1 0 0, shifted 0 1 1 0; f(0 1 0 0) = 1 1 1 0: off by 1 in one of four places, against 2 ones
    assert of(net, 1, x)["circular shift"]["0"] == pytest.approx(math.sqrt(1 / 2))


def test_in_between_two_places_a_map_is_the_mean_of_both() -> None:
    maps = torch.tensor([[[[4.0, 0, 0, 8]]]])
    assert transform("circular shift", maps, 0.5).flatten().tolist() == [6, 2, 0, 4]
    assert transform("shift", maps, 1.5).flatten().tolist() == [0, 2, 2, 0]
    assert transform("rotation", torch.tensor([[[[1, 2], [3, 4]]]]), 0).flatten().tolist() == [2, 4, 1, 3]


def test_a_network_for_one_size_tells_what_it_can() -> None:
    net = CNN(channels=(1, 4, 6), classes=3, hidden=5, image=(8, 6))
    reading = equivariance.read(Subject(net, Batch(x=torch.randn(5, 1, 8, 6))))
    assert reading.labels[-1] == "model output" and reading.labels[0] == "blocks.conv1"
    assert reading.values["rotation"][0] is not None and reading.values["rotation"][-1] is None, (
        "6 x 8 images are no input of the whole network"
    )
    assert reading.values["circular shift"][-1] is not None


def test_a_network_that_enlarges_is_shifted_by_its_own_places() -> None:
    """A pixel is two places of a map twice as large: shifted around, it is exact; an image for every pixel has an answer too."""
    net = circular(3, nn.ConvTranspose2d(3, 2, 2, stride=2), nn.Upsample(scale_factor=3), nn.Conv2d(2, 1, 1))
    deviations = of(net, pixels=1)["circular shift"]
    assert list(deviations) == ["0", "1", "2", "3", "4"] and max(deviations.values()) < 1e-14


def test_a_unet_and_a_decoder_are_read() -> None:
    unet = Subject(UNet(1, 2, width=2, depth=2, padded=True), Batch(x=torch.randn(3, 1, 16, 12)))
    read = equivariance.read(unet, layers=64)
    moved = dict(zip(read.labels, read.values["circular shift"], strict=True))
    assert all(0 <= moved[name] < 2 for name in ("down.0.conv1", "up.1", "up.0", "output"))
    decoder = nn.Sequential(nn.ConvTranspose2d(4, 2, 2, stride=2), nn.ReLU(), nn.ConvTranspose2d(2, 1, 4, stride=4))
    values = equivariance.read(Subject(decoder, Batch(x=torch.randn(2, 4, 3, 5)))).values
    assert max(values["circular shift"]) < 1e-5, "its windows do not overlap"
