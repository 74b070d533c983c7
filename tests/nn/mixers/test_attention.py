"""Softmax attention against torch's own layer and Llama's, and its cache against one pass."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sonde.core.errors import BadInput
from sonde.nn.mixers import mixer
from sonde.nn.mixers.attention import Attention, attend, tiny

from .checks import agree, check_all, check_forms, check_padded, fed, gradients, tokens


@pytest.mark.parametrize("groups, rotary", [(3, True), (None, False)])
def test_forms_pieces_padding_and_causality(groups: int | None, rotary: bool) -> None:
    torch.manual_seed(0)
    check_all(Attention(width=12, heads=6, groups=groups, rotary=rotary, bias=True).double())


def test_bidirectional_forms_and_padding() -> None:
    torch.manual_seed(0)
    m = Attention(width=12, heads=6, groups=2, causal=False).double()
    check_forms(m)
    check_padded(m)
    with pytest.raises(BadInput, match="sees the whole sequence at once"):
        m(tokens(m, 2, 3), m.read(tokens(m, 2, 4)))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("form", ["step", "parallel", "chunk"])
def test_as_torch_multihead_attention(form: str, causal: bool) -> None:
    """Outputs and gradients, in self-attention and looking at a padded context."""
    torch.manual_seed(1)
    theirs = nn.MultiheadAttention(15, 5, bias=True, batch_first=True).double()
    nn.init.normal_(theirs.in_proj_bias)
    mine = Attention(width=15, heads=5, causal=causal, rotary=False, bias=True).double().use(form)
    for layer, weight, bias in zip((mine.q, mine.k, mine.v), theirs.in_proj_weight.chunk(3), theirs.in_proj_bias.chunk(3)):
        layer.weight.data, layer.bias.data = weight.data, bias.data
    mine.out.load_state_dict(theirs.out_proj.state_dict())
    x, context = tokens(mine, 2, 7), tokens(mine, 2, 9, seed=3)
    later = torch.ones(7, 7).triu(1).bool() if causal else None
    for run, reference in [
        (lambda x: mine(x)[0], lambda x: theirs(x, x, x, attn_mask=later, need_weights=False)[0]),
        (
            lambda x: mine.cross(x, mine.read(context, torch.tensor([9, 4]))),
            lambda x: theirs(x, context, context, key_padding_mask=torch.arange(9) >= torch.tensor([[9], [4]]), need_weights=False)[0],
        ),
    ]:
        found, wanted = gradients(mine, x, run), gradients(theirs, x, reference)
        agree(found[:2], wanted[:2])
        ours, named = by_name(mine, found[2:]), by_name(theirs, wanted[2:])
        for part in ("weight", "bias"):
            agree([torch.cat([ours[f"{one}.{part}"] for one in "qkv"])], [named[f"in_proj_{part}"]])
            agree([ours[f"out.{part}"]], [named[f"out_proj.{part}"]])


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
    for one, other in [(mine.q, theirs.q_proj), (mine.k, theirs.k_proj), (mine.v, theirs.v_proj), (mine.out, theirs.o_proj)]:
        one.load_state_dict(other.state_dict())
    x = tokens(mine, 2, 11)
    later = torch.full((11, 11), float("-inf"), dtype=torch.float64).triu(1)[None, None]

    def reference(x: torch.Tensor) -> torch.Tensor:
        where = angles(x, torch.arange(11).unsqueeze(0))
        return theirs(x, position_embeddings=tuple(part.double() for part in where), attention_mask=later)[0]

    wanted = gradients(theirs, x, reference)
    for form in mine.forms():
        mine.use(form)
        found = gradients(mine, x, lambda x: fed(mine, x, [6, 1, 4]))
        ours = by_name(mine, found[2:])
        for one, other in zip([*found[:2], *(ours[f"{name}.weight"] for name in ("q", "k", "v", "out"))], wanted, strict=True):
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
    wanted = attend(q.double(), k.double(), v.double(), causal=True)
    for form in ("step", "parallel", "chunk"):
        found = attend(q, k, v, causal=True, form=form)
        assert found.dtype == dtype
        assert torch.allclose(found.double(), wanted, atol=4 * torch.finfo(dtype).eps), form


def test_large_scores_stay_finite() -> None:
    torch.manual_seed(8)
    q, k, v = (300 * torch.randn(1, 2, 200, 8) for _ in range(3))
    wanted = attend(q.double(), k.double(), v.double(), causal=True, form="step")
    for form in ("parallel", "chunk"):
        assert torch.allclose(attend(q, k, v, causal=True, form=form).double(), wanted, rtol=1e-3, atol=1e-2), form


@pytest.mark.parametrize(
    "dials, message",
    [
        (dict(width=12, heads=5), "cannot be cut into 5 heads"),
        (dict(width=12, heads=6, groups=4), "4 groups of keys do not divide 6 heads"),
        (dict(width=15, heads=5), "heads of width 3 have no pairs to rotate"),
    ],
)
def test_sizes_that_do_not_fit(dials: dict, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        mixer("attention", **dials)


def test_a_missing_form() -> None:
    with pytest.raises(BadInput, match="Attention has no form 'scan'; it has step, parallel, chunk"):
        tiny().use("scan")
