"""A block is what its formula says, in one pass, in pieces and over spans."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from sonde.nn.block import Block, FeedForward
from sonde.nn.mixers.gla import GLA
from sonde.nn.spans import Spans


def rms(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight


def gelu(x: Tensor) -> Tensor:
    return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))


def block(kind: str = "swiglu", **options) -> Block:
    layer = Block(GLA(width=12, heads=3, rank=2), FeedForward(12, 2.5, kind), **options).double()
    for p in layer.parameters():  # norms begin at 1, where a wrong weight would not show
        nn.init.normal_(p, std=0.4)
    return layer


@pytest.mark.parametrize("kind, hidden", [("swiglu", 20), ("gelu", 30)])
def test_a_block_is_its_formula(kind, hidden):
    one, x = block(kind), torch.randn(2, 7, 12, dtype=torch.float64)
    h = x + one.mixer(rms(x, one.norm.weight))[0]
    norm, ffn = one.ffn_norm, one.ffn
    n = rms(h, norm.weight)
    up = n @ ffn.up.weight.T
    assert up.shape[-1] == hidden
    gate = n @ ffn.gate.weight.T if kind == "swiglu" else None
    inside = gelu(up) if gate is None else gate * torch.sigmoid(gate) * up
    torch.testing.assert_close(one(x)[0], h + inside @ ffn.down.weight.T, rtol=1e-10, atol=1e-12)


def test_both_networks_have_as_many_weights():
    counts = [sum(p.numel() for p in FeedForward(96, 4.0, kind).parameters()) for kind in ("gelu", "swiglu")]
    assert counts == [96 * 384 * 2, 96 * 256 * 3] and counts[0] == counts[1]


def test_without_a_network_and_with_another_norm():
    one, x = Block(GLA(12, 3, 2), norm=nn.LayerNorm).double(), torch.randn(2, 5, 12, dtype=torch.float64)
    flat = (x - x.mean(-1, keepdim=True)) / (x.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(one(x)[0], x + one.mixer(flat)[0])


def test_pieces_and_spans_equal_one_pass():
    one, x = block(), torch.randn(2, 9, 12, dtype=torch.float64)
    whole, end = one(x)
    first, state = one(x[:, :4])
    second, after = one(x[:, 4:], state)
    torch.testing.assert_close(torch.cat([first, second], 1), whole)
    torch.testing.assert_close(after, end)
    padded, states = one(x, spans=Spans.of_lengths(torch.tensor([3, 9])))
    torch.testing.assert_close(padded[0, :3], one(x[:1, :3])[0][0])
    torch.testing.assert_close(padded[1], whole[1])
    torch.testing.assert_close(states["S0"][0], one(x[:1, :3])[1]["S0"][0])


def test_dropout_acts_while_training_only():
    one, x = block(dropout=0.5), torch.randn(1, 6, 12, dtype=torch.float64)
    assert not torch.equal(one(x)[0], one(x)[0])
    one.eval()
    assert torch.equal(one(x)[0], one(x)[0])
