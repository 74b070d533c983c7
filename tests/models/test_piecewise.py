"""Exact regions against sign patterns on a fine grid, autograd slopes, and counts worked by hand."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from sonde.core.errors import BadInput
from sonde.core.seeds import generator
from sonde.models.constructive import fold_zigzag, zigzag
from sonde.models.mlp import MLP
from sonde.models.piecewise import Region, count_regions, dense_layers, from_layers, joints, merge, pieces, region_bound, regions
from sonde.nn.affine import Affine


def random_mlp(*widths: int, seed: int = 0) -> MLP:
    model = MLP(widths).double()
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter.normal_(generator=generator(seed, "weights", number))
    return model


def patterns(model: MLP, x: torch.Tensor) -> list[str]:
    """Which units are on at every point, by running torch's own layers."""
    bits = []
    with torch.no_grad():
        for layer in model.layers:
            x = layer(x)
            if isinstance(layer, nn.ReLU):
                bits.append((x > 0).int().tolist())
    return ["|".join("".join(map(str, row)) for row in rows) for rows in zip(*bits, strict=True)]


def middle(region: Region) -> torch.Tensor:
    return torch.tensor(region.corners).mean(0, keepdim=True)


@pytest.mark.parametrize("widths", [(1, 3, 1), (1, 5, 4, 2), (1, 4, 3, 5, 1), (2, 3, 1), (2, 7, 3), (2, 5, 4, 2), (2, 6, 3, 4, 1)])
def test_regions_are_those_of_a_fine_grid_with_the_slopes_of_autograd(widths) -> None:
    model = random_mlp(*widths)
    linear_regions = regions(model, -2.0, 3.0)
    by_pattern = {region.pattern: region for region in linear_regions}
    assert len(by_pattern) == len(linear_regions)
    assert sum(region.size for region in linear_regions) == pytest.approx(5.0 ** widths[0], rel=1e-12)
    line = torch.linspace(-2, 3, 50_001 if widths[0] == 1 else 301, dtype=torch.float64)
    points = line[:, None] if widths[0] == 1 else torch.cartesian_prod(line, line)
    seen = set(patterns(model, points))
    spacing = float(line[1] - line[0]) ** widths[0]
    assert seen <= set(by_pattern)
    assert all(by_pattern[each].size < 40 * spacing for each in set(by_pattern) - seen), "a grid misses only what is small or thin"
    for region in linear_regions:
        x = middle(region)
        assert patterns(model, x) == [region.pattern]
        slope = torch.autograd.functional.jacobian(model, x)[0, :, 0]
        np.testing.assert_allclose(region.weight, slope, atol=1e-10)
        np.testing.assert_allclose(region.weight @ x[0].numpy() + region.bias, model(x)[0].detach(), atol=1e-10)


def test_the_grid_finds_exactly_as_many_where_no_region_is_small() -> None:
    corners = {seed: regions(random_mlp(2, 4, 3, 1, seed=seed), -3, 3) for seed in range(12)}
    coarse = {seed: linear_regions for seed, linear_regions in corners.items() if min(region.size for region in linear_regions) > 0.05}
    assert len(coarse) >= 3
    line = torch.linspace(-3, 3, 401, dtype=torch.float64)
    for seed, linear_regions in coarse.items():
        assert len(set(patterns(random_mlp(2, 4, 3, 1, seed=seed), torch.cartesian_prod(line, line)))) == len(linear_regions)


def test_joints_by_hand() -> None:
    """r(x+1), r(2-2x), r(0.5x-1) bend at -1, 1 and 2; slopes are the sums over the units that are on."""
    net = from_layers([([[1.0], [-2.0], [0.5]], [1.0, 2.0, -1.0]), ([[3.0, 1.0, -4.0]], [0.25])])
    linear_regions = regions(net, -math.inf, math.inf)
    assert joints(linear_regions) == [-1.0, 1.0, 2.0]
    assert [region.pattern for region in linear_regions] == ["010", "110", "100", "101"]
    assert [float(region.weight[0, 0]) for region in linear_regions] == [-2.0, 1.0, 3.0, 1.0]


def test_pieces_join_what_goes_straight_on() -> None:
    net = from_layers([([[1.0], [1.0]], [0.0, -1.0]), ([[1.0, 0.0]], [0.0])])
    linear_regions = regions(net, -5, 5)
    assert len(linear_regions) == 3 and joints(pieces(linear_regions)) == [0.0]


@pytest.mark.parametrize("inputs, hidden, count", [(1, 6, 7), (2, 3, 7), (2, 4, 11), (3, 3, 8), (4, 3, 8), (3, 5, 26), (5, 7, 120)])
def test_planes_in_general_position_reach_the_bound(inputs, hidden, count) -> None:
    draw = np.random.default_rng(0)
    assert count_regions(draw.normal(size=(hidden, inputs)), draw.normal(size=hidden)) == region_bound(inputs, hidden) == count


