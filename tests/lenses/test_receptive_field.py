"""Receptive fields: measured against the formula, hand-worked numbers, and a gradient taken at any other unit."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from sonde.core.batch import Batch
from sonde.core.errors import BadInput
from sonde.core.reading import Subject
from sonde.lenses import receptive_field
from sonde.lenses.overlay import tiny as seeing
from sonde.lenses.receptive_field import Box, gradient, measure
from sonde.models.cnn import CNN

CHAINS = {
    "3, 5, 7": ([nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3)], (7, 7)),
    "strides": ([nn.Conv2d(1, 4, 5, stride=2, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 4, 3, padding=1)], (15, 15)),
    "dilation": (
        [nn.Conv2d(1, 4, (3, 5), dilation=(2, 1)), nn.BatchNorm2d(4), nn.AvgPool2d((2, 3)), nn.Conv2d(4, 4, 2, stride=3)],
        (8, 10),
    ),
    "even": ([nn.Conv2d(1, 3, 4, stride=3, padding=1), nn.Tanh(), nn.Conv2d(3, 3, 2)], (7, 7)),
}


@pytest.mark.parametrize("name", CHAINS)
def test_measured_equals_the_formula(name: str) -> None:
    """Hand-worked size of the last layer; all others against the formula of the cost lens."""
    torch.manual_seed(0)
    layers, last = CHAINS[name]
    table, _ = receptive_field.read(Subject(nn.Sequential(*layers), Batch(x=torch.randn(3, 1, 18, 17))))
    assert table.values["measured"] == table.values["formula"]
    assert table.values["measured"][-1] == f"{last[0]} × {last[1]}"
    known = len(table.values["layer"])
    assert f"agree for {known} of {known} layers where both are known." in table.note


def test_layers_that_see_no_more_are_left_out() -> None:
    layers, _ = CHAINS["strides"]
    table, _ = receptive_field.read(Subject(nn.Sequential(*layers), Batch(x=torch.randn(2, 1, 18, 18))))
    assert table.values["layer"] == ["0", "2", "3"] and table.values["measured"] == ["5 × 5", "7 × 7", "15 × 15"]
    assert table.values["jump"] == ["2 × 2", "4 × 4", "4 × 4"]


@pytest.mark.parametrize("name", CHAINS)
def test_the_field_of_any_unit_is_where_its_gradient_lies(name: str) -> None:
    torch.manual_seed(1)
    net = nn.Sequential(*CHAINS[name][0]).eval()
    last = str(len(net) - 1)
    field = measure(Subject(net, Batch(x=torch.randn(2, 1, 24, 30))), [last])[last]
    net = copy.deepcopy(net).double()
    for parameter in net.parameters():
        nn.init.uniform_(parameter, 0.1, 1.0)  # positive weights and inputs: nothing cancels, no unit is dead
    x = torch.rand(6, 1, 47, 53, dtype=torch.float64, requires_grad=True)
    y = net(x)
    for row, column in ((y.shape[2] // 2 - 1, y.shape[3] // 2 + 1), (y.shape[2] // 2, y.shape[3] // 2)):
        (slope,) = torch.autograd.grad(y[:, :, row, column].sum(), x, retain_graph=True)
        rows, columns = (slope.abs().sum((0, 1, axis)).nonzero().flatten() for axis in (3, 2))
        box = field.at(row, column)
        assert (int(rows[0]), int(columns[0])) == (box.top, box.left)
        if "MaxPool" not in str(net):  # which entry is the largest is chance
            assert (int(rows[-1] - rows[0]) + 1, int(columns[-1] - columns[0]) + 1) == (box.height, box.width)


def test_a_network_for_one_small_size_is_measured_on_larger_images() -> None:
    table, view = receptive_field.read(
        Subject(CNN(channels=(1, 6, 7), classes=3, hidden=4, image=(8, 8)), Batch(x=torch.randn(5, 1, 8, 8)))
    )
    assert table.values["measured"] == ["3 × 3", "4 × 4", "8 × 8", "10 × 10"] == table.values["formula"]
    frames = view.frames[0]
    assert frames["blocks.conv1"] == [3, 3, 3, 3] and frames["blocks.pool1"] == [3, 3, 4, 4]
    assert frames["blocks.conv2"] == [1, 1, 7, 7], "cut off at the edge"


def test_it_works_in_inference_mode_too() -> None:
    subject = receptive_field.tiny()
    with torch.inference_mode():
        table, _ = receptive_field.read(subject)
    assert table.values["measured"] == ["3 × 3", "4 × 4"]


def test_what_sees_everything_has_no_end() -> None:
    net = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.Conv2d(4, 2, 3, padding=1))
    table, _ = receptive_field.read(Subject(net, Batch(x=torch.randn(2, 1, 40, 36))), probes=2)
    assert table.values["formula"] == ["3 × 3", None, None]
    assert table.values["measured"][0] == "3 × 3" and table.values["measured"][2].startswith("at least ")
    subject = seeing()
    table, _ = receptive_field.read(subject)
    assert table.values["layer"][0] == "patches" and table.values["measured"] == ["2 × 2", "at least 8 × 6", "at least 8 × 6"]


def test_the_gradient_of_a_linear_layer_is_its_kernel() -> None:
    net = nn.Sequential(nn.Conv2d(1, 1, (3, 4), bias=False)).double()
    x = torch.randn(5, 1, 9, 10, dtype=torch.float64)
    (unit, slope), *_ = gradient(net, Batch(x=x), x, ["0"]).values()
    assert unit == (3, 3)
    expected = torch.zeros(9, 10, dtype=torch.float64)
    expected[3:6, 3:7] = net[0].weight[0, 0].abs()
    assert torch.allclose(slope / slope.max(), expected / expected.max())


def test_a_dead_layer_and_an_unknown_one_are_named() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Conv2d(2, 1, 3))
    net[0].bias.data.fill_(-1e6)
    table, view = receptive_field.read(Subject(net, Batch(x=torch.randn(2, 1, 9, 9))))
    assert table.values["measured"] == ["3 × 3", "no gradient"] and max(map(max, view.heat[1])) == 0
    with pytest.raises(BadInput, match="no layer '7' with feature maps"):
        receptive_field.read(Subject(net, Batch(x=torch.randn(2, 1, 9, 9))), layer="7")
    assert Box(1, 2, 3, 4).width == 4


def test_a_layer_that_enlarges_tells_its_part_of_a_pixel() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ConvTranspose2d(2, 2, 2, stride=2))
    table, _ = receptive_field.read(Subject(net, Batch(x=torch.randn(2, 1, 9, 12))))
    assert table.values["jump"] == ["1 × 1", "0.5 × 0.5"] and table.values["measured"] == ["3 × 3", "3 × 3"]
