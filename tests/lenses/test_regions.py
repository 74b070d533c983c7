"""The lens of linear regions: against the network itself, hand-worked slopes, and subjects it must refuse."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from sonde.core.batch import Batch
from sonde.core.errors import BadInput
from sonde.core.reading import Subject
from sonde.lenses import regions
from sonde.models.mlp import MLP
from sonde.models.piecewise import from_layers
from sonde.models.piecewise import regions as exact


def test_on_a_line_the_table_has_the_slopes_worked_by_hand() -> None:
    net = from_layers([([[1.0], [-2.0], [0.5]], [1.0, 2.0, -1.0]), ([[3.0, 1.0, -4.0], [0.0, 0.0, 1.0]], [0.25, 0.0])])
    curve, table = regions.read(Subject(net, Batch(x=torch.tensor([[-2.0], [3.0]]))), margin=0.2)
    assert table.values["from"] == [-3.0, -1.0, 1.0, 2.0] and table.values["to"] == [-1.0, 1.0, 2.0, 4.0]
    assert table.values["active units"] == ["010", "110", "100", "101"] and table.values["slope"] == [-2.0, 1.0, 3.0, 1.0]
    y = net(torch.tensor(curve.values["x"], dtype=torch.float64))[:, 0]
    np.testing.assert_allclose(curve.values["output"], y.detach(), atol=1e-12)
    assert regions.read(Subject(net, Batch(x=torch.tensor([[-2.0], [3.0]]))), output=1)[1].values["slope"][-1] == 0.5


def test_in_the_plane_the_picture_is_the_network() -> None:
    torch.manual_seed(0)
    net, x = MLP((2, 6, 5, 1)).double(), torch.randn(20, 2, dtype=torch.float64)
    function, colors, table = regions.read(Subject(net, Batch(x=x)))
    grid = torch.cartesian_prod(*(torch.tensor(getattr(function, axis), dtype=torch.float64) for axis in ("x", "y")))
    value = net(grid)[:, 0].detach().reshape(len(function.x), -1).T
    np.testing.assert_allclose(function.values["output"], value, atol=1e-10)
    largest = sorted((region.size for region in exact(net, *_box(function))), reverse=True)
    assert len(largest) == len(function.outlines) > 20
    np.testing.assert_allclose(table.values["area"], largest[:20], rtol=1e-9)
    assert f"{len(largest)} linear regions, the 20 largest" in table.note
    assert set(np.ravel(colors.values["regions"])) <= set(range(regions.COLORS))


def _box(function) -> tuple[list[float], list[float]]:
    return [getattr(function, axis)[0] for axis in ("x", "y")], [getattr(function, axis)[-1] for axis in ("x", "y")]


def test_long_patterns_are_shortened_to_a_count() -> None:
    torch.manual_seed(0)
    net = MLP((1, 30, 1))
    table = regions.read(Subject(net, Batch(x=torch.tensor([[-2.0], [2.0]]))), margin=0.0)[-1]
    first = net.layers[0].double()
    middles = torch.tensor([table.values["from"], table.values["to"]], dtype=torch.float64).mean(0)
    on = (first(middles[:, None]) > 0).sum(1).tolist()
    assert [pattern[12:] for pattern in table.values["active units"]] == [f"… {count} of 30" for count in on]
    widths = [b - a for a, b in zip(table.values["from"], table.values["to"], strict=True)]
    assert len(widths) <= 20 and (len(widths) < 20 or widths == sorted(widths, reverse=True))


def test_neighbors_have_different_colors() -> None:
    torch.manual_seed(1)
    linear_regions = exact(MLP((2, 6, 1)), -3, 3)  # lines: every region has few neighbors, six colors suffice
    chosen = regions.colors(linear_regions)
    for i, first in enumerate(linear_regions):
        for j, second in enumerate(linear_regions[:i]):
            if sum(a != b for a, b in zip(first.pattern, second.pattern, strict=True)) == 1:
                assert chosen[i] != chosen[j]


@pytest.mark.parametrize(
    "model, x, message",
    [
        (nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)), torch.zeros(4, 2), "layer '1' is a Tanh"),
        (MLP((5, 3, 1)), torch.zeros(4, 5), "5 inputs"),
        (nn.Sequential(nn.Flatten()), torch.zeros(4, 2), "no dense layer"),
    ],
)
def test_other_networks_are_refused(model, x, message) -> None:
    with pytest.raises(BadInput, match=message):
        regions.read(Subject(model, Batch(x=x)))


def test_an_output_that_is_not_there() -> None:
    with pytest.raises(BadInput, match="there is no output 3"):
        regions.read(Subject(MLP((1, 3, 2)), Batch(x=torch.zeros(4, 1))), output=3)


def test_one_point_has_a_box_too() -> None:
    assert regions.read(Subject(MLP((2, 3, 1)), Batch(x=torch.zeros(4, 2))))[-1].values["area"]
