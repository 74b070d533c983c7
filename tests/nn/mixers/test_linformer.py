"""Linformer against the formula, and against softmax attention where its projection does nothing."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from sonde.core.errors import BadInput
from sonde.nn.mixers.attention import Attention
from sonde.nn.mixers.linformer import Linformer, tiny

from .checks import agree, check_padded, gradients, tokens


def naive(m: Linformer, x: Tensor) -> Tensor:
    """One sequence and one head at a time, with the tables as sums over time."""
    rows = []
    for sequence in x:
        q, k, v = (sequence @ one.weight.T for one in (m.q, m.k, m.v))
        heads = []
        for part in torch.arange(m.width).chunk(m.heads):
            keys = torch.stack([sum(m.E[t, r] * k[t, part] for t in range(len(k))) for r in range(m.E.shape[1])])
            values = torch.stack([sum(m.F[t, r] * v[t, part] for t in range(len(v))) for r in range(m.F.shape[1])])
            heads.append(torch.softmax(q[:, part] @ keys.T / math.sqrt(len(part)), -1) @ values)
        rows.append(torch.cat(heads, -1) @ m.out.weight.T)
    return torch.stack(rows)


@pytest.mark.parametrize("projection", ["learned", "random"])
def test_as_the_formula(projection: str) -> None:
    torch.manual_seed(0)
    m = Linformer(12, 3, rows=5, max_len=20, projection=projection).double()
    for T in (1, 17, 20):
        agree(gradients(m, tokens(m, 2, T), lambda x: m(x)[0]), gradients(m, tokens(m, 2, T), lambda x: naive(m, x)), T)
    assert ("E" in dict(m.named_parameters())) == (projection == "learned") and "E" in m.state_dict()


def test_a_projection_that_does_nothing_is_softmax_attention() -> None:
    torch.manual_seed(1)
    m, full = Linformer(12, 3, rows=19, max_len=19).double(), Attention(12, 3, causal=False, positions="none").double()
    full.qkv.weight.data, full.out.weight.data = torch.cat([m.q.weight, m.k.weight, m.v.weight]).data, m.out.weight.data
    m.E.data, m.F.data = torch.eye(19).double(), torch.eye(19).double()
    agree([m(tokens(m, 2, 19))[0]], [full(tokens(m, 2, 19))[0]])


def test_padding_is_taken_out_before_it_is_mixed() -> None:
    torch.manual_seed(2)
    m = tiny().double()
    check_padded(m)
    x = tokens(m, 2, 9)
    spoiled = x.clone()
    spoiled[1, 4:] = torch.nan
    agree([m.mix(spoiled, None, torch.tensor([9, 4]))[0][1, :4]], [m(x[1:, :4])[0][0]])


def test_what_it_cannot_do_it_says() -> None:
    m = tiny()
    with pytest.raises(BadInput, match="4097 tokens are more than the 4096 lines of the tables E and F .*max_len=4097"):
        m(torch.zeros(1, 4097, 12))
    with pytest.raises(BadInput, match="Linformer sees the whole sequence at once and cannot continue from a state"):
        m(torch.zeros(1, 3, 12), {})
    with pytest.raises(BadInput, match="Linformer has no form 'step'; it has parallel"):
        m.use("step")
    assert not m.causal