@pytest.mark.parametrize(
    "w, b, count",
    [
        ([[1, 0], [1, 0], [0, 1]], [0, 1, 0], 6),  # two parallel lines and one across
        ([[1, 0], [0, 1], [1, 1]], [0, 0, 0], 6),  # through one point
        ([[1, 0], [-2, 0]], [3, -6], 2),  # the same line twice
        ([[1, 0], [0, 0]], [0, 5], 2),  # a unit that never switches
        ([[1, 0, 0], [0, 1, 0], [0, 0, 1]], [0, 0, 0], 8),
        ([[1], [1], [1]], [0, 1, 2], 4),
        ([[0, 0]], [1], 1),
    ],
)
def test_planes_in_special_position(w, b, count) -> None:
    assert count_regions(w, b) == count


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(*[st.integers(-3, 3)] * 3), min_size=1, max_size=6))
def test_polygons_and_counting_agree_for_any_lines(lines) -> None:
    """Small integers make parallel, equal and concurrent lines common; every crossing then lies inside the box."""
    w, b = [[float(p), float(q)] for p, q, _ in lines], [float(c) for _, _, c in lines]
    linear_regions = regions(from_layers([(w, b), (np.ones((1, len(b))), [0.0])]), -61.0, 67.0)
    assert len(linear_regions) == count_regions(w, b) <= region_bound(2, len(b))


def test_a_merged_network_is_the_composition() -> None:
    inner, outer = random_mlp(2, 4, 3, seed=1), random_mlp(3, 5, 2, seed=2)
    one = merge(inner, outer)
    x = torch.randn(17, 2, generator=generator(0, "x"), dtype=torch.float64)
    np.testing.assert_allclose(one(x).detach(), outer(inner(x)).detach(), atol=1e-12)
    assert [tuple(w.shape) for w, _ in dense_layers(one)] == [(4, 2), (5, 4), (2, 5)]
    with pytest.raises(BadInput, match="gives 2 numbers, the outer takes 3"):
        merge(outer, outer)


@pytest.mark.parametrize("times", [1, 2, 3, 5])
def test_folding_multiplies_the_pieces(times) -> None:
    linear_regions = regions(fold_zigzag(times), -1, 1)
    np.testing.assert_allclose(joints(linear_regions), np.linspace(-1, 1, 3**times + 1)[1:-1], atol=1e-9)
    assert len(pieces(linear_regions)) == 3**times
    x = torch.linspace(-1, 1, 91, dtype=torch.float64)
    by_hand = x
    for _ in range(times):
        by_hand = -torch.asin(torch.sin(1.5 * math.pi * by_hand)) * 2 / math.pi  # a triangle wave, odd, of period 4/3
    np.testing.assert_allclose(fold_zigzag(times)(x)[:, 0].detach(), by_hand, atol=1e-6)


def test_layers_without_a_relu_between_them_are_one() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(2, 3), nn.Linear(3, 4, bias=False), Affine(0.5, 2.0), nn.ReLU(), nn.ReLU(), nn.Dropout())
    (w, b), (last, zero) = dense_layers(net.double())
    x = torch.randn(5, 2, generator=generator(0, "x"), dtype=torch.float64)
    np.testing.assert_allclose(np.maximum(x.numpy() @ w.T + b, 0) @ last.T + zero, net.eval()(x).detach(), atol=1e-12)


@pytest.mark.parametrize(
    "model, message",
    [
        (MLP((2, 3, 1), activation="tanh"), "layer 'tanh1' is a Tanh"),
        (nn.Sequential(nn.ReLU(), nn.Linear(1, 1)), "layer '0' is a ReLU"),
        (nn.Sequential(nn.Flatten()), "no dense layer"),
        (MLP((3, 2, 1)), "1 or 2 inputs, not 3"),
    ],
)
def test_what_cannot_be_taken_apart_is_named(model, message) -> None:
    with pytest.raises(BadInput, match=message) as caught:
        regions(model, -1, 1)
    assert "\n" not in str(caught.value)


def test_bad_boxes_and_weights_are_refused() -> None:
    for low, high in product((1.0, math.nan), (1.0, 0.0)):
        with pytest.raises(BadInput, match="no space between"):
            regions(zigzag(), low, high)
    with pytest.raises(BadInput, match="finite in the plane"):
        regions(random_mlp(2, 3, 1), -math.inf, 1.0)
    broken = random_mlp(1, 2, 1)
    broken.layers.dense1.bias.data[0] = math.nan
    with pytest.raises(BadInput, match="not finite"):
        regions(broken, 0, 1)


def test_too_many_regions_end_with_a_word(monkeypatch) -> None:
    monkeypatch.setattr("sonde.models.piecewise.MOST", 5)
    with pytest.raises(BadInput, match="over 5 regions"):
        regions(random_mlp(2, 6, 1), -2, 2)


def test_pieces_and_regions_have_no_size_of_their_own():
    """Three joints make four pieces whatever unit the output has; two joints make three regions whatever unit the input has."""
    for unit in (1e-10, 1.0, 1e10):
        model = from_layers([(np.ones((3, 1)), np.array([1.0, 0.0, -1.0])), (unit * np.array([[1.0, 2.0, -4.0]]), np.zeros(1))])
        assert len(pieces(regions(model, -5, 5))) == 4
        model = from_layers([(np.ones((2, 1)), unit * np.array([0.0, -0.1])), (np.ones((1, 2)), np.zeros(1))])
        linear_regions = regions(model, -unit, unit)
        assert joints(linear_regions) == pytest.approx([0.0, 0.1 * unit], rel=1e-12, abs=0)
