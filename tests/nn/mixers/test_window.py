"""Sliding-window attention against a loop over tokens written from the definition."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from sonde.core.errors import BadInput
from sonde.nn.mixers import mixer
from sonde.nn.mixers.attention import Attention
from sonde.nn.mixers.window import Window, tiny

from .checks import agree, check_all, gradients, tokens

SHAPES = [(5, 1, 0), (5, 2, 2), (1, 1, 0), (3, 4, 1), (40, 1, 3)]


def naive(m: Window, x: Tensor) -> Tensor:
    """One head, one query and one key at a time."""
    rows = []
    for sequence in x:
        outs = []
        for i in range(len(sequence)):
            near = [i - n * m.dilation for n in range(m.window)]
            seen = [j for j in range(i + 1) if j < m.global_tokens or j in near]
            heads = []
            for h in range(m.heads):
                part = slice(h * m.width // m.heads, (h + 1) * m.width // m.heads)
                q = (m.q.weight @ sequence[i])[part]
                scores = torch.stack([q @ (m.k.weight @ sequence[j])[part] / math.sqrt(len(q)) for j in seen])
                heads.append(sum(w * (m.v.weight @ sequence[j])[part] for w, j in zip(scores.softmax(0), seen)))
            outs.append(m.out.weight @ torch.cat(heads))
        rows.append(torch.stack(outs))
    return torch.stack(rows)


@pytest.mark.parametrize("window, dilation, global_tokens", SHAPES)
def test_as_a_loop_over_pairs(window: int, dilation: int, global_tokens: int) -> None:
    torch.manual_seed(0)
    m = Window(6, 2, window, dilation, global_tokens, rotary=False).double()
    for T in (1, 2, 17):
        expected = gradients(m, tokens(m, 2, T), lambda x: naive(m, x))
        for form in m.forms():
            agree(gradients(m.use(form), tokens(m, 2, T), lambda x: m(x)[0]), expected, (form, T))


@pytest.mark.parametrize("window, dilation, global_tokens", SHAPES[:2])
def test_forms_pieces_padding_and_causality(window: int, dilation: int, global_tokens: int) -> None:
    torch.manual_seed(1)
    m = Window(12, 3, window, dilation, global_tokens).double()
    check_all(m)


@pytest.mark.parametrize("options", [dict(window=30), dict(window=2, global_tokens=30)])
def test_a_window_over_everything_is_full_attention(options: dict) -> None:
    torch.manual_seed(2)
    m, full = Window(12, 3, **options).double(), Attention(12, 3).double()
    full.qkv.weight.data, full.out.weight.data = torch.cat([m.q.weight, m.k.weight, m.v.weight]).data, m.out.weight.data
    x = tokens(m, 2, 30)
    for form in m.forms():
        agree([m.use(form)(x)[0]], [full(x)[0]], form)


def test_work_grows_linearly_with_the_length() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    def flops(m: Window, T: int) -> int:
        with FlopCounterMode(display=False) as count, torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            m(torch.zeros(1, T, m.width))
        return count.get_total_flops()

    m = tiny().use("chunk")
    assert flops(m, 4096) == 2 * flops(m, 2048)
    assert flops(m.use("parallel"), 4096) > 3 * flops(m, 2048)


def test_the_state_never_grows() -> None:
    m = tiny()
    state = None
    sizes = set()
    with torch.no_grad():
        for T in (1, 1, 300, 7):
            _, state = m(torch.randn(2, T, 12), state)
            sizes.add(tuple((name, s.shape, s.untyped_storage().nbytes()) for name, s in state.items()))
    assert len(sizes) == 1


def test_a_window_of_nothing_is_refused() -> None:
    with pytest.raises(BadInput, match="window"):
        mixer("window", 12, heads=3, window=0)
