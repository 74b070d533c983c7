"""Softmax attention against torch's own layer and Llama's, and its cache against one pass."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sonde.core.errors import BadInput
from sonde.nn.mixers import mixer
from sonde.nn.mixers.attention import Attention, CrossAttention, attend, tiny
from sonde.nn.positions import Alibi

from .checks import agree, check_all, check_forms, check_padded, feed, gradients, tokens


@pytest.mark.parametrize("groups, positions", [(3, "rotary"), (None, "none")])
def test_forms_pieces_padding_and_causality(groups: int | None, positions: str) -> None:
    torch.manual_seed(0)
    check_all(Attention(width=12, heads=6, groups=groups, positions=positions, bias=True).double())


def test_bidirectional_forms_and_padding() -> None:
    torch.manual_seed(0)
    m = Attention(width=12, heads=6, groups=2, causal=False).double()
    check_forms(m)
    check_padded(m)
    with pytest.raises(BadInput, match="sees the whole sequence at once"):
        m(tokens(m, 2, 3), {"length": torch.tensor([4, 4])})


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("form", ["step", "parallel", "chunk"])
def test_as_torch_multihead_attention(form: str, causal: bool) -> None:
    """Outputs and gradients."""
    torch.manual_seed(1)
    theirs = multihead()
    mine = Attention(width=15, heads=5, causal=causal, positions="none", bias=True).double().use(form)
    mine.qkv.weight.data, mine.qkv.bias.data = theirs.in_proj_weight.data, theirs.in_proj_bias.data
    mine.out.load_state_dict(theirs.out_proj.state_dict())
    x = tokens(mine, 2, 7)
    later = torch.ones(7, 7).triu(1).bool() if causal else None
    actual = gradients(mine, x, lambda x: mine(x)[0])
    expected = gradients(theirs, x, lambda x: theirs(x, x, x, attn_mask=later, need_weights=False)[0])
    agree(actual[:2], expected[:2])
    ours, named = by_name(mine, actual[2:]), by_name(theirs, expected[2:])
    for part in ("weight", "bias"):
        agree([ours[f"qkv.{part}"], ours[f"out.{part}"]], [named[f"in_proj_{part}"], named[f"out_proj.{part}"]])


def test_cross_attention_as_torch_has_it() -> None:
    """Over a padded context, from keys and values of other widths; outputs, weights and gradients."""
    torch.manual_seed(1)
    theirs = nn.MultiheadAttention(15, 5, bias=True, batch_first=True, kdim=8, vdim=6).double()
    nn.init.normal_(theirs.in_proj_bias)
    mine = CrossAttention(width=15, heads=5, keys=8, values=6, bias=True).double()
    kinds = (theirs.q_proj_weight, theirs.k_proj_weight, theirs.v_proj_weight)
    for layer, weight, bias in zip((mine.q, mine.k, mine.v), kinds, theirs.in_proj_bias.chunk(3)):
        layer.weight.data, layer.bias.data = weight.data, bias.data
    mine.out.load_state_dict(theirs.out_proj.state_dict())
    x, keys, values = (torch.randn(2, n, d, dtype=torch.float64) for n, d in ((7, 15), (9, 8), (9, 6)))
    lengths = torch.tensor([9, 4])
    hidden = torch.arange(9) >= lengths.unsqueeze(1)
    actual = gradients(mine, x, lambda x: mine(x, mine.read(keys, lengths, values)))
    expected = gradients(theirs, x, lambda x: theirs(x, keys, values, key_padding_mask=hidden, need_weights=False)[0])
    agree(actual[:2], expected[:2])
    ours, named = by_name(mine, actual[2:]), by_name(theirs, expected[2:])
    for one in "qkv":
        agree([ours[f"{one}.weight"]], [named[f"{one}_proj_weight"]])
    agree([torch.cat([ours[f"{one}.bias"] for one in "qkv"])], [named["in_proj_bias"]])
    seen = theirs(x, keys, values, key_padding_mask=hidden, average_attn_weights=False)[1]
    agree([mine.weights(x, mine.read(keys, lengths, values))], [seen])


@pytest.mark.parametrize("positions, groups, causal", [("alibi", 3, True), ("relative", 2, True), ("relative", None, False)])
def test_scores_that_fall_with_distance(positions: str, groups: int | None, causal: bool) -> None:
    """Every form, in pieces and padded, equals the softmax written out with the bias of each pair."""
    torch.manual_seed(9)
    m = Attention(width=12, heads=6, groups=groups, causal=causal, positions=positions).double()
    if causal:
        check_all(m)
    else:
        check_forms(m)
        check_padded(m)
    T, x = 150, tokens(m, 2, 150)
    q, k, v = (part.unflatten(-1, (-1, 2)).transpose(1, 2) for part in m.qkv(x).split((12, 2 * m.groups, 2 * m.groups), -1))
    k, v = (part.repeat_interleave(6 // m.groups, 1) for part in (k, v))
    bias = torch.zeros(6, T, T, dtype=torch.float64)
    for i in range(T):
        for j in range(T):
            bias[:, i, j] = -m.distance.slopes * abs(i - j) if positions == "alibi" else m.distance.weight[t5_class(j - i, causal)].detach()
    scores = q @ k.mT / 2**0.5 + bias
    scores = scores.masked_fill(torch.ones(T, T).triu(1).bool(), -torch.inf) if causal else scores
    agree([m(x)[0]], [m.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))])


def t5_class(ahead: int, causal: bool) -> int:
    """The class of a distance as transformers has it."""
    from transformers.models.t5.modeling_t5 import T5Attention

    return int(T5Attention._relative_position_bucket(torch.tensor([ahead]), bidirectional=not causal, num_buckets=32, max_distance=128))


def test_slopes_of_alibi() -> None:
    """As published: 1/2 .. 1/256 for eight heads, and those of 8 and then of 16 for twelve (the rule of BLOOM)."""
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    for heads in (8, 12, 3):
        theirs = build_alibi_tensor(torch.ones(1, 5), heads, torch.float64)[:, 0, 1]
        torch.testing.assert_close(Alibi(heads).slopes, theirs)


def multihead() -> nn.MultiheadAttention:
    attention = nn.MultiheadAttention(15, 5, bias=True, batch_first=True).double()
    nn.init.normal_(attention.in_proj_bias)
    return attention


def by_name(m: nn.Module, values: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    return dict(zip((name for name, _ in m.named_parameters()), values, strict=True))


def test_as_llama() -> None:
    """Grouped keys and rotations, with copied weights: outputs and the gradients of x and of every weight."""
    from transformers.models.llama.configuration_llama import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRotaryEmbedding

    torch.manual_seed(2)
    config = LlamaConfig(hidden_size=24, num_attention_heads=6, num_key_value_heads=2, head_dim=4, attn_implementation="eager")
    theirs, angles = LlamaAttention(config, layer_idx=0).double(), LlamaRotaryEmbedding(config).double()
    mine = Attention(width=24, heads=6, groups=2).double()
    mine.qkv.weight.data = torch.cat([theirs.q_proj.weight, theirs.k_proj.weight, theirs.v_proj.weight]).data
    mine.out.load_state_dict(theirs.o_proj.state_dict())
    x = tokens(mine, 2, 11)
    later = torch.full((11, 11), float("-inf"), dtype=torch.float64).triu(1)[None, None]

    def reference(x: torch.Tensor) -> torch.Tensor:
        where = angles(x, torch.arange(11).unsqueeze(0))
        return theirs(x, position_embeddings=tuple(part.double() for part in where), attention_mask=later)[0]

    expected = gradients(theirs, x, reference)
    for form in mine.forms():
        mine.use(form)
        actual = gradients(mine, x, lambda x: feed(mine, x, [6, 1, 4]))
        ours = by_name(mine, actual[2:])
        for one, other in zip([*actual[:2], *ours["qkv.weight"].split((24, 8, 8)), ours["out.weight"]], expected, strict=True):
            assert torch.allclose(one, other, rtol=1e-5, atol=1e-5), form  # its angles are float32


def test_a_scale_is_a_factor_of_the_queries() -> None:
    """C-15: without a scale is with one and queries times the root of the width."""
    torch.manual_seed(3)
    q, k, v = (torch.randn(2, 3, 5, 4, dtype=torch.float64) for _ in range(3))
    by_hand = torch.softmax((q @ k.mT).masked_fill(torch.ones(5, 5).triu(1).bool(), -torch.inf), -1) @ v
    for form in ("step", "parallel", "chunk"):
        agree([attend(q, k, v, causal=True, scale=1.0, form=form), attend(q * 2, k, v, causal=True, form=form)], [by_hand, by_hand])


def test_decoding_writes_in_place_and_never_into_another_state() -> None:
    torch.manual_seed(4)
    m = tiny().double()
    x, other = tokens(m, 2, 12), tokens(m, 2, 12, seed=1)
    with torch.no_grad():
        _, state = m(x[:, :3])
        _, state = m(x[:, 3:4], state)  # moves into a room with space
        place = state["k"].data_ptr()
        fork = state
        for t in range(4, 8):
            _, state = m(x[:, t : t + 1], state)
            assert state["k"].data_ptr() == place
        left = m(other[:, 4:8], fork)[0]  # the same past goes on in another way
        right, _ = m(x[:, 8:], state)
    agree([left, right], [m(torch.cat([x[:, :4], other[:, 4:8]], 1))[0][:, 4:], m(x)[0][:, 8:]])


def test_a_graph_survives_what_is_appended_later() -> None:
    """Even where padding left room behind the keys."""
    torch.manual_seed(5)
    m = tiny().double()
    x = tokens(m, 2, 6)
    y, state = m.mix(x[:, :3], None, torch.tensor([1, 3]))
    more, state = m.mix(x[:, 3:5], state, torch.tensor([1, 1]))
    with torch.no_grad():
        m(x[:, 5:], state)
    (y.sum() + more.sum()).backward()  # raises if the keys it needs were written over


def test_chunks_need_memory_linear_in_the_length() -> None:
    """What the backward pass keeps: twice the length, twice the numbers."""
    torch.manual_seed(6)
    m = tiny().use("chunk")

    def kept(T: int) -> int:
        seen: dict[int, torch.Tensor] = {}  # by storage: many views of one tensor are kept once

        def pack(t: torch.Tensor) -> torch.Tensor:
            seen[t.untyped_storage().data_ptr()] = t
            return t

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            m(torch.randn(1, T, 12))
        return sum(t.untyped_storage().nbytes() for t in seen.values())

    assert kept(2048) < 2.2 * kept(1024)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_sums_in_float32(dtype: torch.dtype) -> None:
    torch.manual_seed(7)
    q, k, v = (torch.randn(1, 2, 300, 8).to(dtype) for _ in range(3))
    expected = attend(q.double(), k.double(), v.double(), causal=True)
    for form in ("step", "parallel", "chunk"):
        output = attend(q, k, v, causal=True, form=form)
        assert output.dtype == dtype
        assert torch.allclose(output.double(), expected, atol=4 * torch.finfo(dtype).eps), form


def test_large_scores_stay_finite() -> None:
    torch.manual_seed(8)
    q, k, v = (300 * torch.randn(1, 2, 200, 8) for _ in range(3))
    expected = attend(q.double(), k.double(), v.double(), causal=True, form="step")
    for form in ("parallel", "chunk"):
        assert torch.allclose(attend(q, k, v, causal=True, form=form).double(), expected, rtol=1e-3, atol=1e-2), form


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(width=12, heads=5), "cannot be divided into 5 heads"),
        (dict(width=12, heads=6, groups=4), "4 groups of keys do not divide 6 heads"),
        (dict(width=15, heads=5), "heads of width 3 have no pairs to rotate"),
    ],
)
def test_sizes_that_do_not_fit(options: dict, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        mixer("attention", **options)


def test_a_missing_form() -> None:
    with pytest.raises(BadInput, match="Attention has no form 'scan'; it has step, parallel, chunk"):
        tiny().use("scan")
