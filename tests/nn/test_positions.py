"""Codes of positions against hand-worked numbers, and `Positions` in one pass, in pieces and over spans."""

from __future__ import annotations

import math

import pytest
import torch

from sonde.core.errors import BadInput
from sonde.nn.positions import Positions, binary, sinusoidal
from sonde.nn.spans import Spans


def test_waves():
    code = sinusoidal(torch.arange(60), 5)
    torch.testing.assert_close(
        sinusoidal(torch.tensor([1]), 4)[0], torch.tensor([0.841471, 0.540302, 0.010000, 0.999950]).double(), atol=5e-7, rtol=0
    )
    for i in (0, 7, 59):
        for j in range(5):
            angle = i / 10000 ** (2 * (j // 2) / 5)
            assert math.isclose(float(code[i, j]), math.cos(angle) if j % 2 else math.sin(angle), abs_tol=1e-12)


def test_bits():
    assert binary(torch.arange(8), 3).int().tolist() == [[i & 1, i >> 1 & 1, i >> 2] for i in range(8)]


@pytest.mark.parametrize("kind", ["learned", "sinusoidal", "binary"])
@pytest.mark.parametrize("combine", ["add", "concat"])
def test_pieces_and_spans_equal_one_pass(kind, combine):
    torch.manual_seed(0)
    positions, x = Positions(kind, 6, 17, combine, scale=2.0).double(), torch.randn(3, 11, 6, dtype=torch.float64)
    whole, end = positions(x)
    first, state = positions(x[:, :4])
    second, after = positions(x[:, 4:], state)
    torch.testing.assert_close(torch.cat([first, second], 1), whole)
    assert after["seen"].tolist() == end["seen"].tolist() == [11] * 3
    code = positions.code(torch.arange(11)).double().expand(3, -1, -1)
    torch.testing.assert_close(whole, x + code if combine == "add" else torch.cat([x, code], -1))
    padded, ends = Spans.of_lengths(torch.tensor([2, 11, 5])).apply(positions, x)
    torch.testing.assert_close(padded[2, :5], whole[2, :5])
    assert ends["seen"].tolist() == [2, 11, 5]


def test_a_learned_table_ends_and_waves_do_not():
    with pytest.raises(BadInput, match="the sequence has 5 tokens, the model takes at most 4"):
        Positions("learned", 6, 4)(torch.zeros(1, 5, 6))
    assert bool(Positions("sinusoidal", 6)(torch.zeros(1, 5, 6), {"seen": torch.tensor([20000])})[0].isfinite().all())
    with pytest.raises(BadInput, match="'learned' positions need a maximum"):
        Positions("learned", 6)
    with pytest.raises(BadInput, match="9 positions take 4 bits, the width is 3"):
        Positions("binary", 3, 9)
