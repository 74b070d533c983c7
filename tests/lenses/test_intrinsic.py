"""Intrinsic dimension: sheets of a known dimension, the law of the ratio itself, and points that have none."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from sonde.core.batch import Batch
from sonde.core.errors import BadInput
from sonde.core.reading import Subject
from sonde.lenses import intrinsic


@pytest.mark.parametrize("dimension, within", [(1, 0.12), (2, 0.2), (3, 0.3), (6, 0.7)])
def test_a_turned_sheet_keeps_its_dimension(dimension, within) -> None:
    draw = np.random.default_rng(0)
    x = draw.uniform(size=(2000, dimension)) @ np.linalg.qr(draw.normal(size=(17, dimension)))[0].T
    assert intrinsic.two_nn(x) == pytest.approx(dimension, abs=within)


def test_four_points_on_a_line_by_hand() -> None:
    """Ten points 2^i: the neighbors of 2^i are 2^(i-1) and 2^(i-2), at distances 1/2 and 3/4 of it; the first two look up."""
    x = 2.0 ** np.arange(10)
    logs = [math.log(3 / 1), math.log(2 / 1)] + [math.log(1.5)] * 8
    assert intrinsic.two_nn(x[:, None]) == pytest.approx(9 / sum(logs), rel=1e-12)


def test_repeated_points_count_once() -> None:
    x = np.random.default_rng(0).normal(size=(40, 3))
    assert intrinsic.two_nn(np.concatenate([x, x, x])) == intrinsic.two_nn(x)


def test_scale_and_place_do_not_matter() -> None:
    x = np.random.default_rng(0).normal(size=(60, 4))
    assert intrinsic.two_nn(1e6 * x + 3) == pytest.approx(intrinsic.two_nn(x), rel=1e-6)


def test_a_layer_of_one_number_is_a_line_and_a_dead_one_has_none() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 1), nn.Tanh(), nn.Linear(1, 8), nn.Linear(8, 4))
    net[3].weight.data.zero_()
    reading = intrinsic.read(Subject(net, Batch(x=torch.randn(800, 3))))
    dimensions = dict(zip(reading.labels, reading.values["intrinsic dimension"], strict=True))
    assert dimensions["input"] == pytest.approx(3, abs=0.4)
    assert all(dimensions[name] == pytest.approx(1, abs=0.15) for name in ("0 Linear", "1 Tanh", "2 Linear"))
    assert dimensions["3 Linear"] is None and "3 Linear" in reading.note


@pytest.mark.parametrize("x, message", [(np.zeros((50, 2)), "1 distinct"), (np.full((20, 2), np.nan), "not finite")])
def test_what_has_no_dimension_is_refused(x, message) -> None:
    with pytest.raises(BadInput, match=message):
        intrinsic.two_nn(x)


def test_too_few_examples_are_refused() -> None:
    with pytest.raises(BadInput, match="too few for neighbors"):
        intrinsic.read(Subject(nn.Linear(2, 1), Batch(x=torch.zeros(5, 2))))
